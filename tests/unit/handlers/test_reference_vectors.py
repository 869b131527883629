"""What Composer's profiler does in each observed case, and what tracekit does there instead.

The cases are those of the project's fact sheet on the reference systems, sections 5.2 to 5.7 (5.1, the schedule, is in
test_schedule.py; section 2, time, in test_time.py and test_timestamp.py). Each test names what the reference does.
"""

from __future__ import annotations

import gzip
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import (
    ConfigError,
    JSONTraceHandler,
    MemoryTraceHandler,
    Profiler,
    ProfilerAction,
    Timestamp,
    TraceHandler,
    cyclic_schedule,
    merge_traces,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SKIP, ACTIVE, SAVE = ProfilerAction.SKIP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE


def profiler(handler: TraceHandler, schedule: Callable[[Timestamp], ProfilerAction] | None = None) -> Profiler:
    return Profiler(handler, schedule, rank=0, run_id="r", record_batches=False, flush_interval=3600)


def recorded(play: Callable[[Profiler], None], actions: Sequence[ProfilerAction] = (ACTIVE,)) -> str:
    """Return the starts (B) and finishes (E) that a handler gets when batch n has the n-th action, the last one for ever."""
    memory = MemoryTraceHandler()
    with profiler(memory, lambda now: actions[min(int(now.batch), len(actions) - 1)]) as one:
        play(one)
    return "".join("B" if type(event).__name__ == "SliceBegin" else "E" for event in memory.events)


# ---- 5.3 the marker -------------------------------------------------------------------------------------------------------


def test_in_skip_a_marker_sends_nothing_where_the_reference_sends_a_finish() -> None:
    def play(one: Profiler) -> None:
        with one.marker("m"):
            pass

    assert recorded(play, [SKIP]) == ""


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ((SKIP, ACTIVE), ""),  # the reference: a finish without a start
        ((ACTIVE, SKIP), "BE"),
        ((ACTIVE, SAVE), "BE"),
        ((SAVE, SKIP), "BE"),  # the reference's event markers lose the start in the batch that saves
    ],
)
def test_a_slice_across_a_change_of_action_is_whole_or_not_there(
    actions: tuple[ProfilerAction, ...], expected: str
) -> None:
    def play(one: Profiler) -> None:
        marker = one.marker("m")
        marker.start()
        one.step()
        marker.finish()

    assert recorded(play, actions) == expected


def test_a_started_marker_may_be_started_again_where_the_reference_raises() -> None:
    def play(one: Profiler) -> None:
        marker = one.marker("m")
        with marker, marker:
            pass

    assert recorded(play) == "BBEE"


def test_a_finish_without_a_start_does_nothing_where_the_reference_raises() -> None:
    assert recorded(lambda one: one.marker("m").finish()) == ""


def test_four_threads_with_one_marker_record_all_800_slices_where_600_raise_in_the_reference() -> None:
    def play(one: Profiler) -> None:
        def work() -> None:
            for _ in range(200):
                with one.marker("m"):
                    pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    events = recorded(play)
    assert (events.count("B"), events.count("E")) == (800, 800)


def test_a_decorated_function_keeps_its_value_and_may_call_itself_where_the_reference_gives_none_and_raises() -> None:
    def play(one: Profiler) -> None:
        @one.marker("m")
        def factorial(n: int) -> int:
            return 1 if n <= 1 else n * factorial(n - 1)

        assert factorial(4) == 24

    assert recorded(play) == "BBBBEEEE"


@pytest.mark.parametrize("fails_at", [True, False])
def test_a_handler_that_raises_leaves_the_marker_usable_and_training_unharmed(fails_at: bool) -> None:
    class Raises(TraceHandler):
        inline = True  # the reference calls handlers inside the marker

        def process_duration_event(
            self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
        ) -> None:
            if is_start is fails_at:
                raise RuntimeError("no")

    memory = MemoryTraceHandler()
    with Profiler([Raises(), memory], rank=0, record_batches=False) as one:
        for _ in range(3):
            with one.marker("m"):
                pass
    assert len(memory.slices) == 3


# ---- 5.2 and 5.5 the profiler and the trace file --------------------------------------------------------------------------


def test_asking_for_a_marker_again_does_not_take_its_categories_away(tmp_path: Path) -> None:
    memory = MemoryTraceHandler()
    with profiler(memory) as one:
        first = one.marker("m", categories=["a", "b"])
        one.marker("m")
        with first:
            pass
    assert memory.slices[0][0].label.categories == ("a", "b")


def test_nothing_is_profiled_that_was_not_asked_for() -> None:
    memory = MemoryTraceHandler()
    with profiler(memory) as one:
        one.step()
    assert memory.events == []


def test_a_cycle_that_the_end_of_the_run_cuts_short_is_in_the_file_where_the_reference_writes_none(
    tmp_path: Path,
) -> None:
    handler = JSONTraceHandler(tmp_path / "ep{epoch}-ba{batch}.json")
    with Profiler(handler, cyclic_schedule(warmup=0, active=4), rank=0) as one, one.marker("m"):
        one.step()
    (path,) = handler.paths
    names = [event["name"] for event in json.loads((tmp_path / path).read_text()) if event["ph"] in "XB"]
    assert sorted(names) == ["batch", "m"]


