"""Stack frames of several inputs in one merged trace."""

from __future__ import annotations

import json
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.merged_tables import inputs
from tests.stack_frames import stack_of, stacks, write
from tracekit.check.anonymise import anonymise_traces
from tracekit.errors import MergeError
from tracekit.formats.json.reader import TraceReader
from tracekit.merge import Selection, merge_traces
from tracekit.merge.rewrite.events import EventRewriter
from tracekit.merge.write import event_counts

MAIN = {"category": "python", "name": "main"}
TRAIN = {"category": "python", "name": "train", "parent": "5"}
FIRST = {"5": MAIN, "7": TRAIN, "8": {"name": "unused", "parent": 7}}
LOADER = {"category": "python", "name": "loader"}
SECOND = {"5": LOADER, "7": {"name": "main", "category": "python"}}
TRAIN_STACK = [{"category": "python", "name": "train"}, MAIN]


def merged(output: Path, *inputs: str, **options: Any) -> dict[str, Any]:
    merge_traces(str(output), inputs, overwrite=True, **options)
    found: dict[str, Any] = json.loads(output.read_bytes())
    return found


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    return [
        write(
            tmp_path / "a.json",
            FIRST,
            {"name": "a1", "sf": 7},
            {"name": "a2", "sf": "7", "esf": 5},
            {"name": "a3", "ph": "i", "sf": 5},
            {"name": "a4", "ph": "P", "sf": 7.0},
            {"name": "a5"},
        ),
        write(tmp_path / "b.json", SECOND, {"name": "b1", "sf": 5}, {"name": "b2", "sf": 7}, rank=1, late=False),
    ]


def test_equal_ids_of_two_inputs_name_what_they_named_whatever_the_order_and_who_works(
    tmp_path: Path, pair: list[str]
) -> None:
    """A property test compares the stacks of any inputs."""
    trace = merged(tmp_path / "out.json", *pair)
    assert stacks(trace) == {
        "a1": [TRAIN_STACK],
        "a2": [TRAIN_STACK, [MAIN]],
        "a3": [[MAIN]],
        "a4": [TRAIN_STACK],
        "b1": [[LOADER]],
        "b2": [[MAIN]],
    }
    # Shared frames are written once, unused ones never, and the headers of the inputs have none.
    assert len(trace["stackFrames"]) == 3
    assert all("stackFrames" not in entry["header"] for entry in inputs(trace))
    assert next(event for event in trace["traceEvents"] if event["name"] == "a5").keys().isdisjoint({"sf", "esf"})
    expected = (tmp_path / "out.json").read_bytes()
    with ThreadPoolExecutor(2) as executor:
        for paths, options in ((pair[::-1], {}), (pair, {"executor": executor})):
            merged(tmp_path / "out.json", *paths, **options)
            assert (tmp_path / "out.json").read_bytes() == expected


def test_a_selection_takes_the_frames_that_it_names(tmp_path: Path, pair: list[str]) -> None:
    trace = merged(tmp_path / "out.json", *pair, select=Selection(names=("b1",)))
    assert [frame["name"] for frame in trace["stackFrames"].values()] == ["loader"]
    assert "stackFrames" not in merged(tmp_path / "out.json", *pair, select=Selection(names=("a5",)))


@pytest.mark.core
def test_only_events_that_name_a_frame_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    take = EventRewriter.take

    def counting(self: EventRewriter, run: list[Any], *judge: Any) -> None:
        decoded.append(len(run))
        take(self, run, *judge)

    monkeypatch.setattr(EventRewriter, "take", counting)
    plain = [{"name": f"slice {number}"} for number in range(20_000)]

    def decoded_of(frames: Any, *events: dict[str, Any]) -> int:
        decoded.clear()
        trace = merged(tmp_path / "out.json", write(tmp_path / "a.json", frames, *events, *plain))
        assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == len(events) + len(plain)
        return sum(decoded)

    assert decoded_of({}, {"name": "a", "sf": 7}) == 1
    assert decoded_of(FIRST, {"name": "a"}) == 0
    assert decoded_of(FIRST, {"name": "a", "sf": 7}) == 1


def test_an_id_without_a_frame_stays(tmp_path: Path) -> None:
    ids = [99, "x", [1], None, True]
    path = write(tmp_path / "a.json", FIRST, *({"name": str(name), "sf": name} for name in [*ids, 7]))
    expected = {str(name): [name] for name in ids} | {"7": [TRAIN_STACK]}
    assert stacks(merged(tmp_path / "out.json", path)) == expected


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (None, "1"),
        ([{"name": "a"}], "1"),
        ({"1": "no frame"}, "1"),
        ({"1": {"name": "a", "parent": "nobody"}}, [{"name": "a"}]),
        ({"1": {"name": "a", "parent": 1}}, [{"name": "a"}]),
        ({"1": {"name": "a", "parent": "2"}, "2": {"name": "b", "parent": "1"}}, [{"name": "a"}, {"name": "b"}]),
        ({"1": {"name": "a", "parent": None, "line": 3}}, [{"name": "a", "line": 3}]),
        ({"1": {"name": "\\", "more": {"deep": ["\\"]}}}, [{"name": "\\", "more": {"deep": ["\\"]}}]),
    ],
)
def test_odd_tables_give_the_stacks_that_they_can(tmp_path: Path, table: Any, expected: Any) -> None:
    path = write(tmp_path / "a.json", table, {"name": "a", "sf": "1"})
    trace = merged(tmp_path / "out.json", path)
    assert stacks(trace) == {"a": [expected]}
    again = merged(tmp_path / "again.json", str(tmp_path / "out.json"))
    assert again.get("stackFrames") == trace.get("stackFrames")


