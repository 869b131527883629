"""The compiled core of recording: what it refuses, what it keeps, and where Python takes over."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.both_recorders import SINGLE_VALUES, VALUES, counted, other_clock
from tracekit import Profiler, core
from tracekit.clock import SYSTEM_CLOCK
from tracekit.events import COUNTER, INSTANT, EventBatch, Label, Timestamps, Track
from tracekit.formats.chrome_writer import ChromeEncoder
from tracekit.recording.buffer import DETACHED, RecordBuffer
from tracekit.recording.counter_values import finite_numbers
from tracekit.recording.marker import Marker
from tracekit.recording.marker_state import MarkerState
from tracekit.recording.recording_marker import marker_classes
from tracekit.timestamp import Timestamp

compiled: Any = core.record
pytestmark = pytest.mark.core


def methods_of(states: Any) -> set[str]:
    kinds = (Marker, states.recording, states.shared)
    return {type(getattr(kind, name)).__name__ for kind in kinds for name in ("__enter__", "__exit__")}


def test_markers_of_the_systems_clock_are_compiled_and_those_of_another_clock_are_pythons() -> None:
    assert methods_of(marker_classes(SYSTEM_CLOCK.monotonic_ns)) == {"method_descriptor"}
    assert methods_of(marker_classes(other_clock().monotonic_ns)) == {"function", "method_descriptor"}  # idle is idle


def test_an_interpreter_beside_the_first_does_without() -> None:
    code = """
