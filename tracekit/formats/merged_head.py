"""The metadata of a merged trace, among them the clocks of the ranks, and their losses, which rank traces state too.

The merge decisions, such as the numbering of pids and the clocks, come before the events. The names of a rank, and the
facts for a further merge, come after its events. Traces merged before format version 2 have all metadata before the
events, with one to several kB per input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit.formats.decimal_time import format_us
from tracekit.formats.rank_trace import DUMP_EVENT, GAP_EVENT, LOSS_EVENT, LOST_EVENTS_KEY, SUMMARY_EVENT
from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.formats.trace_event import UNSET, Raw, args_depth, decode_dict, decode_or_none, encode_json
from tracekit.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tracekit.formats.trace_event import Event

MAX_HEAD_BYTES: Final = 64 * 1024 * 1024  # maximum size of a head that is read
MERGED_KEY: Final = "tracekit"  # the key of the object form with most of the metadata
PROCESS_EVENT: Final = "tracekit_process"  # the same: the identity of a process and its threads before the merge
INPUT_EVENT: Final = "tracekit_input"  # metadata after the events of a rank: the header of an input
END_EVENT: Final = "tracekit_merge_end"  # the last event
TABLE_EVENTS: Final = frozenset({PROCESS_EVENT, INPUT_EVENT, END_EVENT})  # metadata that each merge writes again
TOTALS_KEY: Final = "tracekitTotals"  # the key after the events with the totals over all events
MAX_VALUE_BYTES: Final = 4096  # maximum JSON size of a header value of an input that a merged trace keeps
MAX_KEYS: Final = 64  # maximum number of such values
# Keys of Kineto's header: what torch says about the distributed run, and the devices.
DISTRIBUTED_KEY: Final = "distributedInfo"
DEVICES_KEY: Final = "deviceProperties"
_MAX_LEVELS: Final = 400
_MAX_RANKS: Final = 1_000_000
# Keys that the merged trace has in another form.
_MERGED_KEYS: Final = frozenset(
    {"traceEvents", DEVICES_KEY, "displayTimeUnit", "schemaVersion", "tracekit", STACK_FRAMES}
)


class RankOfPid(Mapping[Any, int]):
    """The ranks of pids that are numbered ``rank * stride + 1, + 2 ...``; iterating yields one pid of each rank.

    Args:
        ranks: The ranks, as (first, last) of each range.
    """

    __slots__ = ("_ranks", "stride")

    def __init__(self, stride: int, ranks: Sequence[tuple[int, int]]) -> None:
        self.stride = stride
        self._ranks = ranks

    def __getitem__(self, pid: Any) -> int:
        if type(pid) is int:
            rank = pid // self.stride
            if any(first <= rank <= last for first, last in self._ranks):
                return rank
        raise KeyError(pid)

    def __iter__(self) -> Iterator[int]:
        return (rank * self.stride + 1 for first, last in self._ranks for rank in range(first, last + 1))

    def __len__(self) -> int:
        return sum(last + 1 - first for first, last in self._ranks)


def merge_decisions(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge decisions in the header of a merged trace; empty if they are damaged."""
    own = header.get(MERGED_KEY)
    merge = own.get("merge") if isinstance(own, dict) else None
    return merge if isinstance(merge, dict) else {}


