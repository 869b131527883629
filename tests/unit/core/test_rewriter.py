"""The compiled pass of the merge: events in, rewritten events and patches out, compared with what plain Python makes of them."""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import both_cores
from tests.both_cores import assert_same, merged, pure, small_pieces
from tracekit import core
from tracekit.formats.decimal_time import format_us
from tracekit.merge import engine
from tracekit.merge.align.domains import ClockMap
from tracekit.merge.align.placement import Placement, place
from tracekit.merge.rewrite.rewriter import Rewriter
from tracekit.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

if core.merge is None:
    pytest.skip("the compiled core is not built here", allow_module_level=True)

MORE, ODD, NEW, AT_END = range(4)
LANES_FROM = 3 * 2**30
LIMITS = -(2**62), 2**61


class Unit:
    """Drives a rewriter as the merge does, with one log for each track and new ids in the order of appearance.

    Args:
        odd: True to accept events that need the general way, and leave them out.
    """

    def __init__(self, *, odd: bool = False, snap_ns: int = 0, log_bytes: int = 32 << 20, folder: str = "/tmp") -> None:
        self.rewriter: Any = core.merge.Rewriter(b'"nccl', folder, snap_ns, log_bytes)  # type: ignore[union-attr]
        self.odd: list[Any] = []
        self.takes_odd = odd
        self.pids: dict[bytes, int] = {}
        self.logs: dict[tuple[bytes, bytes], int] = {}
        self.categories: list[bytes] = []
        self.output = b""
        self.lanes: list[tuple[int, int]] = []

    def add(self, pieces: list[bytes], *settings: Any) -> Unit:
        """Rewrite one input; ``settings`` are those of `begin`, from the shift on."""
        defaults = [0, *LIMITS, 0, True, 0, b"", ()]
        defaults[: len(settings)] = settings
        rewriter = self.rewriter
        rewriter.begin(*defaults)
        waiting = list(pieces)
        text = waiting.pop(0)
        at, final = 0, False
        while True:
            reason, at = rewriter.rewrite(text, at, final)
            if reason == MORE:
                self.output += rewriter.take()
                if not waiting and final:
                    break
                final = not waiting
                text, at = text[at:] + (waiting.pop(0) if waiting else b""), 0
            elif reason == NEW:
                self._add_track(*rewriter.new_track())
            elif reason == AT_END:
                break
            else:
                assert self.takes_odd, text[at : at + 200]
                found, size = json.JSONDecoder().raw_decode(text[at:].decode())
                self.odd.append(found)
                rewriter.append(b"")
                at += size
        self.output += rewriter.take()
        return self

    def _add_track(self, pid: bytes, tid: bytes, category: bytes) -> None:
        log = self.logs.setdefault((pid, tid), len(self.logs))
        number = int(tid) if tid.isdigit() and tid != b"0" else LANES_FROM + log
        new_pid = self.pids.setdefault(pid, 1001 + len(self.pids))
        self.categories.append(category)
        self.rewriter.add_track(pid, tid, new_pid, number, log)

    def finish(self) -> tuple[int, int, int, int]:
        found: tuple[int, int, int, int] = self.rewriter.finish(self._allot, lambda log: True)
        return found

    def _allot(self, log: int, lane: int) -> int:
        self.lanes.append((log, lane))
        return LANES_FROM + 1000 + len(self.lanes)

    def patched(self) -> list[Any]:
        """Return the events with all patches laid over them."""
        return decoded(self.rewriter.lay(self.output, 0))


def decoded(text: bytes) -> list[Any]:
    found: list[Any] = json.loads(b"[" + text + b"0]", parse_float=str)
    return found[:-1]


def written(event: dict[str, Any]) -> str:
    """An event as JSON; ``ts`` and ``dur`` are ns."""
    event = dict(event)
    times = {key: format_us(event[key]).decode() for key in ("ts", "dur") if key in event}
    return "{" + ",".join(f'"{key}":{times.get(key) or json.dumps(value)}' for key, value in event.items()) + "}"


def array(events: list[Any]) -> bytes:
    return (",".join(map(written, events)) + "\n]").encode()


TRACK = {"pid": 5, "tid": 7}


def slice_of(start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "a", **TRACK, "ts": start, "dur": end - start, **more}


