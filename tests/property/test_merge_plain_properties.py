"""What is rewritten as text is what would have been rewritten event by event."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tracekit.formats import byte_stream
from tracekit.formats.decimal_time import format_us
from tracekit.formats.trace_event import encode_events
from tracekit.merge.lanes import assign_lanes
from tracekit.merge.namespaces import InputMap, Track
from tracekit.merge.parts import PartInput, Rewriter
from tracekit.merge.plain_runs import PlainRuns
from tracekit.merge.scan import scan

if TYPE_CHECKING:
    from tracekit.merge.input_scan import InputScan

TIDS = st.sampled_from([7, 7, 7, 8, -1, "stream 7", "lane"])
TEXTS = st.sampled_from(["aten::add", "π", 'a "pid": 3, "tid": 3, "ts": 4.000', "{", "\\u0070id", "\\"])
NESTED = st.sampled_from(
    [
        {},
        {"External id": 4, "correlation": 12},
        {"external id": 0, "My external id": 5},
        {"pid": 50, "tid": 7, "ts": 5.125},
        {"x": {"pid": 50}, "id": 3},
        {"correlation": "7", "note": 'says "External id": 6, "correlation": 5}'},
    ]
)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """One event, mostly as Kineto writes it: ``at`` and ``for`` are ns, ``order`` is that of its keys."""
    phase = draw(st.sampled_from(10 * "XXXsfti" + "MCCBEbI"))
    event: dict[str, Any] = {"ph": phase, "name": draw(TEXTS)}
    if phase in "stf":
        event["id"] = draw(st.one_of(st.integers(0, 99), st.sampled_from([10**9, "0x1f", 10**12])))
    event |= {
        "pid": draw(st.sampled_from([50, 50, 50, 0, "Spans"])),
        "tid": draw(TIDS),
        "ts": draw(st.integers(0, 99_999)),
    }
    if phase == "X":
        event["dur"] = draw(st.integers(0, 9_999))
    if phase in "iI":
        event["s"] = draw(st.sampled_from("ttg"))
    if draw(st.booleans()):
        event["args"] = draw(NESTED)
    odd = draw(st.sampled_from([*60 * [""], "no pid", "bound", "no dur", "turned", "late"]))
    if odd == "no pid":
        del event["pid"]
    elif odd == "bound":
        event["bind_id"] = "0x5"
    elif odd == "no dur":
        event.pop("dur", None)
    elif odd == "turned":
        event = dict(reversed(event.items()))
    elif odd == "late":
        event["ts"] += 10**12
    return event


def written(event: dict[str, Any], layout: str) -> str:
    """An event as JSON in one of the layouts that there are."""
    event = dict(event)
    plain = {key: format_us(event.pop(key)).decode() for key in ("ts", "dur") if key in event}
    fields = {key: plain.get(key) or json.dumps(event[key], ensure_ascii=False) for key in (*event, *plain)}
    order = [key for key in ("ph", "cat", "name", "id", "pid", "tid", "ts", "dur") if key in fields]
    if list(event)[:1] not in ([], ["ph"]):
        order.reverse()
    order += [key for key in fields if key not in order]
    between, colon = {"spaced": (", ", ": "), "lines": (",\n    ", ": ")}.get(layout, (",", ":"))
    body = between.join(f'"{key}"{colon}{fields[key]}' for key in order)
    return "\n  {\n    " + body + "\n  }" if layout == "lines" else "{" + body + "}"


def make_item(path: Path, found: InputScan, shift_ns: int, number: int) -> PartInput:
    """Everything goes to process 1000, where the slices that overlap leave their track."""
    processes: dict[Any, tuple[int, dict[Any, int | Track]]] = {}
    tids: dict[int, int | Track] = {}
    for raw, process in found.processes.items():
        if not process.used:
            continue
        for thread in process.threads.values():
            if id(thread) not in tids:
                [moves] = assign_lanes([(thread.slices, shift_ns)])
                tid = 1 + len(tids)
                lanes = {-1: -1} | {lane: 100 * tid + lane for lane in (moves.lanes if moves else ())}
                tids[id(thread)] = Track(tid, moves, lanes) if moves else tid
        processes[raw] = (1000, {key: tids[id(thread)] for key, thread in process.threads.items()})
    return PartInput(
        number=number,
        path=str(path),
        shown=path.name,
        target=InputMap(number, shift_ns, processes, shared=False),
        id_args=True,
        epoch_only=False,
        events=sum(found.phases.values()),
        plain=found.plain,
        size_bytes=found.bytes_read,
        chosen=None,
    )


def rewritten(item: PartInput) -> tuple[list[Any], Any]:
    rewriter = Rewriter(item)
    return json.loads(b"[%b]" % b",".join(rewriter), parse_float=str), rewriter.result


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Any:
    """Several runs to a file."""
    with mock.patch.object(byte_stream, "PIECE_BYTES", 700):
        yield


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(events(), min_size=1, max_size=30),
    st.sampled_from(["compact", "spaced", "lines", "an event a line"]),
    st.sampled_from([0, 1_000, 123_456_789, -40_000, 10**15 + 7]),
    st.integers(0, 2),
)
@example([{"ph": "X", "name": "a", "pid": 50, "tid": 7, "ts": 5, "dur": 1}] * 40, "lines", 7, 1)
def test_text_and_events_give_the_same(found: list[dict[str, Any]], layout: str, shift_ns: int, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        between = ",\n" if layout == "an event a line" else ","
        path.write_text('{"traceEvents": [' + between.join(written(event, layout) for event in found) + "]}")
        item = make_item(path, scan(str(path)), shift_ns, number)
        assert rewritten(item) == rewritten(replace(item, plain=PlainRuns()))


@pytest.mark.parametrize("layout", ["compact", "spaced", "lines"])
def test_the_usual_events_are_rewritten_as_text(tmp_path: Path, layout: str) -> None:
    usual = [
        {
            "ph": "X",
            "name": "a",
            "pid": 50,
            "tid": 7 + number % 2,
            "ts": 1000 * number,
            "dur": 500,
            "args": {"External id": 3},
        }
        for number in range(60)
    ]
    usual += [
        {"ph": "s", "name": "b", "cat": "c", "id": number, "pid": 50, "tid": 7, "ts": 1000 * number}
        for number in range(60)
    ]
    path = tmp_path / "rank0.json"
    path.write_text("[" + ",".join(written(event, layout) for event in usual) + "]")
    item = make_item(path, scan(str(path)), 5, 2)
    with mock.patch("tracekit.merge.patch.encode_events", side_effect=encode_events) as encode:
        found, result = rewritten(item)
    # The last event, before the closing bracket, is read alone.
    assert [len(call.args[0]) for call in encode.call_args_list] == [1]
    assert result.written == {"X": 60, "s": 60}
    assert found[:2] == [
        {
            "ph": "X",
            "name": "a",
            "pid": 1000,
            "tid": 1,
            "ts": "0.005",
            "dur": "0.500",
            "args": {"External id": 20_000_000_003},
        },
        {
            "ph": "X",
            "name": "a",
            "pid": 1000,
            "tid": 2,
            "ts": "1.005",
            "dur": "0.500",
            "args": {"External id": 20_000_000_003},
        },
    ]
    assert found[-1] == {
        "ph": "s",
        "name": "b",
        "cat": "c",
        "id": 20_000_000_059,
        "pid": 1000,
        "tid": 1,
        "ts": "59.005",
    }


def test_metadata_on_lines_of_its_own_does_not_make_the_others_slow(tmp_path: Path) -> None:
    lines = [f'{{"ph":"X","name":"a","pid":50,"tid":7,"ts":{number}.000,"dur":1.000}}' for number in range(60)]
    lines[20:20] = ['{"ts":20.000,"ph":"M","name":"tracekit_timestamp","pid":50,"tid":7,"args":{"batch":2}}']
    path = tmp_path / "rank0.json"
    path.write_text("[\n" + ",\n".join(lines) + "\n]")
    item = make_item(path, scan(str(path)), 5, 2)
    with mock.patch("tracekit.merge.patch.encode_events", side_effect=encode_events) as encode:
        found, result = rewritten(item)
    assert [[event.ph for event in call.args[0]] for call in encode.call_args_list] == [["M"], ["X"]]
    assert result.written == {"X": 60, "M": 1}
    [moved] = [event for event in found if event["ph"] == "M"]
    assert moved == {
        "ph": "M",
        "name": "tracekit_timestamp",
        "pid": 1000,
        "tid": 1,
        "ts": "20.005",
        "args": {"batch": 2},
    }
    assert len(found) == 61


def test_a_key_that_stands_twice_in_an_event_does_not_mislead(tmp_path: Path) -> None:
    lines = [f'{{"ph":"X","name":"a","pid":5,"tid":5,"ts":{n}.000,"dur":1.000}}' for n in range(20)]
    lines[3] = '{"ph":"X","name":"a","pid":6,"tid":6,"ts":9.000,"dur":1.000,"pid":5,"tid":5,"ts":3.000}'
    path = tmp_path / "rank0.json"
    path.write_text("[" + ",\n".join(lines) + "]")
    item = make_item(path, scan(str(path)), 0, 0)
    assert rewritten(item) == rewritten(replace(item, plain=PlainRuns()))
