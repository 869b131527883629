"""A real Trainer with the callback and the profiler: its traces in Perfetto's engine, its training time, its failures."""

from __future__ import annotations

import copy
import json
import pickle
import pstats
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed")

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from tests.lightning_loop import QUIET, SECOND, Manual, Net, Stops, fit, train_loader, trainer, val_loader
from tests.scripts import run_script
from tracekit import (
    ConfigError,
    JSONTraceHandler,
    MemoryTraceHandler,
    Profiler,
    Timestamp,
    TorchProfiler,
    cyclic_schedule,
    merge_traces,
    on_demand,
    validate_trace,
)
from tracekit.integrations.lightning import TimeProfiler, TracekitCallback, TracekitProfiler
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from tests.perfetto import Engine

TWO_RANKS = Path(__file__).resolve().parents[1] / "lightning_two_ranks.py"

pytestmark = QUIET


class Memories:
    """Makes a handler for every recording, and keeps them; the first is made to see whether it can be."""

    def __init__(self) -> None:
        self.made: list[MemoryTraceHandler] = []

    def __call__(self) -> MemoryTraceHandler:
        self.made.append(MemoryTraceHandler())
        return self.made[-1]


class Sees(Callback):
    """Keeps the training time after every batch and every epoch, as the profiler has it."""

    def __init__(self, callback: TracekitCallback) -> None:
        self.callback = callback
        self.batches: list[tuple[int, int, int, int]] = []
        self.epochs: list[int] = []

    def _now(self) -> Timestamp:
        assert self.callback.profiler is not None
        return self.callback.profiler.timestamp

    def on_train_batch_end(self, *args: Any) -> None:
        now = self._now()
        self.batches.append((int(now.epoch), int(now.batch), int(now.sample), int(now.token)))

    def on_train_epoch_end(self, *args: Any) -> None:
        self.epochs.append(int(self._now().epoch))