import _xxsubinterpreters as interpreters
import tracekit.core
assert tracekit.core.record is not None
interpreters.run_string(interpreters.create(), "import tracekit.core; assert tracekit.core.record is None")
"""
    if sys.version_info >= (3, 13):
        pytest.skip("the module is called otherwise from Python 3.13 on")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([1, 2, 3], ValueError),
        ([1, 2, 3, 4.0], TypeError),
        ([1, 2, "3", 4], TypeError),
        ([1, 2, INSTANT, {}], TypeError),
        ([1, 2**63, 3, 4], OverflowError),
        (5, TypeError),
    ],
)
def test_what_is_no_record_is_refused_and_leaves_nothing_behind(entries: Any, error: type[Exception]) -> None:
    records = compiled.Records([0, 1, 2, 3])
    for add in (records.extend, records.__iadd__, compiled.Records):
        with pytest.raises(error):
            add(entries)
    with pytest.raises(error):
        records.extend([7, 7, COUNTER, {}, *entries] if isinstance(entries, list) else entries)
    assert records == [0, 1, 2, 3]


def test_records_go_as_a_whole_and_stay_what_they_are() -> None:
    records = compiled.Records([0, 1, 2, 3, 0, 1, COUNTER, {"x": 1}])
    for place in (slice(0, 3), slice(1, 5), slice(0, 8, 4), 0):
        with pytest.raises(ValueError, match="as a whole"):
            del records[place]
    for place, value in ((2, COUNTER), (6, 5), (slice(0, 4), [1])):
        with pytest.raises(ValueError, match=r"counter|as many"):
            records[place] = value
    for place in (8, -9):
        with pytest.raises(IndexError):
            records[place]
        with pytest.raises(IndexError):
            records[place] = 1
    with pytest.raises(TypeError):
        hash(records)
    assert records == [0, 1, 2, 3, 0, 1, COUNTER, {"x": 1}]
    with pytest.raises(ValueError, match="no records"):
        compiled.Records().earliest()
    for track in (-1, 1 << 40):
        with pytest.raises(ValueError, match="no such track"):
            compiled.Records([0, 1, 2, track]).overlapping([])


def test_values_are_kept_as_long_as_their_records() -> None:
    class Values(dict[str, float]):
        pass

    def make() -> tuple[Any, weakref.ref[Values]]:
        values = Values(x=1)
        return compiled.Records([0, 1, COUNTER, values] * 3), weakref.ref(values)

    records, values = make()
    copies = [records[4:], records.take(4), records + compiled.Records([0, 1, 2, 3])]
    records[3] = {}
    del records[4:]
    assert values() is not None
    copies.clear()
    assert values() is None
    records, values = make()
    del records
    assert values() is None


def test_a_counter_of_one_float_holds_its_name_and_is_a_counter_like_any() -> None:
    series = "a name of its own " + str(time.time_ns())
    before = sys.getrefcount(series)
    records = counted([{series: number + 0.5} for number in range(6)])
    assert records[3::4] == [{series: number + 0.5} for number in range(6)]
    assert set(records[2::4]) == {COUNTER}
    assert sys.getrefcount(series) == before + 6
    copies = [records[4:12], records + compiled.Records([1, 2, 3, 4]), records.take(4)]
    records[3] = {"x": 1}
    del records[4:8]
    assert [len(copy) for copy in copies] == [8, 28, 4]
    assert copies[2] == [*copies[1][:2], COUNTER, {series: 0.5}]
    assert records[3::4] == [{"x": 1}, *({series: number + 0.5} for number in range(3, 6))]
    assert records.find(records[1], 0) is None
    copies.clear()
    del records
    assert sys.getrefcount(series) == before


def test_values_of_a_counter_that_python_must_clean_are_found() -> None:
    class Text(str):
        __slots__ = ()

    plain: list[Any] = [{"x": 0.5}, {"x": -1e18, "y": 2}, {}, {"x": 2**63 - 1, "y": -(2**63) + 1}, {"x": 9e18}]
    odd: list[Any] = [
        {"x": float("nan")},
        {"x": float("-inf"), "y": 1},
        {"x": 1.0, "y": "2"},
        {"x": 2.0**63},
        {"x": 2**63},
        {"x": -(2**63)},
        {"x": True},
        {1: 1.0},
        {Text("x"): 1.0},
    ]
    records = counted(plain + odd)
    assert records.odd_counters() == list(range(len(plain), len(plain + odd)))
    kept = [finite_numbers(values) for values in records[3::4]]
    assert kept[: len(plain)] == plain
    assert [dict(values) for values in kept[len(plain) :]] == [
        {},
        {"y": 1},
        {"x": 1.0},
        {},
        {},
        {},
        {"x": 1},
        {"1": 1.0},
        {"x": 1.0},
    ]


def test_there_are_no_other_kinds_of_records() -> None:
    for kind in (-256, -(2**63), -(2**47) - 16):  # as if an address
        with pytest.raises(ValueError, match="no such kind"):
            compiled.Records([0, 1, kind, 3])
        records = compiled.Records([0, 1, 2, 3])
        with pytest.raises(ValueError, match="no such kind"):
            records[2] = kind
        assert records == [0, 1, 2, 3]


def test_a_counter_that_holds_its_records_is_garbage_like_any_other() -> None:
    class Values(dict[str, Any]):
        pass

    values = Values()
    values["records"] = records = compiled.Records([0, 1, COUNTER, values])
    gone = weakref.ref(values)
    del values, records
    gc.collect()
    assert gone() is None


def test_what_is_being_encoded_is_not_changed() -> None:
    records = compiled.Records([0, 1, COUNTER, {"x": 1}])
    encoder = compiled.Encoder(5)
    encoder.add_label(b'"a","cat":"",', b"}},\n")
    refused: list[str] = []

    def encode_value(_values: Any) -> bytes:
        for change in (
            lambda: records.extend([0, 1, 2, 3] * 100),
            lambda: records.take(4),
            lambda: records.__setitem__(0, 5),
            lambda: records.__delitem__(slice(0, 4)),
            lambda: encoder.encode(records, 0, (0,), (b"",), encode_value, str),
            lambda: encoder.add_label(b"", b""),
            lambda: encoder.add_track(5),
        ):
            try:
                change()
            except (BufferError, RuntimeError) as error:
                refused.append(type(error).__name__)
        return b"{}"

    lines = encoder.encode(records, 0, (0,), (b"",), encode_value, str)
    assert lines == b'{"ph":"C","name":"a","cat":"","pid":5,"tid":5,"ts":0.001,"args":{}},\n'
    assert refused == ["BufferError"] * 4 + ["RuntimeError"] * 3
    records.extend([0, 1, 2, 3])
    assert len(records) == 8


def test_what_the_encoder_does_not_know_is_python_s() -> None:
    encoder = compiled.Encoder(5)
    encoder.add_label(b'"a","cat":"",', b"}},\n")
    encoder.add_track(0)
    encoder.add_track(7)
    for record in (
        [1, 0, 1, 1],
        [0, 0, 1, 2],
        [0, 0, 1, -1],
        [-1, 0, 1, 1],
        [0, 0, -5, 1],
        [0, 2**63 - 1, -1, 1],
        [0, -(2**63), 1, 1],
    ):
        assert encoder.encode(compiled.Records(record), 5, (0,), (b"",), str, str) is None
    assert encoder.encode(compiled.Records([0, 0, 1, 1]), 5, (0,), (b"m",), str, str) is not None
    for wrong in (
        (5, 0, (0,), (b"",), str, str),
        (compiled.Records(), 0, (), (), str, str),
        (compiled.Records(), 0, (0,), ("",), str, str),
    ):
        with pytest.raises(TypeError):
            encoder.encode(*wrong)


def test_a_failure_of_encoding_values_is_passed_on() -> None:
    encoder = compiled.Encoder(5)
    encoder.add_label(b"", b"")

    def fail(_values: Any) -> bytes:
        raise KeyboardInterrupt

    records = compiled.Records([0, 1, COUNTER, {}])
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(records, 0, (0,), (b"",), fail, str)
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(records, 0, (0,), (b"",), lambda _: 1 // 0, fail)
    with pytest.raises(TypeError):
        encoder.encode(records, 0, (0,), (b"",), lambda _: "text", lambda _: "text")
    assert encoder.encode(records, 0, (0,), (b"",), lambda _: b"{}", fail) is not None


@pytest.mark.parametrize("text", [b"[null]", b'["\\"]', b"[" + b"1," * 5000 + b"1]"], ids=["null", "backslash", "long"])
def test_values_that_a_trace_writes_differently_are_encoded_by_python(text: bytes) -> None:
    encoder = compiled.Encoder(5)
    encoder.add_label(b"", b"")
    records = compiled.Records([0, 1, COUNTER, {}])
    for dumps in (lambda _: text, lambda _: 1 // 0):
        lines = encoder.encode(records, 0, (0,), (b"",), dumps, lambda _: b"{}")
        assert lines is not None
        assert lines.endswith(b'"args":{}},\n')


def test_numbers_beyond_64_bits_are_encoded_by_python() -> None:
    tracks = [Track(0, ""), Track(2**70, "far")]
    batch = EventBatch([0, 5, 9, 1, 0, 2**64, INSTANT, 1], [Label("a")], tracks, Timestamps(Timestamp()), 0, 1)
    text = ChromeEncoder(1, 0).encode(batch)
    assert b'"tid":%d,"ts":0.005,"dur":0.004' % 2**70 in text
    assert b'"ts":18446744073709551.616' in text


def test_fields_of_another_type_are_refused() -> None:
    with Profiler(record_batches=False, rank=0) as profiler:
        marker, buffer = profiler.marker("a"), profiler._buffer
        for target, field in ((marker, "_buffer"), (marker, "_clones"), (profiler, "_by_name")):
            before = getattr(target, field)
            with pytest.raises(TypeError):
                setattr(target, field, "text")
            assert getattr(target, field) is before
        with pytest.raises(TypeError):
            buffer.track_of_thread = []  # type: ignore[assignment]
        with pytest.raises(TypeError):
            compiled.give_methods(MarkerState.RECORDING, int)
        with pytest.raises(TypeError):
            compiled.give_lookup(int)


def test_a_marker_that_was_never_made_raises_and_does_no_harm() -> None:
    for kind in marker_classes(time.perf_counter_ns)[1:]:
        marker = kind.__new__(kind)
        for use in (
            marker.__enter__,
            partial(marker.__exit__, None, None, None),
            marker.instant,
            partial(marker.counter, {}),
        ):
            with pytest.raises(AttributeError):
                use()
    with pytest.raises(AttributeError):
        RecordBuffer.__new__(RecordBuffer).records  # noqa: B018


def test_a_buffer_with_a_list_is_recorded_into_as_well() -> None:
    with Profiler(record_batches=False, rank=0, flush_interval=3600) as profiler:
        marker = profiler.marker("a")
        profiler._buffer.records = []
        with marker:
            marker.instant()
            marker.counter({"x": 1})
        kinds = profiler._buffer.records[2::4]
        assert kinds[:2] == [INSTANT, COUNTER]
        assert kinds[2] > 0


def test_the_values_of_a_counter_may_be_named() -> None:
    with Profiler(record_batches=False, rank=0) as profiler:
        marker = profiler.marker("a")
        marker.counter(values={"x": 1})
        for arguments, named in (((), {}), ((), {"value": {}}), (({}, {}), {}), (({},), {"values": {}})):
            with pytest.raises(TypeError):
                marker.counter(*arguments, **named)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            marker.__exit__(None)  # type: ignore[call-arg]
        profiler.flush()
        assert profiler.stats.counters == 1


def test_the_compiled_lookup_has_the_arguments_of_python_s() -> None:
    theirs = inspect.signature(Profiler._marker_in_python)  # type: ignore[attr-defined]
    ours = inspect.signature(Profiler.marker)
    assert [*ours.parameters] == [*theirs.parameters]
    assert inspect.getdoc(Profiler.marker) == inspect.getdoc(Profiler._marker_in_python)  # type: ignore[attr-defined]
    for name in ("categories", "record_instant_on_start", "record_instant_on_finish"):
        assert ours.parameters[name].default == theirs.parameters[name].default
    marker = Profiler().marker
    assert [*inspect.signature(marker).parameters] == [*theirs.parameters][1:]


def test_a_name_that_cannot_be_hashed_or_interrupts() -> None:
    class Interrupting(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise KeyboardInterrupt

    profiler = Profiler()
    assert profiler.marker(["a"]).name == "['a']"  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        profiler.marker(Interrupting("a"))


def test_each_profiler_has_its_tracks_though_their_markers_take_turns() -> None:
    options: Any = {"record_batches": False, "rank": 0, "flush_interval": 3600}
    with Profiler(**options) as outer, Profiler(**options) as inner:
        for profiler in (outer, inner):
            for _ in range(profiler is inner):
                profiler._buffer.new_track("another")
        here = {profiler: profiler._buffer.thread_track() for profiler in (outer, inner)}
        assert here[outer] != here[inner]
        for _ in range(3):
            for profiler in (outer, inner):
                profiler.marker("a").instant()
                assert profiler._buffer.records[-1] == here[profiler]
        inner._buffer.track_of_thread.clear()
        compiled.forget_threads()
        inner.marker("a").instant()
        assert inner._buffer.records[-1] == inner._buffer.thread_track() != here[inner]


def test_recording_makes_nothing_for_the_collector() -> None:
    with Profiler(record_batches=False, rank=0, flush_interval=3600) as profiler:
        marker = profiler.marker("a")
        with marker:
            marker.instant()
        made = []
        for _ in range(3):  # another thread of the tests may make some
            gc.collect()
            collections = gc.get_stats()[0]["collections"]
            for _ in range(20_000):
                with profiler.marker("a"):
                    marker.instant()
                    marker.counter({"loss": 0.5})
            made.append(gc.get_stats()[0]["collections"] - collections)
        assert min(made) == 0, made


def test_nothing_is_left_of_a_profiler() -> None:
    def make() -> list[weakref.ref[Any]]:
        with Profiler(record_batches=False, rank=0) as profiler:
            marker = profiler.marker("a")
            for values in VALUES:
                marker.counter(values)
            for values in SINGLE_VALUES:
                marker.counter(values)
            with marker, marker:
                thread = threading.Thread(target=marker.__enter__)
                thread.start()
                thread.join()
        return [weakref.ref(profiler), weakref.ref(marker)]

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert len(DETACHED.records) == 0


def test_a_subclass_may_call_a_marker_of_its_own_as_it_likes() -> None:
    class Mine(Profiler):
        def __init__(self) -> None:
            super().__init__(record_batches=False, rank=0)
            self._marker = self.marker("epoch")

    with Mine() as profiler, profiler._marker, profiler.marker("step", "training"):
        pass
    assert profiler.stats.slices == 2


def test_records_answer_what_a_sequence_answers() -> None:
    records = compiled.Records([1, 10, 20, 3, 1, 30, 40, 3])
    assert isinstance(records, Sequence)
    assert (records.index(30), records.count(3), records.copy()) == (5, 2, [1, 10, 20, 3, 1, 30, 40, 3])
    with pytest.raises(ValueError, match=r"5|not in list"):
        records.index(5)
    with pytest.raises(TypeError):
        records.index()  # type: ignore[call-arg]


def test_what_is_appended_while_overlaps_are_looked_for_is_not_looked_at() -> None:
    many = 300_000
    records = compiled.Records([entry for start in range(many) for entry in (0, start, start + 1, 1)])
    records.extend((0, many, many + 1, 1))  # there is room for more from now on
    found: list[set[int]] = []
    looking = threading.Thread(target=lambda: found.append(records.overlapping([])))
    looking.start()
    while looking.is_alive():
        try:
            records.extend((0, 5, 6, 1 << 23))
        except BufferError:
            break
    looking.join()
    assert found == [set()]
