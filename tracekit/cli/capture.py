"""``tracekit capture FOLDER``: has a running job record a few batches, and says where they are."""

from __future__ import annotations

import argparse
import shlex
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tracekit import storage
from tracekit.arguments import check_seconds, parse_ranks
from tracekit.capture.control_folder import CaptureState, ControlFolder, Request, listens
from tracekit.capture.coordinator import CaptureCoordinator, fit_request, progress_words, result_lines, results_of
from tracekit.cli.arguments import add_option, add_output, add_printing, or_zero, path_or_url, positive
from tracekit.cli.terminal import FAILED, OK, PROBLEMS, ProgressBar, complain, print_answer, print_json, print_lines
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import CommandError, ConfigError
from tracekit.wording import counted


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=path_or_url,
        metavar="FOLDER",
        help="the control folder of the run (see on_demand), or the folder that has it as 'control'",
    )
    what = parser.add_mutually_exclusive_group()
    add_option(what, "--stop", "stop the running capture and print its files")
    add_option(what, "--status", "list the ranks and their state")
    length = parser.add_argument_group("what to record (default: what the run was set up with)")
    add_option(length, "--ranks LIST", "ranks to record, for example 0,8-15 (default: all)")
    add_option(length, "--steps N", "number of batches", type=positive)
    add_option(length, "--seconds S", "seconds, rounded up to the end of a batch", type=float)
    add_option(length, "--until-stop", "record until --stop or Ctrl-C")
    add_option(length, "--warmup N", "batches before them in which torch.profiler warms up", type=or_zero(positive))
    start = parser.add_argument_group("when to start (default: all ranks with the same batch, as soon as it can be)")
    when = start.add_mutually_exclusive_group()
    add_option(when, "--now", "start each rank with its next batch")
    add_option(when, "--at-batch N", "start with this batch of the run", type=or_zero(positive))
    add_option(when, "--at-time TIME", "after this time: 2026-01-31T12:00:00 (local, or with an offset), or +SECONDS")
    add_output(parser, "merge the traces into this file, .json or .json.gz")
    add_option(
        parser,
        "--timeout S",
        "seconds to wait for a rank that does not respond (default: %(default)g); raise it for longer batches",
        type=float,
        default=30.0,
    )
    add_printing(parser, "print the result as JSON", "print only the names of the files")
    parser.epilog = (
        "Ctrl-C stops the capture and waits for its files; twice leaves at once. Exit code: 0 every rank has recorded, "
        "1 none has, 2 wrong usage, 3 some have not, or the merge lost something."
    )


def run(args: argparse.Namespace) -> int:
    check_seconds("--timeout", args.timeout)
    folder = _control_folder(args.folder)
    try:
        if args.status:
            return _show_status(folder, as_json=args.json)
        request = _request(args)
        if args.output is not None and not args.force:
            storage.refuse_existing(args.output)
        if not request.stop:
            request = fit_request(folder, request)
        coordinator = CaptureCoordinator(folder, request, timeout_s=args.timeout)
        with ProgressBar(enabled=not (args.json or args.quiet)) as bar:
            _watch(coordinator, bar, quiet=args.json or args.quiet)
    except OSError as error:
        raise CommandError(f"{folder.path}: {error.strerror or error}") from None
    return _conclude(coordinator, args)


# ---- before -----------------------------------------------------------------------------------------------------------


def _control_folder(name: str) -> ControlFolder:
    folder = ControlFolder.find(Path(name))
    if folder is None:
        raise CommandError(
            f"{name}: no run listens here; give the folder that the run's on_demand(...) has, such as traces/RUN/control"
        )
    return folder


def _request(args: argparse.Namespace) -> Request:
    if args.until_stop and (args.steps is not None or args.seconds is not None):
        raise ConfigError("--until-stop says how long by itself; leave out --steps and --seconds")
    written = Request(
        stop=args.stop,
        ranks=None if args.ranks is None else parse_ranks("--ranks", args.ranks),
        steps=0 if args.until_stop else args.steps,
        seconds=args.seconds,
        warmup=args.warmup,
        start_batch=args.at_batch,
        start_time=None if args.at_time is None else _time(args.at_time),
        together=not (args.now or args.stop) and args.at_batch is None and args.at_time is None,
    )
    return Request.from_bytes(written.to_bytes())  # refused here as a rank would refuse it


def _time(text: str) -> float:
    try:
        return (
            SYSTEM_CLOCK.wall_ns() / 1e9 + float(text[1:])
            if text.startswith("+")
            else datetime.fromisoformat(text).timestamp()
        )
    except (ValueError, OverflowError):
        raise ConfigError(f"--at-time {text}: give 2026-01-31T12:00:00, or +10 for in ten seconds") from None


# ---- while it runs ----------------------------------------------------------------------------------------------------