class Copies(Callback):
    """Copies and pickles the loader and the logger while they are recorded."""

    def __init__(self) -> None:
        self.copies: list[Any] = []

    def on_train_epoch_start(self, trainer: Any, *args: Any) -> None:
        loader = trainer.train_dataloader
        assert "_get_iterator" in vars(loader), "its workers are recorded"
        self.copies = [copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
        pickle.loads(pickle.dumps(trainer.logger)).log_metrics({})


def watched(folder: Path, callback: TracekitCallback, net: Any, ckpt_path: Any = None, **options: Any) -> Sees:
    sees = Sees(callback)
    fit(trainer(folder, callback, sees, **options), net, ckpt_path=ckpt_path)
    return sees


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memories() -> Memories:
    return Memories()


def names(memory: MemoryTraceHandler) -> dict[str, int]:
    found = [begin.label.name for begin, _ in memory.slices]
    return {name: found.count(name) for name in found}


HOOKS = """
select slice.name, count(*) from slice join thread_track on thread_track.id = track_id join thread using (utid)
where thread.name = 'MainThread' group by slice.name
"""


@pytest.mark.parametrize("profiled", [False, True], ids=["callback alone", "with the profiler"])
def test_a_run_with_everything_loads_in_perfetto(
    profiled: bool, clock: FakeClock, tmp_path: Path, engine: Engine
) -> None:
    profiler = TracekitProfiler() if profiled else None
    one = trainer(
        tmp_path,
        TimeProfiler(clock=clock.clock),
        TracekitCallback(tmp_path / "rank{rank}.json"),
        ModelCheckpoint(tmp_path, every_n_train_steps=1),
        enable_checkpointing=True,
        logger=CSVLogger(tmp_path),
        max_epochs=2,
        accumulate_grad_batches=2,
        profiler=profiler,
    )
    fit(one, Net(clock))
    assert "log_metrics" not in vars(one.logger)
    assert profiler is None or profiler.durations()["[Logger]CSVLogger.log_metrics"].count == 6
    path = tmp_path / "rank0.json"
    assert validate_trace(str(path)).counts == {}
    with engine.load(path) as trace:
        assert trace.errors() == []
        found = dict(trace.rows(HOOKS))
        # 2 epochs of 4 micro-batches, 2 steps each; validation of 2 batches after each, and before as a sanity check.
        expected = {
            "train epoch": 2,
            "run_training_epoch": 2,
            "train batch": 8,
            "run_training_batch": 8,
            "Net.optimizer_step": 4,
            "optimizer step": 4,
            "train_dataloader_next": 8,
            "val_next": 6,
            "validation batch": 4,
            "SingleDeviceStrategy.backward": 8,
            "save_checkpoint": 4,
            "CSVLogger.log_metrics": 6,
            "ModelCheckpoint.on_train_batch_end": 8,
        }
        assert {name: found.get(name) for name in expected} == expected
        assert not [name for name in found if "tracekit" in name or "TimeProfiler" in name or "data loading" in name]
        assert trace.scalar("select count(*) from slice where name = 'batch'") == 4, "steps of the optimizer"
        assert trace.rows("select distinct name from thread where name like '%overlap%'") == [], "all slices nest"
        within = """
            select count(*) from slice child join slice parent on child.parent_id = parent.id
            where child.name = 'optimizer step' and parent.name = 'Net.optimizer_step'"""
        assert trace.scalar(within) == 4


def test_the_profiler_records_into_whatever_profiler_runs_and_writes_a_table_and_stats(
    clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory, profiler = MemoryTraceHandler(), TracekitProfiler(tmp_path, "report", False, dump_stats=True)
    with Profiler(memory, rank=0):
        fit(trainer(tmp_path, profiler=profiler), Net(clock))
    found = names(memory)
    assert (found["run_training_batch"], found["SingleDeviceStrategy.training_step"], found["val_next"]) == (4, 4, 4)
    table = profiler.summary()
    assert table.startswith("FIT Profiler Report")
    assert "[Strategy]SingleDeviceStrategy.training_step" in table
    assert "p95" not in table
    assert (tmp_path / "fit-report.txt").read_text("utf-8") == table
    stats = pstats.Stats(str(tmp_path / "fit-report-run_training_batch.prof"))
    ((place, found),) = stats.stats.items()  # type: ignore[attr-defined]
    assert (place, found[:2]) == (("~", 0, "run_training_batch"), (4, 4))
    assert found[3] == pytest.approx(sum(profiler.recorded_durations["run_training_batch"]))
    assert (profiler.extended, profiler.dump_stats) == (False, True)
    (tmp_path / "file").touch()
    for folder in (None, tmp_path / "file"):  # where they cannot be dumped, the run goes on
        profiler = TracekitProfiler(folder, dump_stats=True)
        with profiler.profile("a"):
            pass
        profiler.describe()
    ours = [record.getMessage() for record in caplog.records if record.name == "tracekit"]
    assert "without a dirpath" in ours[0]
    assert f"{tmp_path / 'file'}/a.prof: cannot be written" in ours[1]


def test_all_can_be_sent_to_the_processes_that_lightning_spawns(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(TracekitProfiler())).durations() == {}
    sent = pickle.loads(pickle.dumps(TracekitCallback(tmp_path / "rank{rank}.json", cyclic_schedule())))
    assert (sent.profiler, sent.state_key) == (None, "tracekit.TracekitCallback")
    assert pickle.loads(pickle.dumps(TimeProfiler("backward"))).keys == TimeProfiler("backward").keys


def test_a_batch_is_a_step_of_the_optimizer(clock: FakeClock, tmp_path: Path, memories: Memories) -> None:
    callback = TracekitCallback(memories, tokens=lambda batch: 100)
    sees = Sees(callback)
    one = trainer(tmp_path, callback, sees, accumulate_grad_batches=2, max_epochs=2)
    one.fit(Net(clock), train_loader(clock, 3), val_loader(clock))
    # Micro-batches of 8; Lightning makes a step with the last one as well.
    assert sees.batches == [
        (0, 0, 0, 0),
        (0, 1, 16, 200),
        (0, 2, 24, 300),
        (1, 2, 24, 300),
        (1, 3, 40, 500),
        (1, 4, 48, 600),
    ]
    assert sees.epochs == [1, 2]
    assert callback.profiler is None


def test_a_batch_of_manual_optimization_is_one_of_the_loader(
    clock: FakeClock, tmp_path: Path, memories: Memories
) -> None:
    sees = watched(tmp_path, TracekitCallback(memories), Manual(clock))
    assert [batch for _, batch, _, _ in sees.batches] == [1, 2, 3, 4]


def test_samples_of_all_ranks_are_those_of_this_one_times_their_number(
    clock: FakeClock, tmp_path: Path, memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = TracekitCallback(memories, counts="global")
    sees = Sees(callback)
    one = trainer(tmp_path, callback, sees)
    monkeypatch.setattr(type(one.strategy), "distributed_sampler_kwargs", {"num_replicas": 3}, raising=False)
    fit(one, Net(clock))
    assert [sample for _, _, sample, _ in sees.batches] == [24, 48, 72, 96]
    assert memories.made[1].recording is not None
    assert memories.made[1].recording.counts == "global"


def test_a_count_that_fails_is_reported_and_training_goes_on(
    clock: FakeClock, tmp_path: Path, memories: Memories
) -> None:
    callback = TracekitCallback(memories, samples=lambda batch: batch["none"])
    fit(trainer(tmp_path, callback), Net(clock))
    stats = memories.made[1].stats
    assert stats is not None
    assert stats.failures == {"TracekitCallback": 4}


@pytest.mark.parametrize(
    ("accumulate", "every", "seconds"),
    [(1, 2, [4.0] * 8), (2, 1, [9.7] * 4)],
    ids=["between batches", "within a batch"],
)
def test_setup_and_validation_are_part_of_a_batch_only_between_its_micro_batches(
    clock: FakeClock, tmp_path: Path, memories: Memories, accumulate: int, every: int, seconds: list[float]
) -> None:
    class SlowSetup(Net):
        def setup(self, stage: str) -> None:
            self.clock.advance(1000 * SECOND)

    callback = TracekitCallback(memories, clock=clock.clock)
    options = {"accumulate_grad_batches": accumulate, "val_check_interval": every, "max_epochs": 2}
    fit(trainer(tmp_path, callback, **options), SlowSetup(clock))
    durations = [
        (end.wall_clock_time_ns - begin.wall_clock_time_ns) / SECOND
        for begin, end in memories.made[1].slices
        if begin.label.name == "batch"
    ]
    assert durations == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("after", "accumulate", "left", "last"),
    [
        (2, 1, [(0, 3, 24, 0), (0, 4, 32, 0)], (1, 8, 64, 0)),
        (6, 1, [(1, 7, 56, 0), (1, 8, 64, 0)], (1, 8, 64, 0)),
        (1, 2, [(0, 1, 16, 0), (0, 1, 16, 0)], (1, 4, 64, 0)),
    ],
    ids=["first epoch", "second epoch", "micro-batches count in the step after it"],
)
def test_a_checkpoint_carries_the_training_time(
    after: int, accumulate: int, left: list[Any], last: Any, clock: FakeClock, tmp_path: Path, memories: Memories
) -> None:
    options = {"max_epochs": 2, "accumulate_grad_batches": accumulate}
    with pytest.raises(ArithmeticError):
        fit(
            trainer(tmp_path, TracekitCallback(memories), Stops(after, tmp_path / "stopped.ckpt"), **options),
            Net(clock),
        )
    sees = watched(tmp_path, TracekitCallback(memories), Net(clock), tmp_path / "stopped.ckpt", **options)
    assert sees.batches[:2] == left
    assert (sees.batches[-1], sees.epochs[-1]) == (last, 2)


def test_a_checkpoint_of_the_end_of_an_epoch_goes_on_with_the_next(
    clock: FakeClock, tmp_path: Path, memories: Memories
) -> None:
    """Checkpoints that are saved by a validation at the end of an epoch come before Lightning ends that epoch."""
    saves = ModelCheckpoint(tmp_path / "saved", save_on_train_epoch_end=False)
    callback = TracekitCallback(memories)
    fit(trainer(tmp_path, callback, saves, enable_checkpointing=True), Net(clock))
    sees = watched(tmp_path, TracekitCallback(memories), Net(clock), saves.best_model_path, max_epochs=2)
    assert sees.batches == [(1, 5, 40, 0), (1, 6, 48, 0), (1, 7, 56, 0), (1, 8, 64, 0)]
    assert sees.epochs[-1] == 2


def test_a_state_that_is_no_training_time_is_told_of_and_left(
    clock: FakeClock, tmp_path: Path, memories: Memories, caplog: pytest.LogCaptureFixture
) -> None:
    class Loads(Net):
        def on_fit_start(self) -> None:
            callback.load_state_dict({"timestamp": {"epoch": -1}})

    callback = TracekitCallback(memories)
    sees = watched(tmp_path, callback, Loads(clock))
    assert sees.batches[0] == (0, 1, 8, 0)
    assert "training time begins anew" in caplog.text


def test_every_run_of_a_trainer_has_a_trace_of_its_own(clock: FakeClock, tmp_path: Path, engine: Engine) -> None:
    callback = TracekitCallback(tmp_path / "{run_id}" / "rank{rank}.json", timestamp=Timestamp(epoch=5, batch=50))
    sees = Sees(callback)
    one, net = trainer(tmp_path, callback, sees), Net(clock)
    fit(one, net)
    one.fit_loop.max_epochs = 2
    fit(one, net)
    assert sees.batches[3:5] == [(5, 54, 32, 0), (6, 55, 40, 0)], "the second run goes on with the same training"
    one.validate(net, val_loader(clock), verbose=False)
    one.test(net, val_loader(clock), verbose=False)
    one.predict(net, val_loader(clock))
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    found = {path.name for path in folder.iterdir()}
    assert found == {"rank0.json", "rank0-2.json", "rank0-3.json", "rank0-4.json", "rank0-5.json"}
    merge_traces(str(tmp_path / "merged.json"), [str(folder)])
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'batch'") == 4 + 4 + 2 + 2 + 2
    state = callback.state_dict()["timestamp"]
    assert (state["epoch"], state["batch"]) == (7, 58), "evaluation is no training"


def test_a_schedule_and_torch_profiler_go_by_the_steps(clock: FakeClock, tmp_path: Path) -> None:
    callback = TracekitCallback(
        tmp_path / "rank{rank}.json",
        cyclic_schedule(wait=1, warmup=1, active=1),
        sources=[TorchProfiler(str(tmp_path / "torch-rank{rank}-{batch}.json.gz"), activities=["cpu"])],
    )
    one, net = trainer(tmp_path, callback, max_epochs=2), Net(clock)
    fit(one, net)
    one.test(net, val_loader(clock, 4), verbose=False)
    events = json.loads((tmp_path / "rank0.json").read_text("utf-8"))
    batches = [
        event["args"]["batch"] for event in events if event["name"] == "run_training_batch" and event["ph"] != "E"
    ]
    assert batches == [1, 2, 5, 6]
    found = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("torch"))
    assert found == ["torch-rank0-2.1.json.gz", "torch-rank0-2.json.gz", "torch-rank0-6.json.gz"]


def test_a_profiler_of_the_users_own_is_stepped_and_left_running(clock: FakeClock, tmp_path: Path) -> None:
    memory = MemoryTraceHandler()
    with Profiler(memory, rank=0) as profiler:
        fit(trainer(tmp_path, TracekitCallback()), Net(clock))
        assert profiler.started
        assert (int(profiler.timestamp.batch), int(profiler.timestamp.epoch)) == (4, 1)
        trainer(tmp_path, TracekitCallback()).test(Net(clock), val_loader(clock), verbose=False)
        assert int(profiler.timestamp.batch) == 4, "training time does not count a test after it"
    assert names(memory)["batch"] == 4
    assert not list(tmp_path.rglob("*.json"))


def test_hooks_and_workers_may_be_left_alone(clock: FakeClock, tmp_path: Path, memories: Memories) -> None:
    class Looks(Net):
        def on_train_start(self) -> None:
            assert "process_dataloader" not in vars(self.trainer.strategy)

    one = trainer(tmp_path, TracekitCallback(memories, hooks=False, workers=False))
    fit(one, Looks(clock))
    assert names(memories.made[1]) == {"batch": 4}


def test_a_run_that_fails_is_recorded_until_then(clock: FakeClock, tmp_path: Path, engine: Engine) -> None:
    ended_by: list[Any] = []

    class Hears(MemoryTraceHandler):
        def stopping(self, error: BaseException | None) -> None:
            ended_by.append(error)

    class Fails(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ArithmeticError("not a number")
            return super().training_step(batch, batch_idx)

    callback = TracekitCallback(lambda: [JSONTraceHandler(tmp_path / f"{len(ended_by)}.json"), Hears()])
    one = trainer(tmp_path, callback, TimeProfiler(clock=clock.clock))
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            fit(one, Fails(clock))
    assert [str(error) for error in ended_by] == ["not a number"] * 2
    with engine.load(tmp_path / "0.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'batch'") == 2
        assert trace.scalar("select count(*) from slice where dur < 0") == 0, "none is left open"
        assert trace.rows("select name from thread where name like '%overlap%'") == [], "and all of them nest"
        failed = """
            select distinct slice.name from slice join args using (arg_set_id)
            where key = 'args.exception' and string_value = 'ArithmeticError'"""
        assert {name for (name,) in trace.rows(failed)} == {
            "SingleDeviceStrategy.training_step",
            "Fails.optimizer_step",
            "run_training_batch",
            "run_training_epoch",
        }


def test_a_later_run_that_cannot_be_recorded_is_no_failure(
    clock: FakeClock, tmp_path: Path, memories: Memories, caplog: pytest.LogCaptureFixture
) -> None:
    one, net = trainer(tmp_path, TracekitCallback(memories, on_demand(tmp_path / "control"))), Net(clock)
    fit(one, net)
    one.test(net, val_loader(clock), verbose=False)
    assert "trainer.test is not recorded: on_demand" in caplog.text


def test_wrong_arguments_raise_where_they_are_given(clock: FakeClock, tmp_path: Path) -> None:
    for wrong in (
        lambda: TracekitCallback(JSONTraceHandler()),
        lambda: TracekitCallback("trace.txt"),
        lambda: TracekitCallback(flush_interval=-1),
        lambda: TracekitCallback(schedule="always"),
        lambda: TracekitCallback(sources=[1]),
        lambda: TimeProfiler("epochs"),
        lambda: TimeProfiler(reduce="median"),
    ):
        with pytest.raises(ConfigError):
            wrong()
    for given in ({"trace": Profiler()}, {"profiler": Profiler()}):  # as the callbacks of other frameworks take it
        with pytest.raises(ConfigError, match="start it around the run of the Trainer, and leave trace out"):
            TracekitCallback(**given)
    with pytest.raises(ConfigError, match="dirpath must be a path"):
        TracekitProfiler(Profiler())
    (tmp_path / "rank0.json").write_text("[]")
    with pytest.raises(ConfigError, match="exists"):
        fit(trainer(tmp_path, TracekitCallback(tmp_path / "rank{rank}.json")), Net(clock))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_workers_of_a_loader_record_beside_their_rank(
    clock: FakeClock, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    callback = TracekitCallback(tmp_path / "traces" / "rank{rank}.json")
    loader = train_loader(clock, num_workers=2)
    one = trainer(tmp_path, callback, max_epochs=2)
    one.fit(Net(clock), loader, val_loader(clock))
    assert loader.worker_init_fn.func.__name__ == "pl_worker_init_function", "Lightning seeds them"
    assert "_get_iterator" not in vars(loader)
    assert "process_dataloader" not in vars(one.strategy)
    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "traces")])
    assert set(report.ranks[0].processes) == {"rank 0", "rank 0 · worker 0", "rank 0 · worker 1"}
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'fetch'") == 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_recorded_loader_and_logger_can_be_copied_and_pickled(
    clock: FakeClock, tmp_path: Path, memories: Memories
) -> None:
    copies = Copies()
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), num_workers=1)
    one = trainer(tmp_path, copies, TracekitCallback(memories), logger=CSVLogger(tmp_path))
    one.fit(Net(clock), loader, val_loader(clock))
    for one in copies.copies:
        one.num_workers = 0
        assert one._get_iterator() is not None
        assert one._get_iterator.__self__ is one, "a method of its own, that records nothing"


