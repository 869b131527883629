"""The ``tracekit`` command: one module a verb, loaded when that verb is used.

A verb's module has ``prepare_parser(parser)``, which adds its arguments, and ``run(args)``, which returns the exit
code: 0 done, 1 failed, 2 wrong usage, 3 problems found.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import importlib
import os
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol, cast

from tracekit.arguments import is_set
from tracekit.cli.named_runs import with_named_runs
from tracekit.cli.pipes import copied_pipes, piped_output
from tracekit.cli.terminal import FAILED, USAGE, complain, message_of
from tracekit.errors import CommandError, ConfigError, TracekitError
from tracekit.version import __version__
from tracekit.wording import suggestion

__all__ = ["Parser", "Verb", "entry_point", "main", "make_parser"]

VERBS: Final = {
    "anonymise": ("replace the names of people, machines and files in traces", "merged.json.gz -o shared.json.gz"),
    "capture": ("record a few batches of a running job", "traces/RUN/control --steps 5 -o merged.json.gz"),
    "completion": ("print a script that completes commands and options in your shell", "bash"),
    "convert": ("write a trace in another format", "merged.json.gz merged.pftrace"),
    "diff": (
        "compare two runs or two ranks and name what became slower",
        "before.json.gz after.json.gz --fail-above 5%",
    ),
    "doctor": ("check this machine and report problems", "traces/ s3://bucket/traces"),
    "gpu": ("show where the time of the GPUs goes: idle time, kernels, launches, copies, memory", "traces/RUN/"),
    "link": (
        "print a link that opens a trace of an object store in Perfetto, for somebody else",
        "s3://bucket/merged.pftrace",
    ),
    "mcp": ("answer coding agents about the runs in folders, over the Model Context Protocol", "traces/"),
    "merge": ("merge the traces of all ranks into one for Perfetto", "-o merged.json.gz traces/RUN/"),
    "open": ("show traces in Perfetto in a browser", "merged.json.gz"),
    "query": ("ask traces in SQL", "traces/RUN/ 'select name, sum(self_ns) from events group by 1'"),
    "recover": ("repair cut or damaged traces", "traces/RUN/rank3.json"),
    "report": ("write a report of a run as one HTML file", "traces/RUN/ -o report.html"),
    "run": ("record an unmodified training script on all ranks", "-- torchrun --nproc-per-node 8 train.py"),
    "serve": ("show the runs of a folder or bucket in a browser, for a team", "traces/"),
    "split": ("split a trace by time or by rank", "merged.json.gz --seconds 60"),
    "stragglers": ("find the ranks that delay the others, and the stage", "traces/RUN/"),
    "summary": ("show where the time goes: markers, steps, devices, data loading, gaps", "traces/RUN/"),
    "top": ("show a running job: ranks, steps, stages, delays and losses", "traces/ --counter loss"),
    "trim": ("copy a part of a trace", "merged.json.gz --steps 10:20 -o part.json.gz"),
    "upload": ("upload what recordings could not upload", "spools/"),
    "validate": ("check that Perfetto loads all of a trace", "merged.json.gz"),
}
"""The summary of each verb, and the arguments of its example."""

_MISSING: Final = "the following arguments are required: "
_TRACES: Final = re.compile(r"\b(?:INPUT|TRACE|FILE|FOLDER)\b")
_OWN_FAULTS: Final = (None, errno.EBADF, errno.EINVAL, errno.EFAULT)
"""The numbers of errors that no disk, network or permission explains."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141


