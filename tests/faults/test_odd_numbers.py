"""Numbers of traces that are none, or beyond all that a program counts in: every verb ends in words, a result or an error."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from tracekit.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

NUMBERS = [
    "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5000, "1e400", "-1e400", "1e-400", "18446744073709551616",
    "9223372036854775807", "-9223372036854775809", "1e18", "0.0000000000000000001", "-0", "true", "null", "[]", "{}", '"x"',
    '"1e400"', '""',
]  # fmt: skip
PLACES = {
    "BASE": "1000000000000000000", "RANK": "0", "WORLD": "2", "GROUP": "2", "META_TS": "1", "SORT": "0", "STEP": "1",
    "TS": "1000", "DUR": "900", "PID": "0", "TID": "7", "MEMBERS": "2", "SEQ": "5", "ELEMENTS": "10", "EXTERNAL": "3",
    "CORRELATION": "4", "FLOW": "9", "VALUE": "1.5", "END": "2400",
}  # fmt: skip
TRACE = """{"schemaVersion":1,"baseTimeNanoseconds":@BASE@,"distributedInfo":{"rank":@RANK@,"world_size":@WORLD@,"backend":"nccl",
"pg_config":[{"pg_name":"0","pg_size":@GROUP@,"ranks":[0,1]}]},"traceEvents":[
{"ph":"M","name":"process_sort_index","pid":1,"tid":1,"ts":@META_TS@,"args":{"sort_index":@SORT@}},
{"ph":"X","name":"ProfilerStep#@STEP@","cat":"user_annotation","pid":1,"tid":1,"ts":@TS@,"dur":@DUR@},
{"ph":"X","name":"ProfilerStep#2","cat":"user_annotation","pid":1,"tid":1,"ts":2000,"dur":900},
{"ph":"X","name":"ncclDevKernel_AllReduce_Sum","cat":"kernel","pid":@PID@,"tid":@TID@,"ts":2100,"dur":50,"args":{
"Collective name":"allreduce","Group size":@MEMBERS@,"Seq":@SEQ@,"In msg nelems":@ELEMENTS@,
"External id":@EXTERNAL@,"correlation":@CORRELATION@}},
{"ph":"s","id":@FLOW@,"pid":1,"tid":1,"ts":2100,"cat":"ac2g","name":"ac2g"},
{"ph":"C","name":"c","pid":1,"tid":1,"ts":2200,"args":{"x":@VALUE@}},
{"ph":"B","name":"b","pid":1,"tid":1,"ts":2300},{"ph":"E","pid":1,"tid":1,"ts":@END@},
{"ph":"X","name":"z","pid":1,"tid":1,"ts":2500,"dur":10}
]}"""
VERBS = [
    "summary TRACE",
    "stragglers TRACE",
    "diff TRACE TRACE",
    "validate TRACE",
    "report -f -o OUT.html TRACE",
    "merge -f -o OUT.json TRACE",
    "merge -f -o OUT.pftrace TRACE",
    "merge -f -o OUT.zip TRACE",
    "trim -f --steps 1:3 -o OUT.json TRACE",
    "convert -f TRACE OUT.pftrace",
    "anonymise -f -o OUT.json TRACE",
    "recover -f -o OUT.json TRACE",
    "split -f --by-rank -o OUT-{part}.json TRACE",
    "split -f --seconds 1 -o OUT-{part}.json TRACE",
]


def written(place: str, number: str) -> str:
    text = TRACE
    for name, usual in PLACES.items():
        text = text.replace(f"@{name}@", number if name == place else usual)
    return text


def outcome(verb: str, trace: Path) -> int:
    """Run a verb; the command that a user runs turns what is left of errors into a fault of tracekit."""
    words = verb.replace("OUT", str(trace.with_name("out"))).replace("TRACE", str(trace)).split()
    return main(words)


def test_the_verbs_do_their_work_with_numbers_as_they_should_be(tmp_path: Path) -> None:
    """Or the test below would try how arguments are refused."""
    trace = tmp_path / "a.json"
    trace.write_text(written("", ""))
    assert {verb: outcome(verb, trace) for verb in VERBS} == dict.fromkeys(VERBS, 0)


@pytest.mark.parametrize("place", PLACES)
def test_no_verb_is_at_fault(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "a.json"
    turn = count(5 * list(PLACES).index(place))  # each number meets other verbs at each place
    for number in NUMBERS:
        trace.write_text(written(place, number))
        for _ in range(3):
            verb = VERBS[next(turn) % len(VERBS)]
            assert outcome(verb, trace) in (0, 1, 3), (verb, number[:20])
            assert "fault of tracekit" not in capsys.readouterr().err, (verb, number[:20])
