"""The Composer-compatible path in a loop without Composer: its handlers, its profiler, its schedules, its calls."""

from __future__ import annotations

import enum
import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tracekit import ConfigError, MemoryTraceHandler, Source
from tracekit.integrations import composer
from tracekit.integrations.composer import (
    Event,
    JSONTraceHandler,
    Marker,
    Profiler,
    ProfilerAction,
    Time,
    Timestamp,
    TimeUnit,
    TraceHandler,
    cyclic_schedule,
    ensure_time,
)
from tracekit.integrations.composer.handler import adapted
from tracekit.testing import TraceHandlerContract

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIET: dict[str, Any] = {
    "sys_prof_cpu": False,
    "torch_prof_profile_memory": False,
    "torch_prof_with_flops": False,
    "rank": 0,
    "run_id": "r",
}


class OwnNames(TraceHandler):
    """Has methods and attributes of its own, by names that mean something to tracekit and nothing to Composer."""

    def __init__(self) -> None:
        self._events = self._state = self._hooks = self._handler = "mine"
        self.flushed = 0

    def flush(self, how: str) -> None:
        self.flushed += 1

    def fails(self, *_: Any) -> None:
        raise AssertionError

    open = summary = process_events = fails

    def batch_end(self, state: Any, logger: Any) -> None:
        self.flush("as I like it")


def always(state: Any) -> ProfilerAction:
    return ProfilerAction.ACTIVE


def tells(name: str, field: str = "") -> Any:
    """Make a hook that notes its name, and a field of the training time."""

    def hook(self: ReferenceHandler, state: Any, logger: Any) -> None:
        self.life.append(f"{name} {int(getattr(state.timestamp, field))}" if field else name)

    return hook


