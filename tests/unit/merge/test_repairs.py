"""The report of a merge counts each repair and each dropped event once, by kind."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.formats.decimal_time import is_exact, parse_us

pytestmark = pytest.mark.usefixtures("core_or_python")

GOOD = '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":2}'
ODD = {
    "repaired": {
        "long_phase": '{"ph":"instant","name":"a","pid":1,"tid":1,"ts":5}',
        "missing_dur": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5}',
        "bad_dur": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":-2}',
        "text_time": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":"5","dur":2}',
        "missing_id": '{"ph":"b","name":"a","cat":"c","pid":1,"tid":1,"ts":5}',
        "counter_value_left_out": '{"ph":"C","name":"a","pid":1,"tid":1,"ts":5,"args":{"x":1,"y":"no"}}',
        "name_not_text": '{"ph":"X","name":7,"pid":1,"tid":1,"ts":5,"dur":2}',
        "missing_name": '{"ph":"X","pid":1,"tid":1,"ts":5,"dur":2}',
        "args_not_object": '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":2,"args":[1]}',
    },
    "dropped": {
        "empty_event": "{}",
        "no_phase": '{"name":"a","pid":1,"tid":1,"ts":5,"dur":2}',
        "unknown_phase": '{"ph":"?","name":"a","pid":1,"tid":1,"ts":5,"dur":2}',
        "no_time": '{"ph":"X","name":"a","pid":1,"tid":1,"dur":2}',
        "flow_without_id": '{"ph":"s","name":"a","cat":"c","pid":1,"tid":1,"ts":5}',
        "counter_without_number": '{"ph":"C","name":"a","pid":1,"tid":1,"ts":5,"args":{}}',
    },
}


@pytest.mark.parametrize(("what", "kind"), [(what, kind) for what, kinds in ODD.items() for kind in kinds])
def test_merge_of_three_odd_events_counts_three(merge: Any, what: str, kind: str) -> None:
    odd = ODD[what][kind]
    _, report = merge({"odd.json": f"[{','.join([GOOD, odd, odd, GOOD, odd])}]"})
    counted = {one.kind: one.count for one in report.repaired}, {one.reason: one.count for one in report.dropped}
    assert counted == (({kind: 3}, {}) if what == "repaired" else ({}, {kind: 3}))


def test_merge_counts_a_duration_that_ends_beyond_64_bits(merge: Any) -> None:
    late = '{"ph":"X","name":"late","pid":1,"tid":1,"ts":5,"dur":9223372036854775.807}'
    _, report = merge({"odd.json": f"[{GOOD},{late}]"})
    assert {one.kind: one.count for one in report.repaired} == {"bad_dur": 1}


def test_merge_moves_starts_and_ends_beyond_100_days_to_times_that_viewers_read(merge: Any) -> None:
    day_120_us = 120 * 86_400 * 10**6
    slices = [
        f'{{"ph":"X","name":"n","pid":1,"tid":1,"ts":{day_120_us + 10 * number}.{number:03},"dur":3.{7 * number:03}}}'
        for number in range(100)
    ]
    merged, _ = merge({"long.json": f"[{GOOD},{','.join(slices)}]"})
    found = [(us(event["ts"]), us(event["dur"])) for event in merged["traceEvents"] if event.get("name") == "n"]
    assert len(found) == 100
    assert all(is_exact(start) and is_exact(start + length) for start, length in found)
    assert not all(length % 1000 == 7 * number for number, (_, length) in enumerate(found))


def us(text: str) -> int:
    found = parse_us(str(text).encode())
    assert found is not None
    return found
