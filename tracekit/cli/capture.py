"""``tracekit capture FOLDER``: has a running job record a few batches, and says where they are."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit import storage
from tracekit.capture.documents import CaptureState, Request, new_id
from tracekit.capture.drive import Drive, RankView, is_gone
from tracekit.capture.folder import RANKS, ControlFolder
from tracekit.cli.progress import ProgressBar
from tracekit.cli.terminal import printable
from tracekit.clock import SYSTEM_CLOCK
from tracekit.errors import CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

__all__ = ["prepare_parser", "run"]

OK: Final = 0
FAILED: Final = 1
PARTLY: Final = 3

_LOOK_S: Final = 0.1
_MOST_LISTED: Final = 32


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit capture``."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="the control folder of the run (see on_demand), or the folder that has it as 'control'",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stop", action="store_true", help="end the capture that runs, and say where it is")
    what.add_argument("--status", action="store_true", help="only list the ranks and what they do")
    length = parser.add_argument_group("what to record (default: what the run was set up with)")
    length.add_argument("--ranks", metavar="LIST", help="which ranks, for example 0,8-15 (default: all)")
    length.add_argument("--steps", type=int, metavar="N", help="how many batches")
    length.add_argument("--seconds", type=float, metavar="S", help="how long, to the end of a batch")
    length.add_argument("--until-stop", action="store_true", help="until --stop, or Ctrl-C here")
    length.add_argument("--warmup", type=int, metavar="N", help="batches before, for torch.profiler to warm up")
    start = parser.add_argument_group("when to start (default: all ranks with the same batch, as soon as it can be)")
    when = start.add_mutually_exclusive_group()
    when.add_argument("--now", action="store_true", help="each rank with its next batch")
    when.add_argument("--at-batch", type=int, metavar="N", help="with this batch, counted through the run")
    when.add_argument(
        "--at-time", metavar="TIME", help="after this time: 2026-01-31T12:00:00 (local, or with an offset), or +SECONDS"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="merge the traces into this file, .json or .json.gz")
    parser.add_argument("-f", "--force", action="store_true", help="replace the output if it is there already")
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="how long a rank may do nothing before it is given up (default: %(default)g); raise it for longer batches",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the names of the files")
    parser.epilog = (
        "Ctrl-C stops the capture and waits for its files; twice leaves at once. Exit code: 0 every rank has recorded, "
        "1 none has, 2 wrong usage, 3 some have not, or the merge lost something."
    )


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit capture``; return its exit code."""
    if not args.timeout > 0 or math.isinf(args.timeout):
        parser.error("--timeout must be a number above 0")
    folder = ControlFolder(_control_folder(args.folder))
    try:
        if args.status:
            return _show_status(folder, as_json=args.json)
        request = _request(args, parser)
        if args.output is not None and not args.force and storage.exists(args.output):
            raise CommandError(f"{args.output}: already exists; choose another name, or pass --force to replace it")
        if not request.stop:
            request = _fit_for(folder, request)
        drive = Drive(folder, request, timeout_s=args.timeout)
        with ProgressBar(enabled=not (args.json or args.quiet)) as bar:
            _watch(drive, bar, quiet=args.json or args.quiet)
    except OSError as error:
        raise CommandError(f"{folder.path}: {error.strerror or error}") from None
    return _conclude(drive, args)


# ---- before -----------------------------------------------------------------------------------------------------------


def _control_folder(name: str) -> Path:
    for folder in (Path(name), Path(name) / "control"):
        if (folder / RANKS).is_dir():
            return folder.absolute()
    raise CommandError(
        f"{name}: no run listens here; give the folder that the run's on_demand(...) has, such as traces/RUN/control"
    )


def _request(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Request:
    if args.until_stop and (args.steps is not None or args.seconds is not None):
        parser.error("--until-stop says how long by itself; leave out --steps and --seconds")
    if args.steps is not None and args.steps < 1:
        parser.error("--steps must be 1 or more")
    written = Request(
        id=new_id(),
        stop=args.stop,
        ranks=None if args.ranks is None else _ranks(args.ranks),
        steps=0 if args.until_stop else args.steps,
        seconds=args.seconds,
        warmup=args.warmup,
        start_batch=args.at_batch,
        start_time=None if args.at_time is None else _time(args.at_time),
        together=not (args.now or args.stop) and args.at_batch is None and args.at_time is None,
    )
    return Request.from_bytes(written.to_bytes())  # refused here as a rank would refuse it


def _ranks(text: str) -> tuple[int, ...]:
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) - int(first) > 1_000_000:
            raise CommandError(f"--ranks {text}: give numbers and ranges, for example 0,8-15", exit_code=2)
        ranks.update(range(int(first), int(last or first) + 1))
    if not ranks:
        raise CommandError(f"--ranks {text}: there is no rank in it", exit_code=2)
    return tuple(sorted(ranks))