class ReferenceHandler(TraceHandler):
    """Written as for Composer: it collects strings, and gives them out when a window is to be saved."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.saved: list[tuple[int, list[str]]] = []
        self.life: list[str] = []
        self.files: list[Path] = []

    def init(self, state: Any, logger: Any) -> None:
        self.life.append(f"init {state.run_name}")

    fit_start, fit_end = tells("fit_start"), tells("fit_end")
    epoch_start, epoch_end = tells("epoch_start", "epoch"), tells("epoch_end", "epoch")
    batch_start, close = tells("batch_start", "batch"), tells("close", "batch")

    def batch_end(self, state: Any, logger: Any) -> None:
        self.saved.append((int(state.timestamp.batch), self.queue))
        self.queue = []

    def post_close(self) -> None:
        self.life.append("post_close")

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        self.queue.append(f"{'B' if is_start else 'E'} {name} {','.join(categories)} {timestamp.batch.value}")

    def process_instant_event(
        self, name: str, categories: Sequence[str], timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        self.queue.append(f"i {name}")

    def process_counter_event(
        self, name: str, categories: Sequence[str], timestamp: Timestamp, wall_clock_time_ns: int, values: Any
    ) -> None:
        self.queue.append(f"C {name} {json.dumps(values)}")

    def process_chrome_json_trace_file(self, filepath: Any) -> None:
        self.files.append(filepath)


@pytest.mark.parametrize("native", [True, False])
def test_a_handler_written_for_composer_gets_what_composer_gives_in_composers_form(native: bool) -> None:
    handler = ReferenceHandler()
    profiler: Any = Profiler(always, handler, **QUIET)
    if native:
        profiler = tracekit.Profiler(handler, rank=0, run_id="r", record_batches=False)
    with profiler:
        for _ in range(2):
            with profiler.marker("m", categories=["a", "b"]):
                pass
            profiler.marker("i").instant()
            profiler.marker("c").counter({"x": 1.5})
            profiler.step()
        profiler.record_chrome_json_trace_file("torch.json")
        profiler.next_epoch()
    assert handler.saved == [
        (1, ["B m a,b 0", "E m a,b 0", "i i", 'C c {"x": 1.5}']),
        (2, ["B m a,b 1", "E m a,b 1", "i i", 'C c {"x": 1.5}']),
    ]
    assert handler.files == [Path("torch.json")]
    assert handler.life == [
        *("init r", "fit_start", "epoch_start 0", "batch_start 0", "batch_start 1"),
        *("epoch_end 1", "fit_end", "close 2", "post_close"),
    ]
    assert profiler.stats.failures == {}


def test_run_event_gets_every_event_and_super_works_through_the_subclasses() -> None:
    calls: list[str] = []

    class Base(TraceHandler):
        def batch_end(self, state: Any, logger: Any) -> None:
            calls.append("base")

    class Derived(Base):
        def run_event(self, event: Any, state: Any, logger: Any) -> None:
            calls.append(event.value)
            if event == Event.BATCH_END:
                super().run_event(event, state, logger)

        def batch_end(self, state: Any, logger: Any) -> None:
            calls.append("derived")
            super().batch_end(state, logger)
            super().epoch_end(state, logger)  # Composer's own does nothing

    with tracekit.Profiler(Derived(), rank=0) as profiler:
        profiler.step()
    assert calls == [*("init", "fit_start", "epoch_start", "batch_start", "batch_end", "derived", "base", "fit_end")]


def test_what_a_handler_calls_its_own_methods_and_attributes_does_not_matter() -> None:
    handler = OwnNames()
    with tracekit.Profiler([handler], rank=0) as profiler:
        profiler.marker("m").instant()
        profiler.step()
        profiler.step()
    assert (handler.flushed, handler._events, profiler.stats.failures) == (2, "mine", {})


def test_a_handler_is_told_which_of_its_hooks_nobody_calls(caplog: pytest.LogCaptureFixture) -> None:
    class Wants(TraceHandler):
        def before_forward(self, state: Any, logger: Any) -> None:
            raise AssertionError

    with caplog.at_level(logging.WARNING), tracekit.Profiler(Wants(), rank=0):
        pass
    assert "Wants.before_forward will not be called" in caplog.text
    assert "composer.Callback" in caplog.text


def test_what_only_a_trainer_has_is_missing_with_a_reason_and_never_reaches_the_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Uploads(TraceHandler):
        def batch_end(self, state: Any, logger: Any) -> None:
            assert state.dataloader_len is None
            assert state.profiler is profiler
            logger.upload_file("a", "b")

        def epoch_end(self, state: Any, logger: Any) -> None:
            state.model.eval()

        def close(self, state: Any, logger: Any) -> None:
            raise RuntimeError("no")

    closed: list[str] = []
    Uploads.post_close = lambda self: closed.append("post_close")  # type: ignore[method-assign]
    with tracekit.Profiler(Uploads(), rank=0) as profiler:
        profiler.step()
        profiler.next_epoch()
    assert "the logger has no 'upload_file': no Composer Trainer runs this loop" in caplog.text
    assert "the state has no 'model'" in caplog.text
    assert profiler.stats.failures == {"Uploads.batch_end": 1, "Uploads.epoch_end": 1, "Uploads.close": 1}
    assert closed == []  # as in Composer: only where close did not fail


def test_a_state_that_is_kept_knows_the_profiler_that_runs_now_and_init_may_fail() -> None:
    kept: list[Any] = []

    class Keeps(TraceHandler):
        def init(self, state: Any, logger: Any) -> None:
            kept.append(state)
            if len(kept) == 2:
                raise FileNotFoundError("no folder")

    with tracekit.Profiler(Keeps(), rank=0) as profiler:  # it becomes the active one after `init`
        assert kept[0].profiler is profiler
    assert kept[0].profiler is None
    with pytest.raises(tracekit.HandlerError, match="no folder"):
        tracekit.Profiler(Keeps(), rank=0).start()


class TestAHandlerOfComposersOwnClassKeepsTheContract(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> tracekit.TraceHandler:
        return adapted(OwnNames())


def test_the_usual_calls_of_a_script_for_composer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("psutil", reason="psutil is not installed")
    monkeypatch.chdir(tmp_path)
    earlier = Path("r/traces/ep0-ba0-rank0.json")
    earlier.parent.mkdir(parents=True)
    earlier.write_text("of an earlier run")
    profiler = Profiler(
        trace_handlers=[JSONTraceHandler(folder="{run_name}/traces", overwrite=True)],
        schedule=cyclic_schedule(wait=0, warmup=1, active=2, repeat=1),
        torch_prof_folder="torch",
        torch_prof_overwrite=True,
        torch_prof_memory_filename=None,
        run_id="r",
        rank=0,
    )
    assert profiler.remote_filenames == []
    with profiler:
        for batch in range(4):
            marker = profiler.marker("train", categories=["mine"])
            assert isinstance(marker, Marker)
            marker.start()
            marker.finish()
            if batch == 0:
                profiler.marker("warm", [ProfilerAction.WARMUP]).instant()
            profiler.step(samples=8)
        assert profiler.timestamp.sample == Time(32, TimeUnit.SAMPLE)
        assert profiler.timestamp >= ensure_time("4ba", TimeUnit.BATCH)
    assert earlier.read_text() == "of an earlier run", "nothing is replaced"
    assert [path.name for path in Path("torch").iterdir()] == ["rank0.1.pt.trace.json"]
    (trace,) = set(earlier.parent.iterdir()) - {earlier}
    assert trace.name == "ep0-ba0-rank0-2.json"
    names = [event["name"] for event in json.loads(trace.read_text()) if event["ph"] in "XBi"]
    assert sorted(names) == ["train"] * 3 + ["warm"]
    # Not their counters: the loop may be over before any rate is known.
    sources = [type(source).__name__ for source in profiler.recorder._options.sources]
    assert sources == ["SystemProfiler", "TorchProfiler"]


def test_a_schedule_written_for_composers_state_decides(caplog: pytest.LogCaptureFixture) -> None:
    def schedule(state: Any) -> Any:
        if state.timestamp.batch == 3:
            return ProfilerAction.SKIP
        return "ACTIVE" if int(state.timestamp.batch_in_epoch) > 0 else "skip"

    memory = MemoryTraceHandler()
    with Profiler(schedule, memory, **QUIET) as profiler:
        for _ in range(4):
            profiler.marker("m").instant()
            profiler.step()
        assert profiler.schedule(type("State", (), {"timestamp": Timestamp(batch=9, batch_in_epoch=9)})) is (
            ProfilerAction.ACTIVE
        )
    assert [int(event.timestamp.batch) for event in memory.events] == [1, 2]
    assert "failed" not in caplog.text


def test_the_schedule_of_a_resumed_profiler_answers_as_it_records() -> None:
    with Profiler(cyclic_schedule(1, 0, 0, 1), MemoryTraceHandler(), **QUIET) as profiler:
        profiler.resume_at(Timestamp(batch=3, batch_in_epoch=3))
        profiler.step()
        assert profiler.schedule(profiler) is profiler.action is ProfilerAction.ACTIVE_AND_SAVE


@pytest.mark.parametrize(
    ("actions", "recorded"),
    [
        ((), []),
        ([ProfilerAction.ACTIVE], [2, 3]),
        (["active", "WARMUP"], [1, 2, 3]),
        ([ProfilerAction.SKIP], [0, 4]),
        ((ProfilerAction.WARMUP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE), [1, 2, 3]),
    ],
)
def test_markers_record_in_the_actions_they_name_and_what_records_in_active_also_in_the_batch_that_is_saved(
    actions: Any, recorded: list[int]
) -> None:
    memory = MemoryTraceHandler()
    with Profiler(cyclic_schedule(0, 1, 1, 2), memory, **QUIET) as profiler:
        for _ in range(5):
            profiler.marker("m", actions, False, False, ["c"]).instant()
            profiler.step()
    assert [int(event.timestamp.batch) for event in memory.events] == recorded
    assert {event.label.categories for event in memory.events} <= {("c",)}


def test_the_first_call_decides_about_a_marker_as_the_start_and_the_finish_of_a_slice_are_asked_for_differently() -> (
    None
):
    memory = MemoryTraceHandler()
    with Profiler(always, memory, **QUIET) as profiler:
        profiler.marker("m", [ProfilerAction.ACTIVE], categories=["a"]).start()
        profiler.marker("m", [ProfilerAction.SKIP]).finish()
        profiler.marker("m", categories=["b"]).instant()
        profiler.marker("callback/TracekitCallback/event/fit_end", [ProfilerAction.ACTIVE]).instant()
    kinds = [(type(event).__name__, event.label.categories) for event in memory.events]
    assert kinds == [("SliceBegin", ("a",)), ("SliceEnd", ("a",)), ("Instant", ("b",))]


def test_the_arguments_become_the_sources_and_the_options_of_tracekit() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("psutil", reason="psutil is not installed")

    def kinds(**arguments: Any) -> list[str]:
        made = Profiler(always, [], **arguments)
        sources: list[Source] = made._options["sources"]
        return [type(source).__name__ for source in sources]

    assert kinds() == ["SystemProfiler", "TorchProfiler"]
    assert kinds(sys_prof_cpu=False) == ["TorchProfiler"]
    assert kinds(torch_prof_profile_memory=False, torch_prof_with_flops=False) == ["SystemProfiler"]
    assert Profiler(always, [], **QUIET).counts == "global"
    with pytest.raises(ConfigError, match="with_stack=True"):
        kinds(torch_prof_memory_filename="memory{batch}.html")
    with pytest.raises(ConfigError, match="schedule must be a function"):
        Profiler(5, [])  # type: ignore[arg-type]


def test_names_with_composers_fields_and_urls_are_those_of_tracekit() -> None:
    def template(**arguments: Any) -> Any:
        return JSONTraceHandler(**arguments)._name.template

    assert template() == "{run_id}/traces/ep{epoch}-ba{batch}-rank{rank}.json"
    assert template(folder="a/", filename="n{node_rank}-{rank}.json") == "a/n{node}-{rank}.json"
    assert template(remote_file_name="s3://b/{run_name}/{rank}-{batch}.json").startswith("s3://b/{run_id}/{rank}-")
    with pytest.raises(ConfigError, match=r"there is no field \{total_wct\}"):
        template(filename="{total_wct}.json")
    with pytest.raises(ConfigError, match="num_traces_to_keep"):
        template(num_traces_to_keep=0)
    assert template(num_traces_to_keep=1)


def test_handlers_can_be_replaced_until_they_are_used() -> None:
    first, second = MemoryTraceHandler(), MemoryTraceHandler()
    profiler = Profiler(always, first, **QUIET)
    assert profiler.trace_handlers == [first]
    profiler.trace_handlers = [second]
    with profiler:
        profiler.marker("m").instant()
    assert (len(first.events), len(second.events)) == (0, 1)
    with pytest.raises(ConfigError, match="before the profiler is used"):
        profiler.trace_handlers = first
    with pytest.raises(ConfigError, match="trace_handlers must be a TraceHandler"):
        Profiler(always, [first, 5], **QUIET)
    with pytest.raises(AttributeError):
        profiler._nothing_of_this_name  # noqa: B018


def test_every_name_of_composers_profiler_can_be_imported_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "composer", None)
    monkeypatch.setitem(sys.modules, "composer.core", None)
    monkeypatch.delitem(sys.modules, "tracekit.integrations.composer.callback", raising=False)
    names: dict[str, Any] = {}
    exec("from tracekit.integrations.composer import *", names)
    named = {"Marker", "Profiler", "ProfilerAction", "TraceHandler", "cyclic_schedule", "JSONTraceHandler"}
    assert named | {"Time", "TimeUnit", "Timestamp", "ensure_time"} <= set(composer.__all__) <= set(names)
    assert (composer.SystemProfiler, composer.TorchProfiler) == (tracekit.SystemProfiler, tracekit.TorchProfiler)
    with pytest.raises(AttributeError, match="nothing"):
        composer.nothing  # noqa: B018
    with pytest.raises(ImportError, match="pip install mosaicml"):
        composer.TracekitCallback  # noqa: B018


class FakeEvent(enum.Enum):
    """As Composer's, as far as a handler hears of it."""

    INIT = "init"
    FIT_START = "fit_start"
    EPOCH_START = "epoch_start"
    BATCH_START = "batch_start"
    FIT_END = "fit_end"

    @property
    def is_before_event(self) -> bool:
        return False

    is_after_event = is_before_event