def merged_ranks(header: Mapping[str, Any]) -> Mapping[Any, int] | None:
    """Return the rank of each pid of a merged trace, as far as its header contains it; None for any other trace."""
    own = header.get(MERGED_KEY)
    if not isinstance(own, dict) or own.keys().isdisjoint(("merge", "processes")):
        return None
    merge = merge_decisions(header)
    if "pid_stride" in merge:
        stride, rows = merge["pid_stride"], merge.get("ranks")
        if type(stride) is not int or stride < 1 or not isinstance(rows, list):
            return {}
        ranks = [
            (row[0], row[1])
            for row in rows
            if isinstance(row, list)
            and len(row) == 2
            and all(type(end) is int for end in row)
            and 0 <= row[0] <= row[1]
        ]
        # Readers take each rank into account: a damaged row must not make that endless.
        is_usable = sum(last + 1 - first for first, last in ranks) <= _MAX_RANKS
        return RankOfPid(stride, ranks) if is_usable else {}
    table = own.get("processes")
    return {
        entry["pid"]: entry["rank"]
        for entry in (table if isinstance(table, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("pid"), int) and isinstance(entry.get("rank"), int)
    }


def truncate_header(header: Mapping[str, Any], metadata: Mapping[str, Any]) -> tuple[bytes, bytes, list[str]]:
    """Return the parts of an input's header and metadata that a merged trace keeps, as JSON, and the other keys of the header.

    Long values are dropped: a log, a whole configuration or the process groups of thousands of ranks would make the
    head too large for readers. Of a ``distributedInfo`` that is too long, the short values are kept.

    Raises:
        RecursionError: A value is nested too deeply.
    """
    kept: dict[str, Raw] = {}
    left: list[str] = []
    for key, value in header.items():
        if key in _MERGED_KEYS:
            continue
        text, long = _shallow(value), []
        if key == DISTRIBUTED_KEY and isinstance(value, dict) and len(text) > MAX_VALUE_BYTES:
            items = {name: encode_json(item) for name, item in value.items()}
            long = [f"{key}.{name}" for name, item in items.items() if len(item) > MAX_VALUE_BYTES]
            text = encode_json({name: Raw(item) for name, item in items.items() if len(item) <= MAX_VALUE_BYTES})
        if len(kept) < MAX_KEYS and len(text) <= MAX_VALUE_BYTES:
            kept[key] = Raw(text)
            left += long
        else:
            left.append(key)
    return encode_json(kept), _shallow(metadata), left


def _shallow(value: Any) -> bytes:
    """Encode a value that a further merge can read; raise RecursionError for another."""
    text = encode_json(value)
    if len(text) > 2 * _MAX_LEVELS and args_depth(text, _MAX_LEVELS) > _MAX_LEVELS:
        raise RecursionError
    return text


CLOCK_CATEGORY: Final = "clock"
_SHOWN: Final = {"source": "method", "words": "description"}  # in the arguments of the event


class RankClock(NamedTuple):
    """The clock of a rank.

    The source is the method of its alignment: "reference" (the merged trace uses its clock), "shared" (it has the clock of
    the reference: same host and boot), "sync", "collectives", "earlier_merge", "by_hand", "wall", "none" or "unknown".
    """

    rank: int
    source: str
    aligned: bool  # its times are on the clock of the reference, or no alignment was requested
    offset_ns: int = 0  # added to its times, at its first event
    drift_ppm: float = 0.0  # growth of the offset in µs per second
    error_ns: int | None = None  # maximum anywhere in its traces, or None if unknown
    words: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the clock as JSON-ready values."""
        return self._asdict()


def stated_clock(value: Any) -> RankClock | None:
    """Return a clock from the header of a merged trace, or None if it is invalid."""
    try:
        clock = RankClock(**value)
        numbers = (clock.rank, clock.offset_ns, 0 if clock.error_ns is None else clock.error_ns)
        if (
            not all(type(number) is int and abs(number) < 2**62 for number in numbers)
            or type(clock.aligned) is not bool
            or (clock.error_ns or 0) < 0
            or not math.isfinite(drift_ppm := float(clock.drift_ppm))
        ):
            return None
        return clock._replace(drift_ppm=drift_ppm, words=str(clock.words), source=str(clock.source))
    except (OverflowError, TypeError, ValueError):
        return None


def stated_ranks(header: dict[str, Any]) -> list[RankClock]:
    """Return the valid clocks of ranks in the header of a merged trace."""
    clocks = header.get("tracekit", {}).get("clocks")
    found = clocks.get("ranks") if isinstance(clocks, dict) else None
    return [clock for clock in map(stated_clock, found) if clock is not None] if isinstance(found, list) else []


def clock_instant(clock: RankClock, pid: int, tid: int | Raw, time_ns: int) -> dict[str, Any]:
    """Return an instant that shows the clock in a row of its process, at a time of the merged trace. JSON-ready."""
    args = {_SHOWN.get(name, name): value for name, value in clock.to_json().items()}
    args["error_ns"] = "unknown" if clock.error_ns is None else clock.error_ns
    # Few different names for thousands of ranks. An async instant has a separate row; an instant of the process has a row
    # with the name of the process. The id has the spaces of a merge, so that another merge does not change it.
    name = f"clock: {clock.source}" if clock.aligned else "clock: NOT ALIGNED"
    place = {
        "pid": pid,
        "tid": tid,
        "ts": Raw(format_us(time_ns)),
        "id2": Raw(b'{"local": "%b"}' % CLOCK_CATEGORY.encode()),
    }
    return {"ph": "n", "cat": CLOCK_CATEGORY, "name": name, **place, "args": args}


ACCOUNTS: Final = frozenset({SUMMARY_EVENT, LOSS_EVENT, DUMP_EVENT})  # metadata events about the losses of a file
DROPPED: Final = "dropped"  # events are missing
FAILED: Final = "failed"  # a handler, a source or the schedule failed
CUT: Final = "cut"  # the recording did not end: its process was killed or is still running

GAP_NAME: Final = f'"{GAP_EVENT}"'.encode()  # the name of a gap as JSON
_UNWRITTEN: Final = "events that could not be written, at least"
_NO_SUMMARY: Final = "the file ends without its summary"


class RecordingLoss(Struct, frozen=True):
    """A loss of a rank during its recording."""

    rank: int
    path: str  # of the file that states it
    kind: str  # `DROPPED`, `FAILED` or `CUT`
    reason: str  # in the words of the file
    count: int | None  # of events or failures, or None if unknown


class Accounts(Struct):
    """The statements of one file about its losses."""

    summary: dict[str, Any] | None = None  # the args of its summary
    lost_events: int = 0  # that could not be written
    gap_events: int = 0  # the same number from the gaps in the file; may include losses before the file
    is_dump: bool = False  # of a flight recorder, which has no summary

    def note(self, name: str, args: dict[str, Any]) -> None:
        """Add one of the metadata events `ACCOUNTS`."""
        if name == SUMMARY_EVENT:
            self.summary = args
        elif name == LOSS_EVENT:
            self.lost_events += _count(args.get(LOST_EVENTS_KEY))
        else:
            self.is_dump = True

    def take(self, run: Sequence[Event]) -> None:
        """Add the loss statements in a run of events."""
        for event in run:
            if event.ph == "i":
                self.note_instant(event)
            elif event.ph == "M":
                name = decode_or_none(event.name)
                if isinstance(name, str) and name in ACCOUNTS and isinstance(args := decode_or_none(event.args), dict):
                    self.note(name, args)

    def note_instant(self, event: Event) -> None:
        """Add an instant if it is a gap."""
        if event.name is not UNSET and bytes(event.name) == GAP_NAME:
            self.gap_events += _count(decode_dict(event.args).get(LOST_EVENTS_KEY))


class RecordedFile(NamedTuple):
    """A file of a recording."""

    path: str
    start_ns: int  # of its first event; 0 without events
    cut: bool  # without a closing bracket
    accounts: Accounts


def losses_of_process(rank: int, files: Sequence[RecordedFile]) -> list[RecordingLoss]:
    """Return the losses of a process during its recording, as its files state them.

    The summary of a recording covers all of its files. Without a summary, the counts in the files are a lower bound. Do
    not pass dumps of a flight recorder: they are not recordings.
    """
    summaries = [(file.path, file.accounts.summary) for file in files if file.accounts.summary is not None]
    if summaries:
        return [
            RecordingLoss(rank, path, kind, reason, count)
            for path, summary in summaries
            for key, kind in (("dropped", DROPPED), ("failures", FAILED))
            if isinstance(counts := summary.get(key), dict)
            for reason, count in counts.items()
            if _count(count)
        ]
    found = [
        RecordingLoss(rank, file.path, DROPPED, _UNWRITTEN, lost)
        for file in files
        if (lost := max(file.accounts.lost_events, file.accounts.gap_events))
    ]
    last = max(files, key=lambda file: (file.start_ns, file.path))
    # A complete file has its closing bracket. Only the last file of a recording has a summary.
    if last.cut:
        found.append(RecordingLoss(rank, last.path, CUT, _NO_SUMMARY, None))
    return found


def stated_losses(header: dict[str, Any], ranks: Collection[int]) -> list[RecordingLoss]:
    """Return the losses of the given ranks that a merged trace states."""
    found = []
    totals = header.get(TOTALS_KEY, header[MERGED_KEY])  # before format version 2, the totals were in the head
    own = totals.get("losses") if isinstance(totals, dict) else None
    for entry in own if isinstance(own, list) else []:
        if not isinstance(entry, dict):
            continue
        rank, count = entry.get("rank"), entry.get("count")
        file, kind, reason = (str(entry.get(key)) for key in ("file", "kind", "reason"))
        if isinstance(rank, int) and rank in ranks and kind in (DROPPED, FAILED, CUT):
            found.append(RecordingLoss(rank, file, kind, reason, _count(count) or None))
    return found


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
