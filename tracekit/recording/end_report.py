"""Report the recorded files, and the command that opens them, at the end of a run."""

from __future__ import annotations

import glob
import logging
import os
import sys
from typing import TYPE_CHECKING

from tracekit.arguments import is_set
from tracekit.naming import safe_text
from tracekit.storage import common_folder, shell_word, without_secrets
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.distributed import ProcessInfo
    from tracekit.handlers.base import Summary, TraceHandler

logger = logging.getLogger("tracekit")


def report_end(process: ProcessInfo, handlers: Sequence[TraceHandler], summary: Summary) -> None:
    """Log files, events, losses and the next command; print them to standard error if no log handler is configured.

    Only on rank 0, not in children, and if files were written. ``TRACEKIT_QUIET=1`` turns it off. Never raises.
    """
    try:
        if process.rank or process.parent_pid is not None or is_set("TRACEKIT_QUIET"):
            return
        line = _line(process, handlers, summary)
        if line is None:
            return
        if _has_log_handler():
            logger.info("%s", line)
        elif sys.stderr is not None:
            encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
            sys.stderr.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
            sys.stderr.flush()
    except Exception:
        logger.debug("tracekit: the report at the end of the run failed", exc_info=True)


def _line(process: ProcessInfo, handlers: Sequence[TraceHandler], summary: Summary) -> str | None:
    written = [handler for handler in handlers if getattr(handler, "paths", None)]
    paths = [path for handler in written for path in handler.paths]  # type: ignore[attr-defined]
    if not paths:
        return None
    # The file names of other ranks and of other kinds of files show the folder of the run.
    others = [name for handler in written for name in getattr(handler, "other_names", ())]
    who = f"rank 0 of {process.world_size} " if process.world_size > 1 else ""
    events = counted(summary.slices + summary.instants + summary.counters, "event")
    lost = "; ".join(f"LOST: {count:,} {reason}" for reason, count in summary.dropped.items()) or "nothing lost"
    failures = sum(summary.failures.values())
    failed = f", {counted(failures, 'failure')}" if failures else ""
    what = without_secrets(paths[0]) if len(paths) == 1 else counted(len(paths), "file")
    merged = next(filter(None, (getattr(handler, "merged_path", None) for handler in written)), None)
    then = f"Next: {_command(process, paths, others)}"
    if merged is not None:
        then = f"Merging into {merged}. Next: tracekit open {shell_word(merged)}"
    return f"tracekit: {who}wrote {what}: {events}, {lost}{failed}. {then}"


def _command(process: ProcessInfo, paths: list[str], others: list[str]) -> str:
    if process.world_size == 1 and len(paths) == 1 and not others:
        return f"tracekit open {shell_word(paths[0])}"
    names = [*paths, *others]
    folder = common_folder(names)
    run_id = safe_text(process.run_id)
    if folder and (run_id in folder or run_id not in names[0]):
        return f"tracekit merge -o merged.json.gz {shell_word(folder)}"
    # The folder also contains files of other runs, or is the current folder.
    prefix = os.path.commonprefix(names)  # noqa: RUF071 - also a part of a name
    if prefix.rpartition("/")[2] and len({name.rpartition("/")[0] for name in names}) == 1:
        return f"tracekit merge -o merged.json.gz {shell_word(glob.escape(prefix) + '*')}"
    named = names if process.world_size == 1 else [folder or "."]
    return f"tracekit merge -o merged.json.gz {' '.join(map(shell_word, named))}"


def _has_log_handler() -> bool:
    """Return True if the application has configured logging. Its levels then decide."""
    found: logging.Logger | None = logger
    while found is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in found.handlers):
            return True
        found = found.parent if found.propagate else None
    return False