CLOCK = ClockMap(((0, 50), (30_000, 2_040), (60_000, -3)))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**64), st.sampled_from([300, 5_000]), st.booleans())
def test_rewriter_makes_of_files_of_one_rank_what_python_does(seed: int, piece_bytes: int, drifts: bool) -> None:
    """`tests.property.test_core_properties` merges files of several ranks, without a drift."""

    def place_with_drift(items: Any, **options: Any) -> Placement:
        placed = place(items, **options)
        return replace(placed, warps=[CLOCK if drifts else None for _ in items])

    source = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as name,
        small_pieces(piece_bytes),
        mock.patch.object(engine, "place", place_with_drift),
    ):
        paths = [Path(name) / f"{number}.json" for number in range(2)]
        for path in paths:
            path.write_bytes(both_cores.trace(source))
        output, args = Path(name) / "merged.json", source.choice(["all", "ids", "none"])
        found = merged(paths, output, ranks=[1, 1], args=args)
        with pure():
            assert_same(found, merged(paths, output, ranks=[1, 1], args=args))


def in_python(events: list[dict[str, Any]], snap_ns: int) -> tuple[list[Any], tuple[int, ...]]:
    """Return the patched events, and the counts, of Python's rewriter."""
    rewriter = Rewriter(snap_ns=snap_ns)
    for event in events:
        text = written(event).replace('"pid":5,"tid":7', '"pid":1001,"tid":7         ').encode()
        label = rewriter.label(json.dumps(event["name"]).encode(), json.dumps(event["cat"]).encode())
        end_ns = event["ts"] + event.get("dur", 0)
        dur_at = text.index(b'"dur":') + 6 if event["ph"] == "X" else 0
        place = text.index(b"7  "), label, dur_at, 5 if dur_at else 0
        rewriter.append(text, 0, ord(event["ph"]), event["ts"], end_ns, *place)
    output = rewriter.take()
    counts = rewriter.finish(lambda log, lane: LANES_FROM + 1000 + lane, lambda log: True)
    return decoded(rewriter.lay(output, 0)), counts


def lane_of(event: dict[str, Any], unit: Unit) -> int:
    return 0 if event["tid"] == TRACK["tid"] else unit.lanes[event["tid"] - LANES_FROM - 1001][1]


@st.composite
def slice_events(draw: st.DrawFn) -> dict[str, Any]:
    phase = draw(st.sampled_from("XXXBEs"))
    event = {"ph": phase, "name": draw(st.sampled_from("aab")), "cat": draw(st.sampled_from(["", "c"])), "id": 1}
    event |= {**TRACK, "ts": 1000 + draw(st.integers(0, 20))}
    if phase == "X":
        event["dur"] = draw(st.integers(0, 8))
    if phase == "E" and draw(st.booleans()):
        event["name"] = ""
    return event


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(slice_events(), max_size=40),
    st.booleans(),
    st.sampled_from([0, 100, 32 << 20]),
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([None, 1, 7, 1000]),
)
def test_rewriter_assigns_the_lanes_that_python_does(
    events: list[dict[str, Any]], in_order: bool, log_bytes: int, snap_ns: int, size: int | None
) -> None:
    if in_order:
        events = sorted(events, key=lambda event: event["ts"])
    unit = Unit(log_bytes=log_bytes, snap_ns=snap_ns).add([array(events)])
    counts = unit.finish()
    wanted = in_python(events, snap_ns)
    if size is None:
        assert (unit.patched(), counts) == wanted
    else:
        pieces = [unit.rewriter.lay(unit.output[at : at + size], at) for at in range(0, len(unit.output), size)]
        assert (decoded(b"".join(pieces)), counts) == wanted
    moved, _, shortened, _ = counts
    assert moved or shortened or not unit.rewriter.overlaps()
    assert unit.lanes == sorted(unit.lanes)


@pytest.mark.parametrize(
    ("slices", "known"),
    [
        ([(10, 30), (10, 20), (20, 30)], False),
        ([(10, 20), (15, 25)], True),
        ([(10, 20), (10, 30)], False),  # in the order of starts, the longer one comes first and encloses the other
        ([(15, 25), (10, 20)], False),  # only `finish` puts them in order
    ],
)
def test_rewriter_knows_early_that_slices_in_order_overlap(slices: list[tuple[int, int]], known: bool) -> None:
    unit = Unit().add([array([slice_of(start, end) for start, end in slices])])
    assert unit.rewriter.overlaps() == known


def test_rewriter_needs_n_log_n_steps_for_many_lanes() -> None:
    count = 20_000
    events = [slice_of(number, number + count) for number in range(count)]
    unit = Unit().add([array(events)])
    assert unit.finish()[0] == count - 1
    assert [lane_of(event, unit) for event in unit.patched()] == list(range(count))


