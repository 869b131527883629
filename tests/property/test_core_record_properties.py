"""Recording with the compiled core and in pure Python is the same: records, their nesting, the lines, what markers do."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.both_recorders import (
    SINGLE_VALUES,
    VALUES,
    counted,
    encoded,
    odd_batches,
    other_clock,
    played,
    program,
    pure,
)
from tests.unit.recording.test_lanes import play
from tracekit import core
from tracekit.clock import SYSTEM_CLOCK
from tracekit.events import COUNTER, count_kinds, earliest, places
from tracekit.formats.chrome_writer import ChromeEncoder

pytestmark = pytest.mark.core


@given(st.integers(0, 2**64))
def test_both_write_the_same_lines(seed: int) -> None:
    batches = odd_batches(random.Random(seed))
    with pure():
        expected = encoded(batches)
    assert encoded(batches) == expected


def test_an_encoder_that_was_copied_writes_the_same() -> None:
    batches = odd_batches(random.Random(1))
    encoder = ChromeEncoder(4711, 0)
    encoder.encode(batches[0])
    again = pickle.loads(pickle.dumps(encoder))
    assert again.encode(batches[0]) == encoder.encode(batches[0])


def test_the_core_writes_the_lines_of_odd_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would compare Python with itself."""
    monkeypatch.setattr(ChromeEncoder, "_encode_records", None)
    for seed in range(50):
        encoded(odd_batches(random.Random(seed)))


int64 = st.integers(-(2**63), 2**63 - 1)
records = st.lists(
    st.tuples(int64, int64, st.sampled_from([5, -1, -3, -4]) | st.integers(0, 2**63 - 1), int64)
    | st.tuples(int64, int64, st.just(COUNTER), st.sampled_from(VALUES)),
    max_size=6,
).map(lambda rows: [entry for row in rows for entry in row])
bounds = st.integers(-30, 30)


@given(records, st.data())
def test_records_behave_as_a_list_does(first: list[Any], data: st.DataObject) -> None:
    compiled: Any = core.record
    ours = counted(data.draw(st.lists(st.sampled_from(SINGLE_VALUES + VALUES[:3]), max_size=4)))
    assert type(ours) is compiled.Records
    theirs = list(ours) + first
    ours += first
    for _ in range(data.draw(st.integers(0, 6))):
        more, at, step = data.draw(records), data.draw(bounds), data.draw(st.sampled_from([1, 4, -1, 3]))
        slice_ = slice(at, data.draw(bounds | st.none()), step)
        assert list(ours[slice_]) == theirs[slice_]
        match data.draw(st.sampled_from(["extend", "+=", "+", "take", "set", "delete"])):
            case "extend":
                ours.extend(data.draw(st.sampled_from([tuple, list, iter, compiled.Records]))(more))
                theirs.extend(more)
            case "+=":
                ours += more
                theirs += more
            case "+":
                assert more + ours == compiled.Records(more) + ours == more + theirs
                assert ours + more == theirs + more
            case "take":
                count = data.draw(st.integers(0, 8)) * 4
                taken, theirs = theirs[:count], theirs[count:]
                assert ours.take(count) == taken
            case "set" if theirs:
                row = data.draw(st.integers(0, len(theirs) // 4 - 1)) * 4
                if theirs[row + 2] == COUNTER:
                    ours[row + 2] = COUNTER  # as it is
                    ours[row + 3] = theirs[row + 3] = {"new": 1}
                else:
                    ours[row + 1 : row + 4] = theirs[row + 1 : row + 4] = (7, -4, 9)
            case "delete":
                del ours[4:8], theirs[4:8]
            case _:
                pass
        assert ours == theirs
        assert len(ours) == len(theirs)
        assert list(ours) == theirs
        assert repr(ours) == repr(theirs)
        assert count_kinds(ours, COUNTER, -1, -3, -4) == count_kinds(theirs, COUNTER, -1, -3, -4)
        assert places(ours, COUNTER, -3) == places(theirs, COUNTER, -3)
        if theirs:
            assert earliest(ours) == earliest(theirs)
    for kept in (copy.copy(ours), pickle.loads(pickle.dumps(ours))):
        assert repr(kept) == repr(theirs)


spans = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 80), st.integers(1, 3)).map(lambda s: (s[0], s[0] + s[1], s[2])),
    max_size=25,
    unique_by=lambda span: (span[0], span[2]),
)


@given(spans, st.lists(st.integers(0, 400), max_size=4))
def test_slices_get_the_same_lanes(spans: list[Any], cuts: list[int]) -> None:
    compiled: Any = core.record
    buffer, flushed = play(spans, cuts, compiled.Records)
    other_buffer, expected = play(spans, cuts, list)
    assert flushed == expected
    assert buffer.tracks == other_buffer.tracks


@settings(suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**64))
def test_programs_record_the_same(seed: int) -> None:
    steps = program(random.Random(seed), 60)
    with pure():
        expected = played(steps, other_clock())
    assert played(steps, SYSTEM_CLOCK) == expected
