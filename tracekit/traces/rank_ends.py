"""Wait for the end of a run: for the end records of its rank traces, and for their companion traces."""

from __future__ import annotations

import os
import posixpath
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, StorageError, TracekitError
from tracekit.formats.json.reader import decode
from tracekit.formats.rank_trace import COMPANION_EVENT, SUMMARY_EVENT
from tracekit.formats.trace_event import decode_dict, raw_field
from tracekit.storage import exists, expand, is_remote, open_read, without_secrets
from tracekit.structs import Struct, field
from tracekit.traces.collectives.search import find_events
from tracekit.traces.rank_head import HEAD_BYTES, Head, read_head
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MIN_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0
_HEAD_BYTES: Final = 8 * HEAD_BYTES
_TAIL_BYTES: Final = 64 << 10
_COMPANION: Final = f'"{COMPANION_EVENT}"'.encode()
_SUMMARY: Final = f'"{SUMMARY_EVENT}"'.encode()
_MAX_NAMED: Final = 5


class _RankFile(Struct):
    """A rank trace as it was read last."""

    # Size and modification time of a local file that can grow; None for other files.
    state: tuple[int, int] | None
    head: Head | None = None  # None if the file is not a rank trace
    ended: bool = False  # by an end record
    closed: bool = False  # also if it was written at once
    companions: list[str] | None = None  # None until they are read


class RankEnds(Struct):
    """The existing and the missing traces of a run."""

    traces: list[str] = field(default_factory=list)
    without_trace: list[int] = field(default_factory=list)
    without_end: list[int] = field(default_factory=list)
    without_companion: list[tuple[int, str]] = field(default_factory=list)  # rank and path

    @property
    def complete(self) -> bool:
        """True if nothing is missing."""
        return not (self.without_trace or self.without_end or self.without_companion)

    def missing(self) -> list[str]:
        """Return a sentence for each kind of missing trace."""
        found = [
            f"{rank_spans(ranks, most=_MAX_NAMED)} {'has' if len(ranks) == 1 else 'have'} no {what}"
            for ranks, what in ((self.without_trace, "rank trace"), (self.without_end, "end record in the rank trace"))
            if ranks
        ]
        found += [f"rank {rank} names {name}, which is not there" for rank, name in self.without_companion[:_MAX_NAMED]]
        if (more := len(self.without_companion) - _MAX_NAMED) > 0:
            found.append(
                f"{counted(more, 'more trace')} that rank traces name {'is' if more == 1 else 'are'} not there"
            )
        return found


def wait_for_ranks(
    patterns: Sequence[str],
    world_size: int,
    timeout_s: float,
    *,
    run_id: str | None = None,
    window: bool = False,
    report: Callable[[RankEnds], None] | None = None,
) -> RankEnds:
    """Wait until ranks 0 to ``world_size - 1`` have ended and their companion traces exist, or for the timeout.

    The patterns are files, folders, globs or URLs of the rank traces of one run; those of other runs than ``run_id`` are
    ignored. A rank has ended when a file of its newest attempt has an end record, or if all files belong to one recording
    ``window`` or are dumps of a flight recorder, when its files are closed. ``report`` is called once with the state before
    waiting.

    Raises:
        ConfigError: The files are of several runs, and ``run_id`` is None.
        StorageError: The storage cannot be reached at the timeout, and nothing was found before.
    """
    files, pause_s = _Files(patterns, run_id, window=window), _MIN_PAUSE_S
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = deadline_s - time.monotonic()
        found = files.look(world_size, last=left_s <= 0)
        if found.complete or left_s <= 0:
            if not found.traces and files.error is not None:
                raise files.error
            return found
        if report is not None:
            report(found)
            report = None
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


