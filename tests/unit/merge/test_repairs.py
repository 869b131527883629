"""The report of a merge counts each repair and each dropped event once, by kind."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from tests.both_cores import pure
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.core), False])
@pytest.mark.parametrize(("what", "kind"), [(what, kind) for what, kinds in ODD.items() for kind in kinds])
def test_merge_of_three_odd_events_counts_three(tmp_path: Path, what: str, kind: str, compiled: bool) -> None:
    path = tmp_path / "odd.json"
    path.write_text(f"[{','.join([GOOD, ODD[what][kind], ODD[what][kind], GOOD, ODD[what][kind]])}]")
    with nullcontext() if compiled else pure():
        report = merge_traces(str(tmp_path / "merged.json"), [str(path)])
    counted = {one.kind: one.count for one in report.repaired}, {one.reason: one.count for one in report.dropped}
    assert counted == (({kind: 3}, {}) if what == "repaired" else ({}, {kind: 3}))