def test_every_cycle_of_the_schedule_is_kept(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "ep{epoch}-ba{batch}.json")
    with Profiler(handler, cyclic_schedule(warmup=0, wait=1, active=1, repeat=0), rank=0) as one:
        for _ in range(6):
            with one.marker("m"):
                pass
            one.step()
    assert [path.rpartition("/")[2] for path in handler.paths] == ["ep0-ba1.json", "ep0-ba3.json", "ep0-ba5.json"]


def test_a_counter_of_nan_or_of_anything_else_is_valid_json_and_does_not_raise(tmp_path: Path) -> None:
    from decimal import Decimal

    values: Any = {"nan": float("nan"), "text": "x", "decimal": Decimal("1.5"), "object": object(), "good": 2}
    with profiler(JSONTraceHandler(tmp_path / "t.json")) as one:
        one.marker("c").counter(values)
    (counter,) = [event for event in json.loads((tmp_path / "t.json").read_text()) if event["ph"] == "C"]
    assert counter["args"] == {"decimal": 1.5, "good": 2}


# ---- 5.6 the merger -------------------------------------------------------------------------------------------------------


def rank_file(folder: Path, rank: int, marker: str = "m") -> Path:
    with Profiler(
        JSONTraceHandler(folder / ("rank{rank}-" + marker + ".json")),
        rank=rank,
        world_size=4,
        run_id="r",
        flush_interval=3600,
    ) as one:
        with one.marker(marker):
            pass
        one.marker("i").instant()
    return folder / f"rank{rank}-{marker}.json"


TORCH = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": 1790857026000000000,
    "displayTimeUnit": "ms",
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 7, "tid": 7, "ts": 100.5, "dur": 2.25},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 1, "dur": 9},
    ],
}  # fmt: skip


def merged_names(output: Path) -> dict[str, list[str]]:
    """Return the names of the slices in a merged trace by the rank of their process."""
    events = json.loads(output.read_text())["traceEvents"]
    titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault(titles[event["pid"]].split(" · ")[0], []).append(event["name"])
    return found


def test_a_torch_trace_alone_merges_where_the_reference_fails_on_an_assertion(tmp_path: Path) -> None:
    (tmp_path / "torch.json").write_text(json.dumps(TORCH))
    merge_traces(str(tmp_path / "out.json"), [str(tmp_path / "torch.json")])
    assert sorted(merged_names(tmp_path / "out.json")["rank 0"]) == ["PyTorch Profiler (0)", "op"]


def test_times_of_newer_torch_traces_keep_their_base_where_the_reference_is_56_years_off(tmp_path: Path) -> None:
    (tmp_path / "torch.json").write_text(json.dumps({**TORCH, "rank": 0}))
    rank_file(tmp_path, 1)
    report = merge_traces(str(tmp_path / "out.json"), [str(tmp_path / "torch.json"), str(tmp_path / "rank1-m.json")])
    (op,) = [event for event in json.loads((tmp_path / "out.json").read_text())["traceEvents"] if event["name"] == "op"]
    assert report.base_time_ns + round(op["ts"] * 1000) == 1790857026000000000 + 100_500


@pytest.mark.parametrize("damage", ["missing bracket", "trailing comma", "event without a name", "gz"])
def test_inputs_that_stop_the_reference_are_merged(tmp_path: Path, damage: str) -> None:
    source = rank_file(tmp_path, 0)
    text = source.read_text()
    if damage == "missing bracket":
        source.write_text(text.rstrip().removesuffix("]"))
    elif damage == "trailing comma":
        source.write_text(text.rstrip().removesuffix("]").rstrip() + ",\n]")
    elif damage == "event without a name":
        source.write_text(text.replace("[\n", '[\n{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1},\n', 1))
    else:
        source.unlink()
        source = tmp_path / "rank0-m.json.gz"
        source.write_bytes(gzip.compress(text.encode()))
    report = merge_traces(str(tmp_path / "out.json"), [str(source)])
    assert report.complete
    assert "m" in merged_names(tmp_path / "out.json")["rank 0"] if damage != "event without a name" else True


def test_an_output_that_is_an_input_is_refused_and_left_as_it_was_where_the_reference_destroys_it(
    tmp_path: Path,
) -> None:
    source = rank_file(tmp_path, 0)
    before = source.read_bytes()
    with pytest.raises(ConfigError, match="one of the inputs"):
        merge_traces(str(source), [str(source)], overwrite=True)
    assert source.read_bytes() == before


def test_an_earlier_merge_with_new_cycles_keeps_every_rank_where_the_reference_makes_them_one(tmp_path: Path) -> None:
    first = merge_traces(str(tmp_path / "one.json"), [str(rank_file(tmp_path, rank)) for rank in (0, 1)])
    assert first.complete
    later = rank_file(tmp_path, 2, marker="later")
    merge_traces(str(tmp_path / "two.json"), [str(tmp_path / "one.json"), str(later)])
    names = merged_names(tmp_path / "two.json")
    assert {rank: sorted(found) for rank, found in names.items()} == {
        "rank 0": ["m"],
        "rank 1": ["m"],
        "rank 2": ["later"],
    }