class _Files:
    """The rank traces of a run. Each look reads only files that have changed since the last one."""

    def __init__(self, patterns: Sequence[str], run_id: str | None, *, window: bool) -> None:
        self._patterns = patterns
        self._run_id = run_id
        self._window = window
        self._files: dict[str, _RankFile] = {}
        self._there: set[str] = set()  # companions
        self.error: StorageError | None = None  # of the last look

    def look(self, world_size: int, *, last: bool) -> RankEnds:
        """Return the existing and the missing traces; the last time also the companions of files that are not closed."""
        self._refresh()
        mine = [
            (path, file, file.head)
            for path, file in self._files.items()
            if file.head is not None and self._run_id in (None, file.head.run_id)
        ]
        recorded = [one for one in mine if not one[2].dump]  # a dump repeats them
        is_whole = self._window or not recorded  # each file is written at once
        mine = recorded or mine
        runs = {head.run_id for _, _, head in mine}
        if len(runs) > 1:
            raise ConfigError(f"the rank traces are of several runs; name one with --run: {', '.join(sorted(runs))}")
        attempt = max((head.attempt for _, _, head in mine), default=0)
        newest: dict[int, list[_RankFile]] = {rank: [] for rank in range(world_size)}
        for _, file, head in mine:
            if head.attempt == attempt and not head.child and head.rank in newest:
                newest[head.rank].append(file)
        found = RankEnds(traces=[path for path, _, _ in mine])
        for rank, files in newest.items():
            if not files:
                found.without_trace.append(rank)
            elif not any(file.ended for file in files) and not (is_whole and all(file.closed for file in files)):
                found.without_end.append(rank)
        for path, file, head in mine:
            if last or file.closed:
                self._add_companions(found, path, file, head.rank)
        return found

    def _add_companions(self, found: RankEnds, path: str, file: _RankFile, rank: int) -> None:
        if file.companions is None:
            file.companions = _read(path)[0]
        for companion in dict.fromkeys(file.companions):
            with suppress(StorageError, OSError, ValueError):
                if companion not in self._there and exists(companion):
                    self._there.add(companion)
            if companion in self._there:
                found.traces.append(companion)
            else:
                found.without_companion.append((rank, without_secrets(companion)))

    def _refresh(self) -> None:
        paths = set(self._expanded())
        files = {}
        # The writer removes a plain file after it has packed it.
        for path in sorted(path for path in paths if f"{path}.gz" not in paths):
            state, known = _state(path), self._files.get(path)
            files[path] = _examined(path, state) if known is None or known.state != state else known
        self._files = files

    def _expanded(self) -> Iterator[str]:
        self.error = None
        for pattern in self._patterns:
            # A name that ends with .gz is written plain until it is complete.
            for one in dict.fromkeys((pattern, pattern.removesuffix(".gz"))):
                try:
                    yield from expand(one, (".json", ".json.gz"))
                except StorageError as error:  # no file yet, or a failing storage
                    self.error = error


def _state(path: str) -> tuple[int, int] | None:
    """Return size and modification time of a local plain file; None for packed files and objects, which do not grow."""
    if is_remote(path) or path.endswith(".gz"):
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - of thousands, at each look
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _examined(path: str, state: tuple[int, int] | None) -> _RankFile:
    """Read the head and the end of a file that can grow, and all of any other file."""
    file = _RankFile(state, closed=state is None)
    with suppress(StorageError, OSError), open_read(path) as stream:
        head = read_head(stream.read(_HEAD_BYTES), packed=path.endswith(".gz"))
        file.head = head if isinstance(head, Head) else None
        if file.head is not None and state is not None:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = stream.read().splitlines()
            file.closed = bool(lines) and lines[-1] == b"]"
            last = decode(next((line for line in reversed(lines) if line not in (b"", b"]")), b"").rstrip(b","))
            file.ended = last is not None and raw_field(last.name) == _SUMMARY
    if file.head is not None and state is None:
        file.companions, file.ended = _read(path)
    return file


def _read(path: str) -> tuple[list[str], bool]:
    """Return the companion traces of a file, as far as it can be read, and True if it has an end record."""
    companions: list[str] = []
    ended = False
    with suppress(TracekitError, OSError):
        for event in find_events(path, (_COMPANION, _SUMMARY)):
            if event.ph == "M" and raw_field(event.name) == _COMPANION:
                companions += _companion(path, decode_dict(event.args))
            elif event.ph == "M":
                ended = True
    return companions, ended


def _companion(path: str, args: dict[str, Any]) -> list[str]:
    """Return the path of the companion trace in a record of a file, or nothing for an invalid one."""
    if not isinstance(name := args.get("path", args.get("file")), str):
        return []
    if "\0" in name or (is_remote(name) and not is_remote(path)):
        return []
    if is_remote(name) or Path(name).is_absolute():
        return [name]
    if not is_remote(path):
        return [os.path.normpath(Path(path).resolve().parent / name)]
    scheme, _, inner = path.partition("://")
    return [f"{scheme}://{posixpath.normpath(posixpath.join(posixpath.dirname(inner), name))}"]
