"""What is sent to child processes: markers, handlers, recordings; and what a forked child does with its parent's markers."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from dataclasses import replace
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
    marker,
)
from tracekit.recording import lifecycle
from tracekit.recording.children import ChildPlan, ChildRecording, SharedAction
from tracekit.recording.loaders import WorkerRecording, recording_loader

if TYPE_CHECKING:
    from pathlib import Path


def profiler(*handlers: Any, **options: Any) -> Profiler:
    return Profiler(list(handlers), rank=0, record_batches=False, **options)


def test_a_pickled_marker_records_into_the_profiler_that_is_active_where_it_is_unpickled() -> None:
    with profiler(MemoryTraceHandler()) as one:
        sent = pickle.dumps(one.marker("sent", ("a",), record_instant_on_start=True))
    memory = MemoryTraceHandler()
    with profiler(memory):
        found = pickle.loads(sent)
        with found:
            pass
        assert found is marker("sent", ("a",), record_instant_on_start=True)
        assert copy.deepcopy([found]) == [found]
    assert [start.label.name for start, _ in memory.slices] == ["sent"]
    assert [instant.label.categories for instant in memory.instants] == [("a",)]


def test_a_profiler_is_not_pickled_and_says_what_is() -> None:
    with pytest.raises(ConfigError, match="child_recording"):
        pickle.dumps(profiler())
    with pytest.raises(ConfigError, match="worker_init_fn"):
        profiler().worker_init_fn(5)  # type: ignore[arg-type]


def test_a_pickled_handler_is_one_that_is_set_up_alike_and_not_open(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "t-{batch}-{part}.json", rotate_bytes=10_000, num_traces_to_keep=3)
    with profiler(handler) as one:
        with one.marker("a"):
            pass
        one.flush()
        assert len(handler.paths) == 1
        again = pickle.loads(pickle.dumps(handler))
        assert again.paths == []
        with pytest.raises(TypeError, match="being written"):
            pickle.dumps(handler._trace.segment.file)
    assert again.__reduce__()[0].keywords == handler.__reduce__()[0].keywords
    assert again.__reduce__()[0].keywords["num_traces_to_keep"] == 3


def plan_of(parent: Profiler) -> ChildPlan:
    plan = parent.child_plan()
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a/rank{rank}.json", "a/rank0-worker1-{pid}.json"),
        ("rank{rank}-part{part:04d}.json.gz", "rank0-part0000-worker1-{pid}.json.gz"),
        ("a.json/t.json", "a.json/t-worker1-{pid}.json"),
    ],
)
def test_a_childs_file_has_the_childs_name_and_pid(tmp_path: Path, template: str, expected: str) -> None:
    with profiler(JSONTraceHandler(tmp_path / template)) as parent:
        plan = plan_of(parent)
    process = plan.process.as_child("worker 1", 1)
    with profiler(plan.handlers[0]("worker 1"), process=process) as child, child.marker("a"):
        pass
    assert (tmp_path / expected.format(pid=os.getpid())).exists()
    assert child.process.worker == 1
    assert child.process.parent_pid == os.getpid()


def test_a_child_makes_no_file_before_it_has_something_to_say_and_takes_another_name_where_one_is_taken(
    tmp_path: Path,
) -> None:
    with profiler(JSONTraceHandler(tmp_path / "deep" / "t.json")) as parent:
        plan = plan_of(parent)
    (tmp_path / "deep" / "t.json").unlink()
    process = plan.process.as_child("decoder")
    for number in range(3):
        with profiler(plan.handlers[0]("decoder"), process=process) as child:
            child.flush()
            assert len(list((tmp_path / "deep").glob("*.json"))) == max(number - 1, 0)
            if number:
                child.marker("a").instant()
    name = f"t-decoder-{os.getpid()}"
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == [f"{name}-2.json", f"{name}.json"]


def test_nothing_is_recorded_by_children_while_the_parent_records_nothing() -> None:
    parent = profiler(MemoryTraceHandler())
    recording = parent.child_recording("child")
    assert recording.plan is None
    assert recording.start() is None
    assert pickle.loads(pickle.dumps(recording)).start() is None
    called: list[int] = []
    parent.worker_init_fn(called.append)(7)
    assert called == [7]
    with parent:
        # In the parent itself there is nothing to do: its profiler records already.
        assert recording.start() is None
        assert recording.plan is not None
        assert recording.plan.handlers == ()
    assert recording.plan is None


def test_a_recording_is_sent_with_what_it_takes_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timestamp = Timestamp().to_next_epoch()
    with profiler(JSONTraceHandler(tmp_path / "t.json"), timestamp=timestamp, flush_interval=0.1) as one:
        sent = pickle.dumps((one.child_recording("decoder"), one.worker_init_fn(print)))
    child, worker = pickle.loads(sent)
    assert isinstance(child.plan, ChildPlan)
    assert child.plan.options["flush_interval"] == 0.1
    assert child.plan.options["shutdown_timeout"] <= 2.0
    assert child.plan.options["timestamp"] == timestamp
    assert isinstance(worker, WorkerRecording)
    # The parent's recording has ended, and with it that of its children: these are told nothing of it.
    child, worker = (
        type(sent)(replace(sent.plan, action=None), *args) for sent, args in ((child, ("decoder",)), (worker, (print,)))
    )
    with child:
        with marker("in the child"):
            pass
        running = child.start()
        assert running.process.child == "decoder"
        assert running.timestamp == timestamp
        assert child.start() is running
    assert len(list(tmp_path.glob("t-decoder-*.json"))) == 1
    with child, marker("again"):
        pass
    assert len(list(tmp_path.glob("t-decoder-*.json"))) == 2
    monkeypatch.setattr(os, "getpid", lambda: 5)
    kind = getattr(sys.modules.get("torch.utils.data.dataloader"), "_DatasetKind", None)
    if kind is not None:  # what a worker changes in its own process stays there; this is that of the tests
        monkeypatch.setattr(kind, "create_fetcher", kind.create_fetcher)
    worker(2)
    assert worker.start().process.child == "worker 2"
    worker.stop()


def test_a_child_that_cannot_record_says_so_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with profiler(JSONTraceHandler(tmp_path / "gone" / "t.json")) as one:
        plan = one.child_plan()
    (tmp_path / "gone" / "t.json").unlink()
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").write_text("")
    with ChildRecording(plan, "decoder") as recording:
        assert recording.start() is None
    assert "decoder (pid" in caplog.text
    assert "records nothing" in caplog.text
    monkeypatch.setenv("TRACEKIT_STRICT", "1")
    with pytest.raises(Exception, match="cannot be written"):
        ChildRecording(plan, "decoder").start()


class Loader:
    """Looks like a torch DataLoader, where its class says so."""

    num_workers = 2
    worker_init_fn: Any = None


class DataLoader(Loader):
    """Stands for torch's."""