def _watch(coordinator: CaptureCoordinator, bar: ProgressBar, *, quiet: bool) -> None:
    told = coordinator.request.has_start
    stopped = False
    coordinator.begin()
    while not coordinator.finished:
        try:
            while not coordinator.finished:
                coordinator.poll()
                if not told and coordinator.request.has_start:
                    told = True
                    if not quiet:
                        print(_start_line(coordinator), flush=True)
                views = coordinator.ranks.values()
                over = sum(view.state == CaptureState.DONE or view.lost is not None for view in views)
                bar.update(over / max(1, len(views)), progress_words(coordinator))
                if not coordinator.finished:
                    time.sleep(coordinator.pause_s)
        except KeyboardInterrupt:
            if stopped or coordinator.request.stop:
                raise
            stopped = True
            coordinator.stop()
            if not quiet:
                print("stopping; the files follow", flush=True)


def _start_line(coordinator: CaptureCoordinator) -> str:
    request = coordinator.request
    ranks = counted(sum(view.lost is None for view in coordinator.ranks.values()), "rank")
    if request.start_time is not None:
        when = datetime.fromtimestamp(request.start_time).astimezone()
        return f"{ranks} start at {when:%H:%M:%S}, as their batches are far apart"
    return f"{ranks} start with batch {request.start_batch}"


# ---- after ------------------------------------------------------------------------------------------------------------


def _conclude(coordinator: CaptureCoordinator, args: argparse.Namespace) -> int:
    if coordinator.request.stop and not coordinator.ranks:
        if args.json:
            print_json({"ranks": [], "files": []}, indent=None)
        else:
            print("no capture is in force")
        return OK
    results = results_of(coordinator)
    files = list(dict.fromkeys(file for result in results for file in result["files"]))
    done = sum(view.state == CaptureState.DONE for view in coordinator.ranks.values())
    document: dict[str, Any] = {"id": coordinator.request.id, "ranks": results, "files": files}
    if not (args.json or args.quiet):
        print_answer(result_lines(results), style="good" if done == len(results) else "warning")
    complete = bool(done) and done == len(results)
    if args.output is not None and files:
        complete = _merge(args, files, document) and complete
    if args.json:
        print_json(document)
    else:
        _print_files(files, args)
    if not done:
        what = "no rank has answered" if not any(result["state"] for result in results) else "no rank has recorded"
        complain(f"{what}; is the training loop calling step()?", "capture")
        return FAILED
    return OK if complete else PROBLEMS


def _merge(args: argparse.Namespace, files: list[str], document: dict[str, Any]) -> bool:
    from tracekit.merge import merge_traces

    there = _that_are_there(files, args.timeout)
    document["missing"] = [file for file in files if file not in there]
    for file in document["missing"]:
        complain(f"{file}: cannot be seen from here; merge it where it can", "capture")
    if not there:
        return False
    report = merge_traces(args.output, there, overwrite=args.force)
    document["merged"] = args.output
    document["merge"] = report.to_json()
    if not (args.json or args.quiet):
        print_answer(report.lines(), has_tables=False)
    return report.complete and not document["missing"]


def _that_are_there(files: list[str], timeout_s: float) -> list[str]:
    """Return the files that exist. Wait for remote files, which may still be uploaded."""
    deadline = time.monotonic() + timeout_s
    while True:
        there = [file for file in files if storage.exists(file)]
        coming = any(storage.is_remote(file) for file in files if file not in there)
        if not coming or time.monotonic() > deadline:
            return there
        time.sleep(1.0)


def _print_files(files: list[str], args: argparse.Namespace) -> None:
    if args.output is not None:
        return
    shown = files if args.quiet else files[:32]
    print_lines(*shown)
    if len(shown) < len(files):
        print(f"... and {len(files) - len(shown)} more (--json lists all)")
    elif files and not args.quiet:
        names = " ".join(shlex.quote(file) for file in files)
        print_lines(f"merge them: tracekit merge -o merged.json.gz {names}")


def _show_status(folder: ControlFolder, *, as_json: bool) -> int:
    rows = []
    for _, status in sorted(folder.statuses().items()):
        capture = status.capture
        rows.append(
            {
                **{name: getattr(status, name) for name in ("rank", "world_size", "run_id", "host", "pid", "attempt")},
                "listening": listens(status),
                "batch": status.batch,
                **{name: getattr(capture, name, None) for name in ("state", "first_batch", "last_batch")},
                "files": [] if capture is None else list(capture.files),
            }
        )
    if as_json:
        print_json({"folder": str(folder.path), "ranks": rows})
    else:
        for row in rows:
            life = "listens" if row["listening"] else "has ended"
            last = "no capture yet" if row["state"] is None else f"capture {row['state']}"
            if row["first_batch"] is not None:
                until = "" if row["last_batch"] is None else f" to {row['last_batch']}"
                last += f" (from batch {row['first_batch']}{until})"
            print_lines(f"rank {row['rank']} of {row['world_size']} on {row['host']}, pid {row['pid']}: {life}; {last}")
    return OK if any(row["listening"] for row in rows) else FAILED
