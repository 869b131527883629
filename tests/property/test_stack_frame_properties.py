"""Whatever the frames of the inputs are, every event has the same stack after a merge."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stack_frames import stacks, write
from tracekit.merge import merge_traces

KEYS = ["0", "1", "2", "3", "x"]
FRAMES = st.dictionaries(
    st.sampled_from(KEYS),
    st.fixed_dictionaries(
        {"name": st.sampled_from(["f", "g", 'q"\\', "é\\"])},
        optional={
            "category": st.sampled_from(["c", "d"]),
            "line": st.integers(0, 3),
            "parent": st.sampled_from([*KEYS, 1, 2]),
        },
    ),
)
NAMED = st.fixed_dictionaries({}, optional={"sf": st.sampled_from([*KEYS, 0, 1, 2.0, 9]), "esf": st.sampled_from(KEYS)})
TRACES = st.lists(st.tuples(FRAMES, st.lists(NAMED, min_size=1, max_size=6), st.booleans()), min_size=1, max_size=3)


def without_circles(frames: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out callers whose number is not below: which one of a circle is left out is not promised."""
    return {
        key: {name: value for name, value in frame.items() if name != "parent" or str(value) < key}
        for key, frame in frames.items()
    }


@settings(deadline=None)
@given(TRACES)
def test_every_event_keeps_its_stack(traces: list[tuple[dict[str, Any], list[dict[str, Any]], bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths, expected = [], {}
        for rank, (frames, events, late) in enumerate(traces):
            named = [{"name": f"{rank} {number}", **event} for number, event in enumerate(events)]
            path = write(folder / f"rank{rank}.json", without_circles(frames), *named, rank=rank, late=late)
            paths.append(path)
            expected.update(stacks(json.loads(Path(path).read_text())))
        merge_traces(str(folder / "once.json"), paths)
        once = json.loads((folder / "once.json").read_bytes())
        assert _shown(stacks(once)) == _shown(expected)
        merge_traces(str(folder / "first.json"), paths[:1])
        merge_traces(str(folder / "steps.json"), [str(folder / "first.json"), *paths[1:]])
        steps = json.loads((folder / "steps.json").read_bytes())
        assert steps.get("stackFrames") == once.get("stackFrames")
        assert _shown(stacks(steps)) == _shown(expected)
        merge_traces(str(folder / "again.json"), [str(folder / "once.json")])
        assert json.loads((folder / "again.json").read_bytes()) == once


def _shown(found: dict[str, list[Any]]) -> dict[str, str]:
    """Return the stacks as texts, in which 2.0 and 2 differ no more than as ids."""
    return {
        name: json.dumps([int(stack) if isinstance(stack, float) else stack for stack in both], sort_keys=True)
        for name, both in found.items()
    }