def reasons(text: bytes, *, final: bool = True) -> list[tuple[int, bytes]]:
    """Return each reason for which it stops, with the remaining text; skip odd events."""
    rewriter: Any = core.merge.Rewriter(b'"none', "/tmp")  # type: ignore[union-attr]
    rewriter.begin(0, *LIMITS, 0, True, 0, b"", ())
    rewriter.add_track(b"5", b"7", 1001, 7, 0)
    found = []
    at = 0
    while True:
        reason, at = rewriter.rewrite(text, at, final)
        found.append((reason, text[at:]))
        if reason != ODD or len(found) > 5:
            return found


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("EVENT]", [(AT_END, "]")]),
        (" EVENT , EVENT ] , more", [(AT_END, "] , more")]),
        ("EVENT,]", [(ODD, "]"), (AT_END, "]")]),
        ("EVENT EVENT]", [(ODD, "EVENT]"), (AT_END, "]")]),
        ("EVENT,,EVENT]", [(ODD, ",EVENT]"), (AT_END, "]")]),
        ("EVENT,", [(MORE, "")]),
        ("", [(MORE, "")]),
    ],
)
def test_rewriter_stops_where_separators_are_damaged(text: str, stops: list[tuple[int, str]]) -> None:
    event = written(slice_of(1, 2))
    expected = [(reason, rest.replace("EVENT", event).encode()) for reason, rest in stops]
    assert reasons(text.replace("EVENT", event).encode()) == expected


def test_rewriter_asks_for_more_in_an_event_and_gives_it_up_at_the_end() -> None:
    text = written(slice_of(1, 2)).encode()
    for size in range(1, len(text)):
        assert reasons(text[:size], final=False)[0] == (MORE, text[:size])
        assert reasons(text[:size])[0] == (ODD, text[:size])


def test_rewriter_keeps_metadata_for_the_caller() -> None:
    named = [{"ph": "M", "name": name, "pid": 5, "args": {"name": "n"}} for name in ("process_name", "thread_name")]
    stamp = {"ph": "M", "name": "tracekit_timestamp", **TRACK, "ts": 5, "args": {"batch": 1}}
    unit = Unit(odd=True).add([array([*named, stamp, slice_of(1, 2), stamp])])
    assert json.loads(b"[%b]" % unit.rewriter.metadata()) == named
    assert unit.rewriter.metadata() == b""
    # Its track is not known at first.
    assert [event["name"] for event in unit.odd] == ["tracekit_timestamp"]
    assert [event["ph"] for event in decoded(unit.output)] == ["X", "M"]
    assert unit.rewriter.counts() == {"M": 1, "X": 1}


@pytest.mark.parametrize("make", [lambda: Unit().rewriter, Rewriter], ids=["core", "plain"])
def test_rewriter_writes_its_output_to_its_place_in_a_file(make: Callable[[], Any], tmp_path: Path) -> None:
    rewriter = make()
    descriptor = os.open(tmp_path / "output", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"head")
    rewriter.append(b'{"a":1}')
    taken = rewriter.take()
    os.write(descriptor, taken)
    for text in (b'{"b":2}', b'{"c":3}'):
        rewriter.append(text)
        rewriter.write(descriptor, 4)
    rewriter.write(descriptor, 4)
    assert rewriter.take() == b""
    assert (tmp_path / "output").read_bytes() == b'head{"a":1},\n{"b":2},\n{"c":3},\n'
    os.close(descriptor)
    rewriter.append(b"{}")
    with pytest.raises(OSError, match="Bad file descriptor"):
        rewriter.write(descriptor, 4)


def test_rewriter_writes_patches_over_a_file_and_leaves_nothing_of_its_log_behind(tmp_path: Path) -> None:
    events = [slice_of(10 * number, 10 * number + 12, cat="") for number in range(30)]
    (tmp_path / "logs").mkdir()
    unit = Unit(log_bytes=10, folder=str(tmp_path / "logs")).add([array(events)])
    unit.finish()
    assert list((tmp_path / "logs").iterdir()) == []
    with (tmp_path / "output").open("wb+") as output:
        output.write(b"head" + unit.output)
        output.flush()
        unit.rewriter.write_patches(output.fileno(), 4)
        output.seek(4)
        assert decoded(output.read()) == in_python(events, 0)[0]
    unit = Unit().add([array(events)])
    unit.finish()
    with pytest.raises(OSError, match="Bad file descriptor"):
        unit.rewriter.write_patches(10**6, 4)


def test_rewriter_reports_that_its_log_cannot_be_written(tmp_path: Path) -> None:
    unit = Unit(log_bytes=10, folder=str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        unit.add([array([slice_of(number, number + 5) for number in range(50)])])