@pytest.mark.parametrize("private", [False, True])
def test_the_name_that_the_ranks_agree_on_is_rank_0s_and_can_be_private(
    private: bool, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PMIX_NAMESPACE": "secret.example", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    told: list[str] = []
    callback = TracekitCallback(tmp_path / "{run_id}" / "rank{rank}.json", private=private)
    one = trainer(tmp_path)
    monkeypatch.setattr(type(one), "world_size", 2)
    monkeypatch.setattr(one.strategy, "broadcast", lambda run_id: told.append(run_id) or run_id)
    callback.setup(one, Net(clock), "fit")
    callback.teardown(one, Net(clock), "fit")
    (run_id,) = told
    assert ("secret" in run_id) is not private
    assert (tmp_path / run_id / "rank0.json").exists()


@pytest.mark.slow
def test_two_ranks_of_pytorch_lightning_share_one_run_and_one_set_of_values(tmp_path: Path, engine: Engine) -> None:
    """A real run of 2 processes with gloo, in which everything takes rank 1 twice as long."""
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    run_script(tmp_path, TWO_RANKS)
    ranks = [json.loads((tmp_path / f"values{rank}.json").read_text("utf-8")) for rank in (0, 1)]
    assert [found["module"] for found in ranks] == ["pytorch_lightning"] * 2
    values, others = (found["values"] for found in ranks)
    assert values == others
    assert values["train batch"] == (3.5 + 7.0) / 2
    assert values["avg train downtime"] == (0.0625 + 0.125) / 2
    assert values["backward"] == 2.0, "of the one rank that has it"
    assert "validation batch" not in values
    metrics = [found["metrics"] for found in ranks]
    assert [found["Both/train batch"] for found in metrics] == [5.25, 5.25]
    assert [found["Slowest/train batch"] for found in metrics] == [7.0, 7.0]
    assert [found["Own/train batch"] for found in metrics] == [3.5, 7.0]
    (folder,) = (tmp_path / "traces").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-\d+", folder.name), "a name that no other run has"
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.json", "rank1.json"]
    report = merge_traces(str(tmp_path / "merged.json"), [str(folder)])
    assert [rank.processes for rank in report.ranks] == [["rank 0"], ["rank 1"]]
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'batch'") == 8
        assert trace.scalar("select count(*) from slice where name = 'run_training_batch'") == 8


@pytest.mark.slow
def test_the_trace_of_the_example_opens(tmp_path: Path, engine: Engine) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "lightning_trainer.py"
    assert "optimizer step" in run_script(tmp_path, example).stdout
    (path,) = (tmp_path / "traces").glob("*/rank0.json")
    assert validate_trace(str(path)).counts == {}
    with engine.load(path) as trace:
        assert trace.errors() == []
        counts = "select name, count(*) from slice where name in ('batch', 'Net.optimizer_step') group by name"
        assert dict(trace.rows(counts)) == {"batch": 32, "Net.optimizer_step": 32}