class FakeEngine:
    """As Composer's: asks the profiler for markers of its own, and calls the callbacks of the state."""

    def __init__(self, profiler: Profiler) -> None:
        self.profiler = profiler
        self.state = SimpleNamespace(
            callbacks=[], run_name="named", timestamp=Timestamp(), dataloader_len=7, profiler=profiler
        )
        profiler.bind_to_state(self.state)

    def run_event(self, event: FakeEvent, logger: Any) -> None:
        for callback in self.state.callbacks:
            with self.profiler.marker(f"callback/{type(callback).__name__}/event/{event.value}"):
                callback.run_event(event, self.state, logger)

    def close(self) -> None:
        for callback in self.state.callbacks:
            callback.close(self.state, None)


@pytest.fixture
def fake_composer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of ``composer.core`` as the callback imports."""
    core = ModuleType("composer.core")
    core.Callback, core.Event = type("Callback", (), {}), FakeEvent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "composer.core", core)
    monkeypatch.setitem(sys.modules, "composer", ModuleType("composer"))
    monkeypatch.delitem(sys.modules, "tracekit.integrations.composer.callback", raising=False)


@pytest.mark.usefixtures("fake_composer")
@pytest.mark.parametrize("marker_first", [False, True])
def test_a_bound_handler_has_the_state_and_with_the_first_event_the_logger(marker_first: bool) -> None:
    class Asks(TraceHandler):
        def init(self, state: Any, logger: Any) -> None:
            seen.append(("init", state.dataloader_len, logger if isinstance(logger, str) else None))

        def close(self, state: Any, logger: Any) -> None:
            seen.append(("close", state.dataloader_len, logger))

    seen: list[Any] = []
    profiler = Profiler(always, [Asks(), memory := MemoryTraceHandler()], **QUIET)
    engine = FakeEngine(profiler)
    if marker_first:
        profiler.marker("mine").instant()
    engine.run_event(FakeEvent.INIT, "logger")
    profiler.marker("mine").instant()
    engine.close()
    assert seen == [("init", 7, None if marker_first else "logger"), ("close", 7, "logger")]
    assert [event.label.name for event in memory.events] == ["mine"] * (1 + marker_first)
    assert profiler.recorder.stats.failures == {}


@pytest.mark.parametrize(
    ("arguments", "merged", "every_window"),
    [
        (("{run_name}/a", "{batch}-{rank}.json", None, "m.json"), "{run_id}/a/m.json", False),
        (("t", "{batch}-{rank}.json", None, "m-{batch}.json"), "t/m-{batch}.json", True),
        (("t", "{rank}.json", None, "m.json", "{run_name}/m.json"), "t/m.json", False),
        (("t", "{rank}.json", "s3://b/{rank}.json", "m.json", "s3://b/{run_name}.json"), "s3://b/{run_id}.json", False),
        (("t", "{rank}.json", None, "node{node_rank}.json"), "t/node{node}.json", False),
        (("t",), None, False),
        (("t", "{rank}.json", None, None, "s3://b/m.json"), None, False),
    ],
)
def test_a_merged_trace_is_named_as_in_composer(
    arguments: tuple[Any, ...], merged: str | None, every_window: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = JSONTraceHandler(*arguments).__reduce__()[0].keywords
    assert (options["merged_filename"], options["merge_every_window"]) == (merged, every_window)
    assert ("nothing is merged: merged_trace_remote_file_name needs" in caplog.text) == (
        merged is None and len(arguments) > 1
    )
