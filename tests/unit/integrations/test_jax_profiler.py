"""JaxProfiler without JAX: after which steps traces begin and end, where they go, and what failures cost."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import typing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.processes import wait_until
from tracekit import MemoryTraceHandler, Profiler, Timestamp
from tracekit.errors import ConfigError, HandlerError
from tracekit.integrations.jax import JaxProfiler, JaxProfilerConfig, recorder, windows
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINUTE_NS = 60_000_000_000


class Annotation:
    """What `TraceAnnotation` and `StepTraceAnnotation` return."""

    def __init__(self, log: list[tuple[Any, ...]], name: str, **args: Any) -> None:
        self._log, self.name, self.args = log, name, args

    def __enter__(self) -> Annotation:
        self._log.append(("begin", self.name, self.args))
        return self

    def __exit__(self, *_: object) -> None:
        self._log.append(("end", self.name, self.args))

    def set_metadata(self, **args: Any) -> None:
        self.args.update(args)


class FakeJax(ModuleType):
    """As much of JAX as the profiler uses: one trace at a time, and two files when it ends."""

    def __init__(self, index: int = 0, count: int = 1) -> None:
        super().__init__("jax")
        self.index, self.count = index, count
        self.events: list[tuple[str, int]] = []
        self.annotations: list[tuple[Any, ...]] = []
        self.waited_for: list[Any] = []
        self.step = 0
        self.folder: str | None = None
        self.profiler = SimpleNamespace(
            start_trace=self.start_trace,
            stop_trace=self.stop_trace,
            TraceAnnotation=lambda name, **args: Annotation(self.annotations, name, **args),
            StepTraceAnnotation=lambda name, **args: Annotation(self.annotations, name, **args),
        )
        self.while_stopping: Callable[[], object] = lambda: None

    def process_index(self) -> int:
        return self.index

    def process_count(self) -> int:
        return self.count

    def block_until_ready(self, arrays: Any) -> None:
        self.waited_for.append(arrays)

    def start_trace(self, folder: str, profiler_options: Any = None) -> None:
        if self.folder is not None:
            raise RuntimeError("Profile has already been started. Only one profile may be run at a time.")
        self.folder = folder
        self.events.append(("start", self.step))

    def stop_trace(self) -> None:
        if self.folder is None:
            raise RuntimeError("No profile started")
        self.while_stopping()
        session = Path(self.folder) / "plugins" / "profile" / "2026_11_21_16_53_16"
        session.mkdir(parents=True)
        (session / "host.lan.xplane.pb").write_bytes(b"")
        (session / "host.lan.trace.json.gz").write_bytes(b"")
        self.folder = None
        self.events.append(("stop", self.step))


@pytest.fixture(autouse=True)
def at_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """What is to be called at the end of the interpreter; here it is called at the end of the test."""
    found: list[Callable[[], None]] = []
    module = SimpleNamespace(register=found.append, unregister=lambda one: found.remove(one) if one in found else None)
    monkeypatch.setattr("tracekit.integrations.jax.profiler.atexit", module)
    yield found
    for function in found[:]:
        function()
    assert found == []


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> FakeJax:
    """A JAX of one process."""
    return use(monkeypatch, FakeJax())


def use(monkeypatch: pytest.MonkeyPatch, fake: FakeJax, client: Any = None) -> FakeJax:
    monkeypatch.setitem(sys.modules, "jax", fake)
    state = SimpleNamespace(client=client, process_id=fake.index, num_processes=fake.count)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", SimpleNamespace(global_state=state))  # type: ignore[arg-type]
    return fake


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class Loop:
    """A training loop with the hooks of a trainer, in a time of its own."""

    def __init__(self, jax: FakeJax, folder: Path, step_minutes: float = 1 / 60, **settings: Any) -> None:
        self.jax = jax
        self.time = FakeClock()
        self.profiler = JaxProfiler(JaxProfilerConfig(**settings), log_path=folder, clock=self.time.clock)
        self.step_ns = round(step_minutes * MINUTE_NS)

    def train(self, first: int, last: int, *, validate: int = 0, epoch_end: int = 0, epoch_every: int = 0) -> None:
        """Train the steps ``first`` to ``last``, with a validation or the end of an epoch after one, or of each epoch."""
        epoch = 0
        for step in range(first, last + 1):
            self.time.advance(self.step_ns)
            self.jax.step = step
            self.profiler.on_training_step({"loss": step}, epoch, step)
            if step == validate:
                self.profiler.on_validation_epoch_start(epoch)
                self.profiler.on_validation_epoch_end({}, epoch)
            if step == epoch_end or (epoch_every and step % epoch_every == 0):
                self.profiler.on_training_epoch_end({}, epoch)
                epoch += 1


def starts_and_stops(*steps: int) -> list[tuple[str, int]]:
    return [("start" if number % 2 == 0 else "stop", step) for number, step in enumerate(steps)]


NEVER: dict[str, Any] = {"profile_every_n_minutes": -1}
SECOND = 1 / 60  # of a minute

# The steps after which traces start and stop; "J1" and so on name the weaknesses of xLSTM-JAX's callback that differ here.
WINDOWS: dict[str, tuple[dict[str, Any], float, tuple[int, int], dict[str, int], list[int]]] = {
    "default": ({}, SECOND, (1, 40), {}, [10, 15]),
    "never by time": (NEVER, 10, (1, 60), {}, [10, 15]),
    # J1: there, the trace by time makes it forget step 10; here, steps 11 to 15 are in the trace that runs by then.
    "slow steps": ({}, 10, (1, 60), {}, [7, 15, 22, 27, 34, 39, 46, 51, 58, 60]),
    "slow steps, later first step": ({"profile_first_step": 20}, 10, (1, 30), {}, [7, 12, 19, 25]),
    "always": ({"profile_every_n_minutes": 0}, SECOND, (1, 20), {}, [1, 6, 7, 15, 16, 20]),
    "validation": ({}, SECOND, (1, 40), {"validate": 12}, [10, 12, 13, 18]),  # J4: what was cut is begun once more
    "end of an epoch": ({}, SECOND, (1, 40), {"epoch_end": 13}, [10, 13, 14, 19]),  # J4
    "epochs of fewer steps": ({}, SECOND, (1, 30), {"epoch_every": 3}, [10, 12, 13, 15]),  # begun once more only
    "by number": ({"every_n_steps": 20, **NEVER}, SECOND, (1, 60), {}, [10, 15, 30, 35, 50, 55]),
    "by epoch": (
        {"every_n_epochs": 2, "profile_first_step": 1, "profile_n_steps": 2, "every_n_steps": 1},
        *(SECOND, (1, 16), {"epoch_every": 4}, [1, 3, 4, 4, 9, 11, 12, 12]),
    ),
    "resumed": ({}, SECOND, (101, 120), {}, [101, 106]),  # J2: there, a first step that is past is missed
    "first step 0": ({"profile_first_step": 0}, SECOND, (1, 20), {}, [1, 6]),  # J2: steps begin at 1
    "run ends": ({}, SECOND, (1, 12), {}, [10, 12]),  # J5: there, the last trace is lost
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_documented_windows(jax: FakeJax, tmp_path: Path, name: str) -> None:
    settings, step_minutes, steps, hooks, expected = WINDOWS[name]
    loop = Loop(jax, tmp_path, step_minutes, **settings)
    loop.profiler.on_training_start()
    loop.train(*steps, **hooks)
    loop.profiler.on_training_end()
    assert jax.events == starts_and_stops(*expected)
    whole = [end for start, end in zip(expected[::2], expected[1::2], strict=True) if end > start]
    assert jax.waited_for == [{"loss": end} for end in whole], "for the arrays of the last step of each"
    assert len(files(tmp_path)) == 2 * len(whole), "a trace without a step leaves no file"
    assert loop.profiler.failures == {}


def test_a_trainer_makes_it_from_its_configuration(jax: FakeJax, tmp_path: Path) -> None:
    """As the trainer of xLSTM-JAX does."""
    config = JaxProfilerConfig(profile_first_step=2, profile_n_steps=3)
    trainer = SimpleNamespace(log_path=tmp_path, state=SimpleNamespace(params="params"))
    callback = config.create(trainer=trainer, data_module=None)
    callback.set_dataset("data module")
    callback.on_training_start()
    callback.on_training_epoch_start(0)
    for step in range(1, 9):
        callback.on_training_step({"loss": step}, 0, step)
    callback.on_training_epoch_end({}, 0)
    callback.on_training_end()
    callback.on_test_epoch_start(2)
    callback.on_test_epoch_end({}, 2)
    callback.finalize("success")
    assert [kind for kind, _ in jax.events] == ["start", "stop"]
    assert jax.waited_for == ["params"]
    assert {name for _, name, _ in jax.annotations} == {"tracekit_clock_anchor"}, "the trainer annotates the steps"
    assert (callback.config, callback.failures) == (config, {})
    assert JaxProfilerConfig(**config.to_dict()) == config  # type: ignore[arg-type]
    assert (config.get("profile_n_steps"), config.get("other"), config.get("create", 1)) == (3, None, 1)
    assert callback.log_dir == str(tmp_path / "tensorboard")


def test_another_process_than_the_main_one_records_nothing_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jax = use(monkeypatch, FakeJax(index=1, count=2))
    caplog.set_level(logging.DEBUG, "tracekit")
    loop = Loop(jax, tmp_path, 10)
    loop.profiler.on_training_start()
    loop.train(1, 60)
    loop.profiler.on_training_end()
    assert (jax.events, files(tmp_path)) == ([], [])
    assert caplog.messages == ["tracekit: process 1 of 2 records no JAX traces (main_process_only)"]
    with Profiler(rank=0):
        Loop(jax, tmp_path, main_process_only=False, profile_every_n_minutes=-1).train(1, 1)
    assert "JAX calls this process 1, and the Profiler rank 0" in caplog.text


def test_a_trace_that_is_cut_is_told_of_once_a_minute(
    jax: FakeJax, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(jax, tmp_path, 1 / 120, profile_every_n_minutes=0)
    loop.train(1, 300, epoch_every=3)
    loop.profiler.close()
    assert len(caplog.messages) == 3, "in two and a half minutes"
    assert "these are 1 of 5 steps, as the end of the epoch came first; another trace begins" in caplog.messages[0]


def test_time_is_measured_by_the_clock_that_nobody_can_set(jax: FakeJax, tmp_path: Path) -> None:
    """J10: a wall clock that is set by hours begins no trace."""
    time = FakeClock()
    profiler = JaxProfiler(JaxProfilerConfig(profile_first_step=1000), log_path=tmp_path, clock=time.clock)
    profiler.on_training_start()
    for step in range(1, 10):
        time.wall_ns += 5 * 60 * MINUTE_NS
        profiler.on_training_step({}, 0, step)
    assert jax.events == []
    time.monotonic_ns += 61 * MINUTE_NS
    profiler.on_training_step({}, 0, 10)
    assert jax.events == [("start", 0)]
    profiler.close()


@pytest.mark.parametrize("ending", ["exception", "on_training_end", "finalize", "close", "at_exit"])
def test_however_the_run_ends_the_trace_is_saved(
    jax: FakeJax, tmp_path: Path, ending: str, at_exit: list[Callable[[], None]]
) -> None:
    loop = Loop(jax, tmp_path)
    loop.train(1, 11)
    if ending == "exception":
        loop.profiler.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    elif ending == "at_exit":
        at_exit[0]()
    else:
        getattr(loop.profiler, ending)(*(["error"] if ending == "finalize" else []))
    loop.profiler.close()  # a second time does nothing
    assert jax.events == starts_and_stops(10, 11)
    # What a failed step has begun to compute may never be done.
    assert jax.waited_for == ([{"loss": 11}] if ending in ("on_training_end", "close") else [])
    assert files(tmp_path) == [
        f"tensorboard/plugins/profile/step_00000011/process0-host.lan.{kind}" for kind in ("trace.json.gz", "xplane.pb")
    ]


def test_a_trace_that_somebody_else_has_stopped_costs_nothing_else(
    jax: FakeJax, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J9: there, the second stop ends the run."""
    loop = Loop(jax, tmp_path, every_n_steps=10)
    loop.train(1, 12)
    jax.profiler.stop_trace()
    loop.train(13, 29)
    loop.profiler.close()
    assert jax.events == starts_and_stops(10, 12, 20, 25)
    assert loop.profiler.failures == {"JaxProfiler": 1}
    assert [record.message.split(";")[0] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "tracekit: JaxProfiler failed"
    ]
    assert "No profile started" in caplog.text
    # What was written by then is there.
    assert [name.split("/")[3] for name in files(tmp_path)][::2] == ["step_00000011", "step_00000021"]


