"""U2: files of older versions are read for ever, and what newer ones add is passed over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.faults import opened, opens, read_trace
from tracekit import JSONTraceHandler, merge_traces, recover_trace, validate_trace
from tracekit.formats.rank_trace import FORMAT_VERSION
from tracekit.testing import record_sample

if TYPE_CHECKING:
    from tests.perfetto import Engine

DATA = Path(__file__).resolve().parents[1] / "data"
VERSIONS = sorted(int(folder.name.removeprefix("format")) for folder in DATA.glob("format*"))

# What `record_sample` records. Slices in two parts count once, as their start.
EVENTS = {"dataloader": 4, "epoch": 2, "batch": 4, "forward": 4, "layer": 8, "loss": 4}


def counts(events: list[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(event["name"] for event in events if event["ph"] in "XB"))


def merged(folder: Path, *inputs: Path) -> Any:
    output = folder / "merged.json"
    report = merge_traces(str(output), [str(path) for path in inputs], overwrite=True)
    assert report.complete
    return orjson.loads(output.read_bytes())


def test_there_is_a_fixture_of_every_format_version() -> None:
    assert list(range(1, FORMAT_VERSION + 1)) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["whole.json", "packed.json.gz"])
def test_older_files_open_merge_and_validate(tmp_path: Path, engine: Engine, version: int, name: str) -> None:
    path = DATA / f"format{version}" / name
    remains = read_trace(path)
    assert remains.metadata["format_version"] == version
    opens(engine, remains)
    assert counts(remains.events) == EVENTS
    assert validate_trace(str(path)).counts == {}
    document = merged(tmp_path, path)
    assert counts(document["traceEvents"]) == EVENTS
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice") == remains.count("XBi")
        assert trace.rows("select distinct name from process where pid != 0") == [("rank 0",)]
    assert recover_trace(path, tmp_path / "not needed.json").whole


@pytest.mark.parametrize("version", VERSIONS)
def test_older_files_that_were_cut_are_recovered(tmp_path: Path, engine: Engine, version: int) -> None:
    path = DATA / f"format{version}" / "cut.json"
    report = recover_trace(path, tmp_path / "t.json")
    assert report.complete
    assert [slice_.name for slice_ in report.open_slices] == ["epoch", "forward"]
    opened(engine, tmp_path / "t.json")


def of_the_future(path: Path) -> bytes:
    """Return a file as a newer version might write it: with fields and events that this one does not know."""
    lines = [b"["]
    for line in path.read_bytes().splitlines()[1:-1]:
        event = orjson.loads(line.removesuffix(b","))
        event["mood"] = {"good": [1, 2, None]}
        event.setdefault("args", {})
        if event["name"] == "tracekit_metadata":
            event["args"] |= {"format_version": FORMAT_VERSION + 1, "planet": "earth", "gpus": [{"id": 0}]}
            event["args"]["clock"]["quality"] = 0.9
        elif event["name"].startswith("tracekit_"):
            event["args"] |= {"because": ["of", {"reasons": 3}]}
        lines.append(orjson.dumps(event) + b",")
        future = {"ph": "M", "name": "tracekit_new_thing", "pid": event["pid"], "tid": event["tid"], "args": {"x": [1]}}
        lines.append(orjson.dumps(future) + b",")
    return b"\n".join(lines).removesuffix(b",") + b"\n]\n"


def test_what_a_newer_version_adds_is_passed_over(tmp_path: Path, engine: Engine) -> None:
    now, later = tmp_path / "now.json", tmp_path / "later.json"
    record_sample(JSONTraceHandler(now))
    later.write_bytes(of_the_future(now))
    opened(engine, later)
    assert recover_trace(later, tmp_path / "not needed.json").whole
    assert counts(merged(tmp_path, later)["traceEvents"]) == counts(merged(tmp_path, now)["traceEvents"]) == EVENTS
    (tmp_path / "cut.json").write_bytes(later.read_bytes()[:-500])
    report = recover_trace(tmp_path / "cut.json", tmp_path / "recovered.json")
    assert report.complete
    opened(engine, tmp_path / "recovered.json")
