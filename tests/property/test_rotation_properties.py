"""Rotation loses nothing: whatever is recorded and wherever the files are cut, together they are the file without cuts."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracekit import JSONTraceHandler, Profiler
from tracekit.testing import FakeClock

ACTIONS = ["enter", "exit", "instant", "counter", "flush", "step", "epoch"]


def events_of(path: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(Path(path).read_text("utf-8"))
    return loaded


def contents(paths: list[str]) -> tuple[Counter[Any], Counter[Any]]:
    """Return every event that is at one moment, and for every name of slice and track how long its slices took in all, in ns."""
    moments: Counter[Any] = Counter()
    durations: Counter[Any] = Counter()
    for path in paths:
        stacks: dict[Any, list[Any]] = {}
        edges = []
        for order, event in enumerate(events_of(path)):
            if event["ph"] == "M":
                continue
            time_ns = round(event["ts"] * 1000)
            if event["ph"] == "X":
                durations[event["tid"], event["name"]] += round(event["dur"] * 1000)
            elif event["ph"] in "BE":
                edges.append((time_ns, order, event))
            else:
                moments[event["ph"], event["name"], time_ns, json.dumps(event["args"])] += 1
        for time_ns, _, event in sorted(edges, key=lambda edge: edge[:2]):
            stack = stacks.setdefault(event["tid"], [])
            if event["ph"] == "B":
                stack.append((event["name"], time_ns))
            else:
                name, start_ns = stack.pop()
                assert name == event["name"], "a slice ends that is not the innermost"
                durations[event["tid"], name] += time_ns - start_ns
        assert not any(stacks.values()), f"{path}: slices are left open"
    return moments, durations


def record(actions: list[str], *handlers: JSONTraceHandler) -> None:
    clock = FakeClock(tick_ns=7)
    with Profiler(handlers, rank=0, run_id="run", clock=clock.clock, flush_interval=3600) as profiler:
        markers = [profiler.marker(name) for name in ("a", "b", "c")]
        entered: list[Any] = []
        for number, action in enumerate(actions):
            clock.advance(1_000 * number % 7_919)
            if action == "enter":
                entered.append(markers[number % 3])
                entered[-1].start()
            elif action == "exit" and entered:
                entered.pop().finish()
            elif action == "instant":
                markers[0].instant()
            elif action == "counter":
                markers[1].counter({"x": number})
            elif action == "flush":
                profiler.flush()
            elif action == "step":
                profiler.step()
            elif action == "epoch":
                profiler.next_epoch()
        for marker in reversed(entered):
            marker.finish()


@given(
    actions=st.lists(st.sampled_from([*ACTIONS, "flush", "enter", "step"]), max_size=60),
    rotation=st.one_of(
        st.builds(lambda size: {"rotate_bytes": size}, st.integers(1, 4000)),
        st.builds(lambda time_ns: {"rotate_seconds": time_ns / 1e9}, st.integers(1, 50_000)),
        st.builds(lambda count: {"rotate_every": f"{count}ba"}, st.integers(1, 4)),
        st.just({"rotate_every": "1ep"}),
    ),
)
def test_the_parts_together_hold_what_the_whole_file_holds(actions: list[str], rotation: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = JSONTraceHandler(Path(folder) / "whole.json")
        parts = JSONTraceHandler(Path(folder) / "part{part}.json", **rotation)
        record(actions, whole, parts)
        assert contents(parts.paths) == contents(whole.paths)
        assert [Path(path).name for path in parts.paths] == [f"part{number}.json" for number in range(len(parts.paths))]


@given(
    actions=st.lists(st.sampled_from([*ACTIONS, "flush", "enter"]), max_size=60),
    keep=st.integers(1, 4),
    cap=st.integers(2000, 20_000),
)
def test_what_retention_leaves_is_the_newest_and_within_its_limits(actions: list[str], keep: int, cap: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        everything = JSONTraceHandler(Path(folder) / "all{part}.json", rotate_bytes=1000)
        limited = JSONTraceHandler(
            Path(folder) / "kept{part}.json", rotate_bytes=1000, num_traces_to_keep=keep, max_total_bytes=cap
        )
        record(actions, everything, limited)
        found = sorted((str(path) for path in Path(folder).glob("kept*")), key=limited.paths.index)
        assert found == limited.paths
        assert 1 <= len(found) <= keep
        assert (
            len(found) == 1 or sum(Path(path).stat().st_size for path in found) <= cap + 1000
        )  # the summary comes last
        made = len(everything.paths)
        assert [Path(path).name for path in found] == [f"kept{number}.json" for number in range(made)][-len(found) :]
        summary = events_of(found[-1])[-1]["args"]
        assert summary.get("removed", {"files": 0})["files"] == made - len(found)
