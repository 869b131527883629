"""Arguments that are left out of a merge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.errors import ConfigError
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

ARGS = {"correlation": 7, "External id": 3, "Input Dims": [[2, 3]], "stream": 7}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "python3"}},
        {"ph": "X", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 2, "args": ARGS},
        {"ph": "X", "name": "plain", "pid": 1, "tid": 1, "ts": 8, "dur": 2, "args": {"stream": 7}},
        {"ph": "i", "name": "tracekit.gap", "pid": 1, "tid": 1, "ts": 9, "s": "p", "args": {"lost_events": 2}},
        {"ph": "C", "name": "loss", "pid": 1, "tid": 1, "ts": 9, "args": {"value": 1.5}},
        {"ph": "b", "name": "task", "cat": "c", "id": "1", "pid": 1, "tid": 1, "ts": 10, "args": {"a": 1}},
        {"ph": "e", "name": "task", "cat": "c", "id": "1", "pid": 1, "tid": 1, "ts": 11},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "traceEvents": events}))
    return path


def args_of(path: Path) -> dict[str, Any]:
    events = json.loads(path.read_text())["traceEvents"]
    return {event["name"] + event["ph"]: event.get("args") for event in events if event["ph"] != "M"}


@pytest.mark.parametrize(("args", "op"), [("all", ARGS), ("ids", {"correlation": 7, "External id": 3}), ("none", None)])
def test_arguments_are_kept_as_asked_for(trace: Path, tmp_path: Path, args: str, op: Any) -> None:
    report = merge_traces(str(tmp_path / "merged.json"), [str(trace)], args=args)
    found = args_of(tmp_path / "merged.json")
    assert report.complete
    assert found["opX"] == op
    assert found["plainX"] == ({"stream": 7} if args == "all" else None)
    assert found["taskb"] == ({"a": 1} if args == "all" else None)
    assert found["tracekit.gapi"] == {"lost_events": 2}
    assert found["lossC"] == {"value": 1.5}


def test_an_archive_leaves_them_out_as_well(trace: Path, tmp_path: Path) -> None:
    report = merge_traces(str(tmp_path / "merged.tar"), [str(trace)], args="none")
    assert b"Input Dims" not in (tmp_path / "merged.tar").read_bytes()
    assert list(report.rewritten) == [str(trace)]


def test_an_unknown_choice_is_refused(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give one of all, ids, none"):
        merge_traces(str(tmp_path / "merged.json"), [str(trace)], args="some")