def test_a_stack_of_any_depth_needs_no_recursion(tmp_path: Path) -> None:
    deep = {str(number): {"name": f"f{number}", "parent": number - 1} for number in range(20_000)}
    trace = merged(tmp_path / "out.json", write(tmp_path / "a.json", deep, {"name": "a", "sf": 19_999}))
    assert len(stacks(trace)["a"][0]) == 20_000
    merge_traces(str(tmp_path / "out.pftrace"), [str(tmp_path / "a.json")])
    with TraceReader(str(tmp_path / "out.pftrace")) as reader:
        found = [json.loads(event.sf) for run in reader.runs() for event in run if isinstance(event.sf, bytes)]
    assert found == [] or found[0][-1] == "19900 more"


def test_frames_beyond_the_cap_are_told(tmp_path: Path, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_counts, "_MAX_FRAME_BYTES", 150)
    report = merge_traces(str(tmp_path / "out.json"), pair)
    trace = json.loads((tmp_path / "out.json").read_bytes())
    assert 0 < len(trace["stackFrames"]) < 3
    assert any("stack frames are left out" in warning for warning in report.warnings)
    with pytest.raises(MergeError, match="stack frames are left out"):
        merge_traces(str(tmp_path / "out.json"), pair, overwrite=True, strict=True, align="wall")


def test_an_input_that_is_rewritten_in_an_archive_has_its_own_table(tmp_path: Path, pair: list[str]) -> None:
    merge_traces(str(tmp_path / "out.zip"), pair)  # both have pid 7
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        first, second = (json.loads(archive.read(name)) for name in ("a.json", "b.json"))
    assert (stacks(first)["a1"], stacks(second)["b2"]) == ([TRAIN_STACK], [[MAIN]])
    assert (len(first["stackFrames"]), len(second["stackFrames"])) == (2, 2)


def test_stacks_are_written_out_in_the_native_format_and_come_back(tmp_path: Path, pair: list[str]) -> None:
    merge_traces(str(tmp_path / "out.pftrace"), pair)
    trace = merged(tmp_path / "back.json", str(tmp_path / "out.pftrace"))
    found = {event["name"]: event["sf"] for event in trace["traceEvents"] if "sf" in event}
    assert found["a1"] == found["a2"] == ["train (python)", "main (python)"]
    assert found["b1"] == ["loader (python)"]


SECRETS = {
    "5": {"category": "/home/bob/libsecret.so", "name": "project_x"},
    "7": {"category": "project_y.model", "name": "/home/bob/project_z/train.py(3): forward", "parent": 5},
}


@pytest.mark.parametrize("before", ["as it is", "merged"])
@pytest.mark.parametrize("names", [False, True])
def test_anonymous_stacks_name_nobody_and_the_same_function_by_one_word(
    tmp_path: Path, before: str, *, names: bool
) -> None:
    path = write(
        tmp_path / "a.json",
        {**SECRETS, "secret id": {"name": "project_x"}},
        {"name": "a", "sf": 7, "esf": "secret id"},
        {"name": "b", "stack": ["project_x", "/home/bob/project_z/train.py(3): forward"]},
        {"name": "c", "sf": 1},
    )
    if before == "merged":
        merge_traces(str(tmp_path / "merged.json"), [path])
        path = str(tmp_path / "merged.json")
    source = json.loads(Path(path).read_text())
    anonymise_traces([(path, str(tmp_path / "out.json"))], names=names)
    text = (tmp_path / "out.json").read_text()
    assert not [secret for secret in ("bob", "libsecret") if secret in text]
    assert ("project_" in text) is not names
    trace = json.loads(text)
    # The ids of a merge are made of the frames, so they must change.
    assert trace["stackFrames"].keys().isdisjoint({"5", "7", *source["stackFrames"]} - {"1", "2", "3"})
    a, b, c = (event for event in trace["traceEvents"] if event["ph"] == "X")
    inner, outer = stack_of(trace, a["sf"])
    if not names:
        assert (outer["name"], inner["category"]) == ("project_x", "project_y.model")
    assert stack_of(trace, a["esf"]) == [{"name": outer["name"]}]
    assert b["stack"] == [outer["name"], inner["name"]]
    assert not isinstance(stack_of(trace, c["sf"]), list)


def test_samples_beside_the_events_name_the_same_frames_when_they_are_anonymous(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(path, SECRETS, {"name": "a", "sf": 7}, late=False)
    path.write_text(json.dumps({**json.loads(path.read_text()), "samples": [{"tid": 1, "ts": 1, "sf": 7}, "odd"]}))
    anonymise_traces([(str(path), str(tmp_path / "out.json"))])
    trace = json.loads((tmp_path / "out.json").read_text())
    [event] = trace["traceEvents"]
    assert trace["samples"] == [{"tid": 1, "ts": 1, "sf": event["sf"]}, "odd"]


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