def test_a_trace_that_cannot_start_is_reported_once_and_tried_when_it_is_due_again(
    jax: FakeJax, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.folder = "of somebody else"
    with Profiler() as profiler:
        loop = Loop(jax, tmp_path, every_n_steps=10, profile_every_n_minutes=-1)
        loop.train(1, 29)
        assert jax.events == []
        assert loop.profiler.failures == profiler.stats.failures == {"JaxProfiler": 2}
    assert len(caplog.records) == 1
    assert "Profile has already been started" in caplog.text
    jax.folder = None
    loop.train(30, 36)
    assert jax.events == starts_and_stops(30, 35)
    assert [name.split("/")[3] for name in files(tmp_path)][::2] == ["step_00000031"]
    monkeypatch.setenv("TRACEKIT_STRICT", "1")
    jax.folder = "of somebody else"
    with pytest.raises(HandlerError, match="Profile has already been started"):
        Loop(jax, tmp_path).train(1, 20)


def test_an_interrupt_while_a_trace_starts_leaves_none_behind(
    jax: FakeJax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    loop = Loop(jax, tmp_path)
    loop.train(1, 9)
    monkeypatch.setattr(jax.profiler, "TraceAnnotation", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.train(10, 10)
    assert (jax.folder, files(tmp_path), loop.profiler.is_tracing) == (None, [], False)
    loop.profiler.close()


def test_a_profiler_is_used_for_several_trainings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store, jax = Store(), FakeJax(0, 2)
    use(monkeypatch, jax, store)
    loop = Loop(jax, tmp_path, 10, main_process_only=False, profile_first_step=1000)
    for first in (1, 101):
        with loop.profiler:
            loop.train(first, first + 20)
    assert jax.events == starts_and_stops(10, 15, 110, 115)
    assert sorted(store.values.values()) == ["10", "110"]


def test_neither_a_failed_computation_nor_a_wrong_step_nor_a_missing_anchor_keeps_a_trace_from_being_saved(
    jax: FakeJax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(arrays: Any) -> None:
        raise RuntimeError("out of memory")

    jax.block_until_ready = fail  # type: ignore[method-assign]
    monkeypatch.delattr(Annotation, "set_metadata")
    loop = Loop(jax, tmp_path)
    loop.train(1, 12)
    loop.profiler.on_training_step({}, 0, "ten")  # type: ignore[arg-type]
    assert loop.profiler.failures == {"JaxProfiler": 1}
    loop.train(13, 20)
    assert jax.events == starts_and_stops(10, 15)
    assert loop.profiler.failures == {"JaxProfiler": 2}
    assert len(files(tmp_path)) == 2
    assert "needs its xplane.pb" in caplog.text


def test_a_full_disk_says_where_the_trace_was_left(
    jax: FakeJax, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(jax, tmp_path)
    loop.train(1, 12)
    (tmp_path / "tensorboard" / "plugins").touch()  # where a folder should be
    loop.train(13, 20)
    assert loop.profiler.failures == {"JaxProfiler": 1}
    assert "the JAX trace is left in" in caplog.text
    assert len(list(tmp_path.rglob("*.trace.json.gz"))) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_trace_to_its_parent(jax: FakeJax, tmp_path: Path) -> None:
    loop = Loop(jax, tmp_path)
    loop.train(1, 12)
    child = os.fork()
    if child == 0:
        loop.train(13, 20)
        loop.profiler.close()
        os._exit(0 if jax.events == [("start", 10)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.profiler.close()
    assert jax.events == starts_and_stops(10, 12)


def test_processes_of_one_host_and_runs_in_one_folder_do_not_overwrite_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """J6: there, all write to one name."""
    for _run in range(2):
        for index in range(2):
            jax = use(monkeypatch, FakeJax(index, 2))
            loop = Loop(jax, tmp_path, main_process_only=False, profile_every_n_minutes=-1)
            loop.train(1, 20)
    found = [name.removeprefix("tensorboard/plugins/profile/") for name in files(tmp_path)]
    assert {name for name in found if name.endswith(".json.gz")} == {
        f"step_00000011{again}/process{index}-host.lan.trace.json.gz" for again in ("", ".1") for index in range(2)
    }, "each run has one folder for all of its processes"
    assert len(found) == 8
    assert [path for path in (tmp_path / "tensorboard").iterdir() if path.name.startswith(".")] == []


def test_a_url_is_a_log_directory_as_well(jax: FakeJax) -> None:
    import fsspec

    loop = Loop(jax, "memory://jax-logs/run")  # type: ignore[arg-type]
    loop.train(1, 20)
    assert loop.profiler.failures == {}
    assert sorted(fsspec.filesystem("memory").find("/jax-logs")) == [
        f"/jax-logs/run/tensorboard/plugins/profile/step_00000011/process0-host.lan.{kind}"
        for kind in ("trace.json.gz", "xplane.pb")
    ]
    fsspec.filesystem("memory").rm("/jax-logs", recursive=True)


def test_the_names_of_a_private_recording_tell_no_host(
    jax: FakeJax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_PRIVATE", "1")
    loop = Loop(jax, tmp_path)
    loop.train(1, 20)
    assert [name.rpartition("/")[2] for name in files(tmp_path)] == ["process0.trace.json.gz", "process0.xplane.pb"]
    told = next(args for phase, name, args in jax.annotations if name == "tracekit_clock_anchor")
    assert told["host"].startswith("host-")
    assert told["boot_id"].startswith("boot-")


def test_the_log_directory(jax: FakeJax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SimpleNamespace(log_path=tmp_path / "run", state=SimpleNamespace(params=None))
    assert JaxProfiler(trainer=trainer).log_dir == f"{tmp_path}/run/tensorboard"
    assert (tmp_path / "run" / "tensorboard").is_dir()
    for given, expected in (
        (f"{tmp_path}/elsewhere", tmp_path / "elsewhere"),
        (tmp_path / "logs", tmp_path / "logs"),  # as in the scripts of xLSTM-JAX
        (Path("jax"), tmp_path / "run" / "jax"),
        ("s3://bucket/run", "s3://bucket/run"),
    ):
        config = JaxProfilerConfig(profile_log_dir=given)  # type: ignore[arg-type]
        assert config.profile_log_dir == config.to_dict()["profile_log_dir"] == str(given)
        assert config == JaxProfilerConfig(profile_log_dir=str(given))
        profiler = JaxProfiler(config, trainer)
        assert (profiler.log_path, profiler.log_dir) == (expected, str(expected))
    with pytest.raises(ConfigError, match="the trainer has no log_path"):
        JaxProfiler(trainer=SimpleNamespace(log_path=None))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        JaxProfiler(log_path=tmp_path / "file")
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ConfigError, match="JaxProfiler needs jax"):
        JaxProfiler(log_path=tmp_path)


def test_types_of_the_configuration_resolve_at_run_time_for_omegaconf() -> None:
    """``OmegaConf.structured`` resolves every annotation of the class, and takes plain types as fields."""
    hints = typing.get_type_hints(JaxProfilerConfig)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(JaxProfilerConfig)}
    assert set(fields.values()) == {int, bool, float, str}
    assert all(isinstance(getattr(JaxProfilerConfig(), name), kind | int) for name, kind in fields.items())


def test_the_attributes_of_xlstm_jaxs_callback_follow_its_traces(jax: FakeJax, tmp_path: Path) -> None:
    loop = Loop(jax, tmp_path, 10, profile_first_step=20, profile_n_steps=2)  # ten minutes a step
    profiler, time = loop.profiler, loop.time
    assert profiler.log_path == tmp_path / "tensorboard"
    assert (profiler.profile_every_n_minutes, profiler.profile_first_step, profiler.profile_n_steps) == (60, 20, 2)
    assert (profiler.profiler_active, profiler.profiler_last_time) == (False, None)
    profiler.on_training_start()
    started = profiler.profiler_last_time
    assert started == pytest.approx(time.wall_ns / 1e9, abs=1e-3)
    loop.train(1, 7)
    assert (profiler.profiler_active, profiler.profile_first_step) == (True, 7)
    assert profiler.profiler_last_time == pytest.approx(started, abs=1e-3)
    loop.train(8, 10)
    assert (profiler.profiler_active, profiler.profile_first_step) == (False, 7)
    assert profiler.profiler_last_time == pytest.approx(started + 9 * 600, abs=1e-3)
    assert profiler.config.profile_first_step == 20
    with pytest.raises(AttributeError):
        profiler.profile_n_steps = 9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile_n_steps": 0}, "profile_n_steps must be a whole number from 1 on"),  # there, it records one step
        ({"profile_first_step": -1}, "profile_first_step must be a whole number from 0 on"),
        ({"profile_first_step": 2.5}, "profile_first_step must be a whole number"),
        ({"profile_every_n_minutes": float("nan")}, "profile_every_n_minutes must be a number of minutes"),
        ({"profile_every_n_minutes": "60"}, "profile_every_n_minutes must be a number of minutes"),
        ({"every_n_steps": 0}, r"every_n_steps \(-1 is off\) must be a whole number from 1 on"),
        ({"every_n_epochs": -2}, r"every_n_epochs \(-1 is off\) must be"),
        ({"profile_log_dir": ""}, "profile_log_dir must be a path or URL"),
        ({"profile_log_dir": 5}, "profile_log_dir must be a path or URL"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JaxProfilerConfig(**settings)
    with pytest.raises(ConfigError, match="config must be a JaxProfilerConfig"):
        JaxProfiler(settings)  # type: ignore[arg-type]


def test_while_jax_writes_a_line_in_the_log_says_so(
    jax: FakeJax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """J8: there, minutes without a word look like a hang."""
    monkeypatch.setattr(recorder, "HEARTBEAT_S", 0.01)
    jax.while_stopping = lambda: wait_until(lambda: "JAX has been writing its trace for" in caplog.text)
    Loop(jax, tmp_path).train(1, 20)
    assert len(files(tmp_path)) == 2


def test_in_the_background_the_training_goes_on_while_jax_writes(jax: FakeJax, tmp_path: Path) -> None:
    trained = threading.Event()
    jax.while_stopping = lambda: trained.wait(60)
    config = JaxProfilerConfig(profile_first_step=1, profile_n_steps=1, every_n_steps=2, profile_every_n_minutes=-1)
    profiler = JaxProfiler(config, log_path=tmp_path, background=True)
    with profiler:
        for step in range(1, 8):
            jax.step = step
            profiler.on_training_step({}, 0, step)
        assert jax.events == [("start", 1)], "none begins while one is written"
        trained.set()
    assert [name for name, _ in jax.events] == ["start", "stop"]
    assert profiler.failures == {}


class Store:
    """The key-value store of jax.distributed."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()
        self.gone = False

    def key_value_set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_ms: int) -> str:
        with self.changed:
            if not self.changed.wait_for(lambda: self.gone or key in self.values, timeout_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
            if self.gone:
                raise RuntimeError("UNAVAILABLE")
            return self.values[key]


def test_one_slow_step_does_not_make_the_announcement_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store, jax = Store(), FakeJax(0, 2)
    use(monkeypatch, jax, store)
    settings: dict[str, Any] = {"main_process_only": False, "profile_first_step": 10_000, "profile_every_n_minutes": 1}
    loop = Loop(jax, tmp_path, SECOND / 10, **settings)
    loop.train(1, 20)
    loop.time.advance(2 * MINUTE_NS)  # a checkpoint
    loop.train(21, 60)
    loop.profiler.close()
    assert list(store.values.values()) == ["43"], "two steps and two seconds of steps of 100 ms"
    assert jax.events == starts_and_stops(43, 48)


def test_a_trace_that_is_announced_too_late_is_left_to_the_others(
    jax: FakeJax, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(jax, tmp_path, profile_first_step=1000)
    loop.train(1, 20)
    loop.profiler._windows.announce(15)
    loop.train(21, 40)
    assert (jax.events, caplog.text.count("announced a JAX trace too late")) == ([], 1)


def test_without_jax_distributed_processes_do_not_go_by_their_own_clocks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jax = use(monkeypatch, FakeJax(0, 2))
    loop = Loop(jax, tmp_path, 10, main_process_only=False)
    loop.train(1, 60)
    loop.profiler.close()
    assert jax.events == starts_and_stops(10, 15)
    assert "profile_every_n_minutes is off" in caplog.text


def test_listening_ends_with_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Store()
    ended = windows.Agreement(store, 1, lambda step: None)
    assert ended._thread is not None
    with store.changed:
        store.gone = True
        store.changed.notify_all()
    ended._thread.join(60)
    assert not ended._thread.is_alive()
    ended.close()


def test_the_active_profiler_is_stepped_along(jax: FakeJax, tmp_path: Path) -> None:
    handler = MemoryTraceHandler()
    with Profiler(handler) as profiler:
        loop = Loop(jax, tmp_path)
        for _ in range(12):
            loop.profiler.on_training_step({}, 0, samples=4, tokens=100)
        loop.profiler.on_training_epoch_end()
        loop.profiler.on_validation_epoch_start()
        loop.profiler.on_validation_epoch_end()
        loop.profiler.close()
        stamp = profiler.timestamp
    assert [int(stamp.batch), int(stamp.sample), int(stamp.token), int(stamp.epoch)] == [12, 48, 1200, 1]
    names = [event.label.name for event in handler.events if type(event).__name__ == "SliceEnd"]
    assert names.count("batch") == 12
    assert sorted(set(names)) == ["batch", "jax.profiler.start_trace", "jax.profiler.stop_trace", "validation"]


def test_a_resumed_run_counts_on_where_it_is_and_a_loop_may_step_the_profiler_itself(
    jax: FakeJax, tmp_path: Path
) -> None:
    with Profiler() as profiler:
        Loop(jax, tmp_path).train(101, 103)
        assert int(profiler.timestamp.batch) == 103
    with Profiler(timestamp=Timestamp(batch=50, sample=400)) as profiler:
        Loop(jax, tmp_path).train(101, 103)
        assert [int(profiler.timestamp.batch), int(profiler.timestamp.sample)] == [53, 400], "as it was told"
    with Profiler() as profiler:
        jax_profiler = JaxProfiler(log_path=tmp_path, profiler=profiler, step_profiler=False)
        profiler.step(samples=4)
        jax_profiler.on_training_step({}, 0, 1)
        jax_profiler.on_training_epoch_end()
        assert [int(profiler.timestamp.batch), int(profiler.timestamp.epoch)] == [1, 0]


def test_the_trace_says_whose_it_is_and_when_it_began(jax: FakeJax, tmp_path: Path) -> None:
    with Profiler(rank=0, run_id="run-7") as profiler:
        loop = Loop(jax, tmp_path)
        loop.train(1, 20)
        process = profiler.process
    anchors = [args for phase, name, args in jax.annotations if (phase, name) == ("end", "tracekit_clock_anchor")]
    assert len(anchors) == 3
    for told in anchors:
        assert (told["rank"], told["run_id"], told["host"], told["pid"]) == (0, "run-7", process.host, process.pid)
        assert told["first_step"] == 11
        assert loop.time.wall_ns - told["wall_ns"] == 10 * loop.step_ns