class Verb(Protocol):
    """The functions of a verb's module."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the verb. Return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code. Print one sentence to standard error for each failure.

    Without ``argv``, it runs the arguments of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            code = _run(arguments)
        except SystemExit as stop:
            # argparse raises it after --help and after a usage error.
            code = stop.code if isinstance(stop.code, int) else USAGE
        # Flush here, where a closed pipe is handled, and not at the interpreter's exit.
        sys.stdout.flush()
    except TracekitError as error:
        _complain(message_of(error))
        return (
            error.exit_code if isinstance(error, CommandError) else USAGE if isinstance(error, ConfigError) else FAILED
        )
    except KeyboardInterrupt:
        _complain("interrupted; nothing was left half done")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed the pipe.
        _discard_output()
        return _BROKEN_PIPE
    except Exception as error:
        if is_set("TRACEKIT_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno not in _OWN_FAULTS:
            what = f"{error.filename}: cannot be used" if error.filename else "a read or write failed"
            if error.errno in _FULL and not error.filename:
                _discard_output()
                what = "the output: cannot be written"
            _complain(f"{what}: {error.strerror}")
            return FAILED
        _complain(
            f"unexpected {type(error).__name__}: {error}. This is a fault of tracekit: please report it, "
            "with what TRACEKIT_DEBUG=1 prints"
        )
        return FAILED
    else:
        return code


def entry_point() -> None:
    """Run the command line as a program."""
    # Imports make thousands of permanent objects. A garbage collection for every 700 of them would visit all of them
    # again.
    gc.set_threshold(50_000)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # its descriptor is closed
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    code = main()
    gc.freeze()  # the end of the process frees them faster than the collections of Python's exit
    sys.exit(code)


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest word for a misspelt verb, choice or option."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with 2."""
        misspelt = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if misspelt is not None:
            nearest = suggestion(misspelt[1], re.findall(r"[\w-]+", misspelt[2]))
            message = f"{message.partition(' (choose from ')[0]}{nearest}" if nearest else message
        elif message.startswith(_MISSING) and _TRACES.search(message):
            message += ". Name traces such as traces/RUN/, or a run: --run latest"
        super().error(message)

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """The options and verbs of this parser."""
        return self._actions

    def refuse_unknown(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with 2 because of unknown arguments."""
        known = ["--run", *(option for action in self.actions for option in action.option_strings)]
        self.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion(unknown[0].partition('=')[0], known)}")


class _VerbFormatter(argparse.HelpFormatter):
    """A formatter with a column that is wide enough for the longest verb."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add an option or the verbs."""
        super().add_argument(action)
        self._action_max_length = max(self._action_max_length, max(map(len, VERBS)) + 4)


def make_parser(loaded: Collection[str] = VERBS) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the command line, and the parser of each verb. The modules of the verbs ``loaded`` are imported."""
    parser = Parser(prog="tracekit", description="Record, merge and check traces of ML training.", allow_abbrev=False)
    parser.formatter_class = _VerbFormatter
    parser.epilog = (
        "tracekit VERB --help shows the options of a command and an example. In every command, --run NAME or --run latest "
        "stands for a run in the folder traces (or TRACEKIT_TRACES)."
    )
    parser.add_argument("--version", action="version", version=f"tracekit {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers: dict[str, Parser] = {}
    for name, (summary, example) in VERBS.items():
        # Not str.capitalize, which would turn "Perfetto" into "perfetto".
        description = f"{summary[0].upper()}{summary[1:]}."
        parsers[name] = verbs.add_parser(name, help=summary, description=description, allow_abbrev=False)
        if name in loaded:
            _load(name).prepare_parser(parsers[name])
        if "Examples:" not in (parsers[name].epilog or ""):
            parsers[name].add_argument_group("example", f"tracekit {name} {example}")
    return parser, parsers


def _run(arguments: list[str]) -> int:
    wanted = next((argument for argument in arguments if not argument.startswith("-")), "")
    parser, parsers = make_parser({wanted})
    if not arguments:
        parser.print_help(sys.stderr)
        return USAGE
    arguments = with_named_runs(arguments, wanted)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        parsers[args.verb].refuse_unknown(unknown)
    with copied_pipes(args), piped_output(args, args.verb):
        return _load(args.verb).run(args)


def _load(verb: str) -> Verb:
    return cast("Verb", importlib.import_module(f"tracekit.cli.{verb}"))


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # standard error cannot be written either
        # Always one line, because names from a trace or a path may contain line breaks.
        complain(" ".join(message.split()))


def _discard_output() -> None:
    """Prevent Python from flushing standard output again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