def _time(text: str) -> float:
    try:
        return (
            SYSTEM_CLOCK.wall_ns() / 1e9 + float(text[1:])
            if text.startswith("+")
            else datetime.fromisoformat(text).timestamp()
        )
    except (ValueError, OverflowError):
        raise CommandError(f"--at-time {text}: give 2026-01-31T12:00:00, or +10 for in ten seconds", 2) from None


def _fit_for(folder: ControlFolder, request: Request) -> Request:
    """Refuse what is known to be in vain; leave out the round for a common start where there is one rank."""
    listening = {rank: status for rank, status in folder.statuses().items() if status.listening and not is_gone(status)}
    if not listening:
        raise CommandError(f"{folder.path}: no rank listens here any more; the run has ended")
    busy = [
        rank
        for rank, status in sorted(listening.items())
        if request.selects(rank) and status.capture is not None and status.capture.in_force
        if status.capture.state != CaptureState.ACKNOWLEDGED
    ]
    if busy:
        raise CommandError(
            f"{_named(busy)} {'is' if len(busy) == 1 else 'are'} in a capture already; wait for it, or end it with "
            f"tracekit capture --stop {shlex.quote(str(folder.path))}"
        )
    size = max(status.world_size for status in listening.values())
    beyond = [rank for rank in request.ranks or () if rank >= size]
    if beyond:
        raise CommandError(f"--ranks: there is no {_named(beyond)}; the run has {_count(size, 'rank')}", exit_code=2)
    alone = size == 1 or (request.ranks is not None and len(request.ranks) == 1)
    return Request(**{**_fields(request), "together": request.together and not alone})


def _fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in Request.__slots__}


# ---- while it runs ----------------------------------------------------------------------------------------------------


def _watch(drive: Drive, bar: ProgressBar, *, quiet: bool) -> None:
    told = drive.request.decided
    stopped = False
    drive.begin()
    while True:
        try:
            began = time.monotonic()
            drive.look()
            if not told and drive.request.decided:
                told = True
                if not quiet:
                    print(_start_line(drive), flush=True)
            views = drive.ranks.values()
            over = sum(drive.is_done(view) or view.lost is not None for view in views)
            bar.update(over / max(1, len(views)), _progress_line(drive))
            if drive.finished:
                break
            time.sleep(_LOOK_S + 2 * (time.monotonic() - began))
        except KeyboardInterrupt:
            if stopped or drive.request.stop:
                raise
            stopped = True
            drive.stop()
            if not quiet:
                print("stopping; the files follow", flush=True)
    silent = tuple(rank for rank, view in drive.ranks.items() if view.lost is not None)
    if silent and not stopped and not drive.request.stop:
        drive.stop(silent)  # so that they do not begin when nobody waits for them any more


def _start_line(drive: Drive) -> str:
    request = drive.request
    ranks = _count(sum(view.lost is None for view in drive.ranks.values()), "rank")
    if request.start_time is not None:
        when = datetime.fromtimestamp(request.start_time).astimezone()
        return f"{ranks} start at {when:%H:%M:%S}, as their batches are far apart"
    return f"{ranks} start with batch {request.start_batch}"


def _progress_line(drive: Drive) -> str:
    states: dict[str, int] = {}
    for view in drive.ranks.values():
        capture = drive.capture_of(view)
        state = "lost" if view.lost is not None else "asked" if capture is None else capture.state
        states[state] = states.get(state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in states.items())


# ---- after ------------------------------------------------------------------------------------------------------------


def _conclude(drive: Drive, args: argparse.Namespace) -> int:
    if drive.request.stop and not drive.ranks:
        print(json.dumps({"ranks": [], "files": []}) if args.json else "no capture is in force")
        return OK
    views = [drive.ranks[rank] for rank in sorted(drive.ranks)]
    results = {view.rank: _result(drive, view) for view in views}
    files = list(dict.fromkeys(file for result in results.values() for file in result["files"]))
    done = sum(drive.is_done(view) for view in views)
    document: dict[str, Any] = {"id": drive.request.id, "ranks": list(results.values()), "files": files}
    if not (args.json or args.quiet):
        for line in _result_lines(results):
            print(printable(line))
    complete = bool(done) and done == len(views)
    if args.output is not None and files:
        complete = _merge(args, files, document) and complete
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        _print_files(files, args)
    if not done:
        what = (
            "no rank has answered"
            if not any(result["state"] for result in results.values())
            else "no rank has recorded"
        )
        print(printable(f"tracekit capture: {what}; is the training loop calling step()?", sys.stderr), file=sys.stderr)
        return FAILED
    return OK if complete else PARTLY


