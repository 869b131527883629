"""``tracekit run -- COMMAND``: record an unmodified training script on all ranks, merge and summarize it."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tracekit import storage
from tracekit.arguments import check_service
from tracekit.auto import bootstrap
from tracekit.auto.configuration import read_options
from tracekit.auto.notes import OPTIONS_VARIABLE, read_notes
from tracekit.auto.options import (
    FLAGS,
    READERS,
    RunOptions,
    check_folder,
    read_names,
    read_ranks,
    read_size,
    read_steps,
)
from tracekit.auto.start import AUTO_VARIABLE
from tracekit.cli.arguments import add_log_to, add_option, add_output, as_argument, path_or_url, seconds
from tracekit.cli.run_process import end_like, run_command
from tracekit.cli.run_result import RecordedRun, has_new_files, merge_run, summary_sentences
from tracekit.cli.terminal import complain, message_of
from tracekit.distributed import RUN_ID_VARIABLE, detect_process
from tracekit.errors import ConfigError, TracekitError
from tracekit.merge.engine import check_output
from tracekit.naming import safe_text
from tracekit.recording.options import SETTINGS
from tracekit.wording import rank_spans

_Flag: Final = argparse.BooleanOptionalAction


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tracekit run [options] -- COMMAND ..."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="the command that starts the training, behind --: python, torchrun, accelerate, deepspeed, mpirun, srun ...",
    )
    output = parser.add_argument_group("where to")
    add_output(output, "the merged trace (default: merged.json.gz in the folder)")
    add_option(
        output,
        "--folder FOLDER",
        "folder or URL of the rank traces; several nodes need one that all of them reach (default: traces/{run_id})",
        type=path_or_url,
    )
    add_option(
        output, "--run-id ID", "name of the run, the same on each node (default: the id of the job, else the time)"
    )
    add_option(
        output, "--merge", "merge the ranks at the end; --no-merge leaves the rank traces as they are", action=_Flag
    )
    add_log_to(output, "the merged trace and a report on it")
    add_option(
        output,
        "--timeout S",
        "seconds to wait for the ranks of other nodes before the merge (default: 60)",
        type=seconds,
    )
    add_option(
        output,
        "--limit SIZE",
        "maximum size of the traces of a rank, such as 500MB; the oldest segments are removed (default: 2GB)",
        type=as_argument(read_size),
    )
    window = parser.add_argument_group("torch.profiler")
    add_option(
        window, "--steps A:B", "run it in the steps from A up to B, B not included", type=as_argument(read_steps)
    )
    add_option(window, "--ranks LIST", "on these ranks only, such as 0,1 (default: all)", type=as_argument(read_ranks))
    add_option(window, "--with-stack", "record Python stacks", action=_Flag)
    add_option(window, "--memory", "record allocations", action=_Flag)
    add_option(window, "--shapes", "record the shapes of the inputs of operators", action=_Flag)
    when = parser.add_mutually_exclusive_group()
    add_option(when, "--on-demand", "record nothing until tracekit capture FOLDER asks for steps", action=_Flag)
    add_option(
        when,
        "--flight-recorder SECONDS",
        "keep the last seconds in memory, and write them at the end or at an exception",
        type=seconds,
    )
    others = parser.add_argument_group("other packages")
    for option, group in (("handler", "tracekit.handlers"), ("source", "tracekit.sources")):
        others.add_argument(
            f"--{option}",
            dest=f"{option}s",
            type=as_argument(read_names),
            metavar="NAMES",
            help=f"{option}s of installed packages, by the names of their entry points {group}, such as a,b",
        )
    profiler = parser.add_argument_group("Profiler", "options of the Profiler in each process")
    for name, (default, summary) in SETTINGS.items():
        option = f"--{name.replace('_', '-')}"
        if name in FLAGS:
            profiler.add_argument(option, action=_Flag, help=summary)
        else:
            shown = "" if default is None else f" (default: {default})"
            kind = as_argument(READERS[name])
            metavar = {int: "N", str: "NAME"}.get(type(default), "S")
            profiler.add_argument(option, type=kind, metavar=metavar, help=f"{summary}{shown}")
    parser.epilog = (
        "Examples:\n"
        "  tracekit run -- torchrun --nproc-per-node 8 train.py\n"
        "  tracekit run --steps 20:25 --ranks 0,1 -o merged.json.gz -- accelerate launch train.py --epochs 3\n"
        "  tracekit run --folder s3://bucket/traces/{run_id} --run-id job7 -- torchrun --nnodes 2 ... train.py\n"
        "\n"
        "Output of tracekit goes to standard error. Exit code: that of the command, also where the merge fails; 126 or 127 if\n"
        "it cannot be started, 2 wrong usage."
    )


def run(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ConfigError(
            "name the command to run behind --, for example: tracekit run -- torchrun --nproc-per-node 8 train.py"
        )
    given = {name: value for name, value in vars(args).items() if value is not None}
    chosen, file = read_options(Path.cwd(), os.environ, given)
    vars(args).update(chosen)
    run_id = args.run_id or detect_process(rank=0, world_size=1).run_id
    check_folder(args.folder)
    folder = args.folder.replace("{run_id}", safe_text(run_id))
    if not storage.is_remote(folder):
        folder = os.fspath(Path.cwd() / folder)
    output = args.output or f"{folder}/merged.json.gz"
    if "log_to" in given and not args.merge:
        raise ConfigError("--log-to logs the merged trace; leave --no-merge out")
    if args.log_to is not None and args.merge:
        check_service(args.log_to, "--log-to ")
    if args.merge:
        check_output(output)
        if not args.force:
            storage.refuse_existing(output)
    start_ns = time.time_ns()
    with tempfile.TemporaryDirectory(prefix="tracekit-run-") as notes:
        options = _options(args, given, folder.replace("{", "{{").replace("}", "}}"), notes)
        if file is not None:
            complain(f"options of {_short(os.fspath(file))}")
        if args.on_demand:
            complain(f"recording starts with: tracekit capture {storage.shell_word(folder)}/control --steps 5")
        code = run_command(command, _environment(options, run_id))
        recorded = RecordedRun(read_notes(Path(notes)))
    try:
        _conclude(args, recorded, folder, output, command, start_ns)
    except KeyboardInterrupt:
        complain(f"interrupted; the rank traces are in {folder}")
    except (TracekitError, OSError) as error:
        complain(f"{message_of(error)}. The rank traces are in {folder}.")
    return end_like(code)


def _conclude(
    args: argparse.Namespace, recorded: RecordedRun, folder: str, output: str, command: list[str], start_ns: int
) -> None:
    ranks = recorded.ranks
    where = storage.without_secrets(folder)
    merge_command = f"tracekit merge -o {storage.shell_word(output)} {storage.shell_word(where)}"
    if not ranks and recorded.stated_reason is None and has_new_files(folder, start_ns):
        complain(
            f"there are traces in {where}, but no process reported to {tempfile.gettempdir()}: its disk is full, or they "
            f"ran on another machine. Next: {merge_command}"
        )
        return
    if not ranks:
        complain(f"no process of this run was recorded: {recorded.why_nothing(command)}.")
        return
    for line in recorded.losses():
        complain(line)
    if args.steps is not None and recorded.steps is not None and recorded.steps < args.steps[0]:
        complain(
            f"torch.profiler did not run: --steps begin at {args.steps[0]}, and the run had {recorded.steps} steps."
        )
    if not args.merge:
        complain(f"recorded {rank_spans(ranks)} of {recorded.world_size} in {where}. Next: {merge_command}")
        return
    if 0 not in ranks:
        complain(f"recorded {rank_spans(ranks)} of {recorded.world_size} in {where}; the node of rank 0 merges them.")
        return
    since_ns = 0 if "{run_id}" in args.folder else start_ns
    for line in merge_run(recorded, folder, output, args.timeout, overwrite=args.force, since_ns=since_ns):
        complain(line)
    for sentence in summary_sentences(output):
        complain(sentence)
    if args.log_to is not None:
        from tracekit.view.experiments import log_trace

        try:
            for sentence in log_trace(args.log_to, output, run=recorded.run_id):
                complain(sentence)
        except TracekitError as error:
            complain(f"{error}.")
    complain(f"Next: tracekit open {storage.shell_word(_short(output))}")


def _options(args: argparse.Namespace, given: Mapping[str, Any], folder: str, notes: str) -> RunOptions:
    if args.steps is None and not args.on_demand:
        for name in ("ranks", "with_stack", "memory", "shapes"):
            if given.get(name):
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} is for torch.profiler; add --steps A:B or --on-demand")
    return RunOptions.of(vars(args), folder=folder, notes=notes)


def _environment(options: RunOptions, run_id: str) -> Mapping[str, str]:
    """Return the environment of the command: it imports this package and its ``sitecustomize``."""
    hooks = Path(bootstrap.__file__).resolve().parent
    given = os.environ.get("PYTHONPATH")
    path = [os.fspath(hooks), *(given.split(os.pathsep) if given else ())]  # an empty entry is the current folder
    root = hooks.parents[2]
    if root.name not in ("site-packages", "dist-packages") and os.fspath(root) not in path:
        path.append(os.fspath(root))
    # torch's profiler reports its start and end, and a missing GPU, on standard error.
    quiet = {"KINETO_LOG_LEVEL": "6"} if options.steps is not None or options.on_demand else {}
    return {
        **quiet,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        AUTO_VARIABLE: "1",
        OPTIONS_VARIABLE: options.to_json(),
        RUN_ID_VARIABLE: run_id,
        "TRACEKIT_QUIET": os.environ.get("TRACEKIT_QUIET", "1"),
    }


def _short(path: str) -> str:
    if not storage.is_remote(path) and Path(path).is_relative_to(Path.cwd()):
        return os.fspath(Path(path).relative_to(Path.cwd()))
    return storage.without_secrets(path)
