"""Events that are found by name in the bytes of a trace, in any layout and form; and samples of large traces."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.collective_traces import SECOND, irregular, seen, torch_trace
from tracekit.formats.json.reader import TraceReader
from tracekit.traces.collectives import search
from tracekit.traces.collectives.collector import NAMES_OF_COLLECTIVES, read_collectives
from tracekit.traces.collectives.search import find_events, find_sampled_events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.real_traces import RealTraces

WORDS = (b'"nccl', b'"gloo:')


def event(name: Any, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, **more}


def names(path: Path) -> list[str]:
    return [json.loads(bytes(found.name)) for found in find_events(str(path), WORDS)]  # type: ignore[arg-type]


LAYOUTS: dict[str, Callable[[Any], str]] = {
    "compact": lambda events: json.dumps(events, separators=(",", ":")),
    "a field a line": lambda events: json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=2),
    "sorted keys": lambda events: json.dumps({"traceEvents": events}, sort_keys=True),
    "an event a line": lambda events: "[\n" + ",\n".join(map(json.dumps, events)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_search_finds_events_by_name_in_any_layout(tmp_path: Path, layout: str, *, packed: bool) -> None:
    events = [
        event("ncclDevKernel_AllReduce", args={"grid": [1, {"x": 2}], "text": 'a "quoted" {'}),
        event("gemm", args={"of": "nccl:all_reduce", "deep": {"name": "ncclKernel_none"}}),
        event("gloo:all_gather", args={}),
        event("é { nccl:no", args={"name": "x"}),
        event("nccl:barrier", args={"é": "ü"}, unknown={"key": []}),
        event("my gloo:"),
    ]
    text = LAYOUTS[layout](events).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    assert names(path) == ["ncclDevKernel_AllReduce", "gloo:all_gather", "nccl:barrier"]


def test_search_finds_every_event_wherever_pieces_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    of_number = [f"nccl:{number}" if number % 3 else "x" * (number % 90) for number in range(900)]
    path.write_text(json.dumps([event(name, args={"n": number}) for number, name in enumerate(of_number)]))
    expected = [name for name in of_number if name.startswith("nccl:")]
    assert names(path) == expected
    monkeypatch.setattr(search, "_REACH_BYTES", 200)
    text = path.read_bytes()
    for piece_bytes in (1, 97, 1000):
        monkeypatch.setattr(search, "_TEXT_BYTES", piece_bytes)
        pieces = iter([text[at : at + piece_bytes] for at in range(0, len(text), piece_bytes)])
        found = search._find(pieces, WORDS)
        assert [json.loads(bytes(one.name)) for one in found] == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        b'[{"ph":"X","name":"nccl:cut","ts":1',
        b'[{"name":"nccl:no phase"}]',
        b'{"nccl:key":1}',
        b'"nccl:text"',
        b"{" * 100_000 + b'"nccl:deep"' + b"}" * 100_000,
        b'[{"ph":"X","name":"nccl:large","args":{"x":"' + b"y" * 70_000 + b'"}}]',
    ],
)
def test_search_passes_over_what_is_no_whole_event(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "trace.json").write_bytes(text)
    assert names(tmp_path / "trace.json") == []


def test_search_finds_what_a_reader_of_all_events_finds_in_real_traces(traces: RealTraces) -> None:
    count = 0
    for folder in ("dlrm_8gpu", "torch_2.13_gloo", "single_gpu"):
        for path in sorted((traces / folder).iterdir()):
            found = [bytes(one.name) for one in find_events(str(path), NAMES_OF_COLLECTIVES)]  # type: ignore[arg-type]
            with TraceReader(str(path)) as reader:
                every = [bytes(one.name) for run in reader.runs() for one in run]  # type: ignore[arg-type]
            assert found == [name for name in every if name.startswith(NAMES_OF_COLLECTIVES)]
            count += len(found)
    assert count > 100


def kineto_order(text: str, padding: int) -> str:
    """Return a trace with the work of the CPU first, each event as large as those of real traces are together."""
    trace = json.loads(text)
    for one in trace["traceEvents"]:
        one["args"]["stack"] = "x" * padding
    trace["traceEvents"].sort(key=lambda one: (one["cat"] == "kernel", one["ts"]))
    return json.dumps(trace)


def test_samples_of_ranks_are_of_the_same_parts_of_a_run(tmp_path: Path) -> None:
    done = irregular(400)
    found = []
    for rank in (0, 1):
        path = tmp_path / f"{rank}.json"
        path.write_text(kineto_order(torch_trace(rank, done, seen(rank * SECOND), steps=False), 12_000))
        collectives = read_collectives(str(path), sampled=True)
        assert collectives is not None
        found.append(collectives[None])
    assert all(20 < len(one) < 200 for one in found)
    shared = {round(one.end_ns, -5) for one in found[0]} & {round(one.end_ns - SECOND, -5) for one in found[1]}
    assert len(shared) > 20
    assert max(shared) - min(shared) > 0.9 * (done[-1].end_ns - done[0].end_ns)


def test_small_and_packed_traces_are_not_sampled(tmp_path: Path) -> None:
    small, packed = tmp_path / "small.json", tmp_path / "packed.json.gz"
    small.write_text(torch_trace(0, irregular(40), seen()))
    assert read_collectives(str(small), sampled=True) is None
    packed.write_bytes(gzip.compress(kineto_order(torch_trace(0, irregular(400), seen()), 12_000).encode()))
    assert find_sampled_events(str(packed), WORDS) is None