DataLoader.__module__ = "torch.utils.data.dataloader"


def test_only_a_torch_loader_with_workers_is_touched_and_only_while_it_starts_them() -> None:
    one = profiler()
    for loader in (DataLoader(), type("Subclassed", (DataLoader,), {})()):
        loader.worker_init_fn = print
        with recording_loader(loader, one):
            assert isinstance(loader.worker_init_fn, WorkerRecording)
        assert loader.worker_init_fn is print
    without = DataLoader()
    without.num_workers = 0
    mine = DataLoader()
    mine.worker_init_fn = one.worker_init_fn(print)
    for other in (Loader(), without, mine, [1, 2]):
        before = getattr(other, "worker_init_fn", None)
        with recording_loader(other, one):
            assert getattr(other, "worker_init_fn", None) is before


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")
def test_the_schedule_is_seen_through_a_pickle_and_ends_with_the_parent() -> None:
    shared = SharedAction(ProfilerAction.WARMUP)
    view = pickle.loads(pickle.dumps(shared.view()))
    late = pickle.loads(pickle.dumps(shared.view()))
    assert view.changed()
    assert view(Timestamp()) is ProfilerAction.WARMUP
    assert not view.changed()
    shared.set(ProfilerAction.ACTIVE)
    assert view.changed()
    assert view(Timestamp()) is ProfilerAction.ACTIVE
    descriptor = shared._descriptor
    shared.close()
    assert view(Timestamp()) is ProfilerAction.SKIP
    assert late(Timestamp()) is ProfilerAction.SKIP
    following = SharedAction(ProfilerAction.ACTIVE)
    assert following._descriptor == descriptor
    assert late(Timestamp()) is ProfilerAction.SKIP, "it reads the action of no other recording"
    following.close()


def test_the_schedule_of_the_parent_changes_no_other_profiler_of_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Timestamp] = []

    def schedule(timestamp: Timestamp) -> ProfilerAction:
        asked.append(timestamp)
        return ProfilerAction.ACTIVE

    with profiler(JSONTraceHandler(tmp_path / "t.json"), schedule=lambda _: ProfilerAction.ACTIVE) as parent:
        monkeypatch.setattr(lifecycle, "_active", [])  # as in a child
        with parent.child_recording("child") as recording, profiler(MemoryTraceHandler(), schedule=schedule):
            child = recording.start()
            assert child is not None
            assert parent._shared_action is not None
            parent._shared_action.set(ProfilerAction.SKIP)
            assert child.flush()
            assert child.action is ProfilerAction.SKIP
        monkeypatch.undo()
    assert len(asked) == 1, "at its start"


def test_a_handler_that_fails_to_say_what_children_use_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(TraceHandler):
        def for_children(self) -> Any:
            raise OSError("no")

    with profiler(Fails()) as one:
        assert plan_of(one).handlers == ()
    assert one.stats.failures == {"Fails.for_children": 1}


def test_the_children_of_a_private_recording_are_private_in_the_same_way(tmp_path: Path) -> None:
    with profiler(JSONTraceHandler(tmp_path / "t.json"), private=True) as one:
        plan = plan_of(one)
    with ChildRecording(plan, "decoder") as child, marker("a"):
        found = child.start()
    assert found is not None
    assert found.process.private
    assert (found.process.host, found.process.boot_id) == (one.process.host, one.process.boot_id)