def _result(drive: Drive, view: RankView) -> dict[str, Any]:
    capture = drive.capture_of(view)
    refusal = drive.refusal_of(view)
    return {
        "rank": view.rank,
        "state": "refused" if refusal is not None else capture.state if capture is not None else None,
        "first_batch": None if capture is None else capture.first_batch,
        "last_batch": None if capture is None else capture.last_batch,
        "late_batches": 0 if capture is None else capture.late_batches,
        "note": refusal or view.lost or (None if capture is None else capture.note),
        "files": [] if capture is None else list(capture.files),
    }


def _result_lines(results: dict[int, dict[str, Any]]) -> list[str]:
    """Return what became of the ranks, those with the same result in one line."""
    alike: dict[str, list[int]] = {}
    for rank, result in results.items():
        alike.setdefault(_result_line(result), []).append(rank)
    return [f"{_named(ranks)}: {line}" for line, ranks in alike.items()]


def _result_line(result: dict[str, Any]) -> str:
    first, last = result["first_batch"], result["last_batch"]
    if result["state"] is None:
        return result["note"] or "has not answered"
    parts = [result["state"]]
    if result["state"] == CaptureState.DONE:
        parts = [f"batch {first}" if first == last else f"batches {first} to {last}"]
    elif first is not None:
        parts.append(f"from batch {first} on")
    if result["late_batches"]:
        parts.append(f"{_count(result['late_batches'], 'batch', 'batches')} late")
    if result["note"]:
        parts.append(result["note"])
    return ", ".join(parts)


def _merge(args: argparse.Namespace, files: list[str], document: dict[str, Any]) -> bool:
    from tracekit.merge import merge_traces

    there = _that_are_there(files, args.timeout)
    document["missing"] = [file for file in files if file not in there]
    for file in document["missing"]:
        print(
            printable(f"tracekit capture: {file}: cannot be seen from here; merge it where it can", sys.stderr),
            file=sys.stderr,
        )
    if not there:
        return False
    report = merge_traces(args.output, there, overwrite=args.force)
    document["merged"] = args.output
    document["merge"] = report.to_json()
    if not (args.json or args.quiet):
        for line in report.lines():
            print(printable(line))
    return report.complete and not document["missing"]


def _that_are_there(files: list[str], timeout_s: float) -> list[str]:
    """Return the files that exist, after a while for what is being uploaded."""
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
    shown = files if args.quiet else files[:_MOST_LISTED]
    for file in shown:
        print(printable(file))
    if len(shown) < len(files):
        print(f"... and {len(files) - len(shown)} more (--json lists all)")
    elif files and not args.quiet:
        names = " ".join(shlex.quote(file) for file in files)
        print(printable(f"merge them: tracekit merge -o merged.json.gz {names}"))


def _show_status(folder: ControlFolder, *, as_json: bool) -> int:
    rows = []
    for rank, status in sorted(folder.statuses().items()):
        gone = not status.listening or is_gone(status)
        capture = status.capture
        rows.append(
            {
                "rank": rank,
                "world_size": status.world_size,
                "run_id": status.run_id,
                "host": status.host,
                "pid": status.pid,
                "attempt": status.attempt,
                "listening": not gone,
                "batch": status.batch,
                "state": None if capture is None else capture.state,
                "first_batch": None if capture is None else capture.first_batch,
                "last_batch": None if capture is None else capture.last_batch,
                "files": [] if capture is None else list(capture.files),
            }
        )
    if as_json:
        print(json.dumps({"folder": str(folder.path), "ranks": rows}, indent=2))
    else:
        for row in rows:
            life = "listens" if row["listening"] else "has ended"
            last = "no capture yet" if row["state"] is None else f"capture {row['state']}"
            if row["first_batch"] is not None:
                until = "" if row["last_batch"] is None else f" to {row['last_batch']}"
                last += f" (from batch {row['first_batch']}{until})"
            print(
                printable(
                    f"rank {row['rank']} of {row['world_size']} on {row['host']}, pid {row['pid']}: {life}; {last}"
                )
            )
    return OK if any(row["listening"] for row in rows) else FAILED


def _named(ranks: Iterable[int]) -> str:
    """Return "rank 3", or "ranks 0-7, 9"."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


def _count(number: int, word: str, words: str | None = None) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {words or word + 's'}"
