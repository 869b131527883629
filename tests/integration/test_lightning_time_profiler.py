"""The time profiler in a real Trainer, in which everything takes a known time."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed")

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from tests.lightning_loop import QUIET, SECOND, Manual, Net, Stops, train_loader, trainer, val_loader
from tracekit import MemoryTraceHandler, Profiler
from tracekit.integrations.lightning import TimeProfiler, TracekitCallback
from tracekit.integrations.lightning.actions import PARTS
from tracekit.integrations.lightning.framework import device_waits
from tracekit.integrations.lightning.loop_timer import ALL_KEYS
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = QUIET


def fit(
    folder: Path, timed: TimeProfiler, clock: FakeClock, *, batches: int = 4, net: Any = Net, **options: Any
) -> Any:
    one = trainer(folder, timed, **options)
    one.fit(net(clock), train_loader(clock, batches), val_loader(clock))
    return one


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


EXAMPLE_KEYS = ("train epoch", "train batch", "optimizer step", "total train downtime", "avg train downtime")
VAL_KEYS = ("total val downtime", "avg val downtime", "validation epoch", "validation batch")


@pytest.mark.parametrize(
    ("options", "train", "val"),
    [
        ({"num_sanity_val_steps": 0}, (16.0, 3.5, 0.5, 2.0, 0.0625), (0.2, 0.0125, 2.2, 1.0)),
        ({"limit_val_batches": 0}, (16.0, 3.5, 0.5, 2.0, 0.0625), (None, None, None, None)),
        ({"num_sanity_val_steps": 2}, (16.0, 3.5, 0.5, 2.0, 0.0625), (0.2, 0.0125, 2.2, 1.0)),
        ({"val_check_interval": 2}, (16.0, 3.5, 0.5, 2.0, 0.0625), (0.4, 0.0125, 2.2, 1.0)),
        ({"accumulate_grad_batches": 4}, (14.5, 3.125, 0.5, 2.0, 0.0625), (0.2, 0.0125, 2.2, 1.0)),
        # Lightning makes a step with the last batch, too.
        ({"accumulate_grad_batches": 2, "batches": 3}, (11.5, 10 / 3, 0.5, 1.5, 0.0625), (0.2, 0.0125, 2.2, 1.0)),
    ],
    ids=["plain", "no validation", "sanity check", "validation every 2 batches", "accumulate 4", "accumulate 2 of 3"],
)
def test_the_worked_examples(options: Any, train: Any, val: Any, clock: FakeClock, tmp_path: Path) -> None:
    timed = TimeProfiler(True, clock=clock.clock)
    metrics = fit(tmp_path, timed, clock, **options).callback_metrics
    logged = [metrics.get(f"TimeProfiler/{key}") for key in (*EXAMPLE_KEYS, *VAL_KEYS)]
    assert [None if value is None else float(value) for value in logged] == pytest.approx([*train, *val])
    assert float(metrics["TimeProfiler/backward"]) == 2
    assert {key.removeprefix("TimeProfiler/") for key in metrics if key.startswith("TimeProfiler/")} == {
        key for key in timed.keys if val[0] is not None or "val" not in key
    }


def test_all_values_come_to_the_logger(clock: FakeClock, tmp_path: Path) -> None:
    class Between(Callback):
        def on_train_epoch_end(self, *args: Any) -> None:
            clock.advance(4 * SECOND)

    timed = TimeProfiler(True, details=True, clock=clock.clock)
    one = trainer(tmp_path, timed, Between(), max_epochs=2, logger=CSVLogger(tmp_path, "logs"))
    one.fit(Net(clock), train_loader(clock), val_loader(clock))
    with next(tmp_path.glob("logs/*/metrics.csv")).open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["TimeProfiler/train epoch"]]
    assert {name.removeprefix("TimeProfiler/") for name in rows[0] if name.startswith("Time")} == set(ALL_KEYS)
    assert [float(row["TimeProfiler/train epoch"]) for row in rows] == [16.0, 16.0]
    assert [row["TimeProfiler/between epochs"] for row in rows] == ["", "4.0"]
    assert "train batch" in timed.summary()


def test_downtime_is_told_by_what_it_was(clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowLogger(CSVLogger):
        def log_metrics(self, *args: Any, **kwargs: Any) -> None:
            clock.advance(2 * SECOND)
            super().log_metrics(*args, **kwargs)

    class Takes(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            clock.advance(SECOND)

    class TakesEverywhere(Net):
        def transfer_batch_to_device(self, *args: Any) -> Any:
            self.clock.advance(SECOND // 4)
            return super().transfer_batch_to_device(*args)

        def on_save_checkpoint(self, checkpoint: Any) -> None:
            self.clock.advance(3 * SECOND)

    timed = TimeProfiler(details=True, clock=clock.clock)
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    one = trainer(tmp_path, timed, Takes(), checkpoint, logger=SlowLogger(tmp_path), enable_checkpointing=True)
    loader = val_loader(clock)  # whose workers start after a batch of training
    monkeypatch.setattr(loader, "_get_iterator", lambda: clock.advance(7 * SECOND) or DataLoader._get_iterator(loader))
    one.fit(TakesEverywhere(clock), train_loader(clock), loader)
    values = timed.values
    parts = {part: values[f"train downtime {part}"] for part in PARTS}
    assert parts == {
        "data loading": 7 + 4 * 0.5,
        "transfer": 4 * 0.25,
        "callbacks": 4 * 1,
        "logging": 4 * 2,
        "checkpointing": 2 * 3,
        "other": 0,
    }
    assert values["train downtime per step"] == sum(parts.values()) / 4
    assert values["total train downtime"] == sum(parts.values())
    assert values["train epoch"] == sum(parts.values()) + 4 * values["train batch"]
    assert values["val downtime transfer"] == 2 * 0.25
    lines = [" ".join(line.split()) for line in timed.summary().splitlines()]
    assert lines[0] == "Time profiler Calls Total (s) Mean (s) p50 (s) p95 (s) Max (s) Percentage %"
    assert lines[2] == "train batch 4 14.000000 3.500000 3.500000 3.500000 3.500000 31.32"
    assert lines[-2] == (
        "train: 42.000000 s, of which 28.000000 s downtime (66.67 %): data loading 9.000000 s, logging 8.000000 s, "
        "checkpointing 6.000000 s, callbacks 4.000000 s, transfer 1.000000 s"
    )


def test_a_run_that_is_resumed_in_the_middle_of_an_epoch_goes_on_with_its_times(
    clock: FakeClock, tmp_path: Path
) -> None:
    with pytest.raises(ArithmeticError):
        trainer(tmp_path, TimeProfiler("backward", clock=clock.clock), Stops(2, tmp_path / "2.ckpt")).fit(
            Net(clock), train_loader(clock), val_loader(clock)
        )
    later = FakeClock()
    later.advance(3600 * SECOND)
    timed = TimeProfiler("optimizer step", "total train downtime", clock=later.clock)
    with Profiler(memory := MemoryTraceHandler(), rank=0):
        one = trainer(tmp_path, timed, TracekitCallback())
        one.fit(Net(later), train_loader(later), val_loader(later), ckpt_path=tmp_path / "2.ckpt")
    assert [begin.label.name for begin, _ in memory.slices].count("train epoch") == 1, (
        "it is not cut by that of an action"
    )
    assert {key: timed.values[key] for key in EXAMPLE_KEYS} == pytest.approx(
        dict(zip(EXAMPLE_KEYS, (16.0, 3.5, 0.5, 2.0, 0.0625), strict=True))
    )
    assert "backward" not in timed.keys, "the choice of keys is not the checkpoint's"


def test_a_run_whose_checkpoint_knows_no_times_begins_with_those_that_it_sees(clock: FakeClock, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError):
        trainer(tmp_path, Stops(3, tmp_path / "3.ckpt")).fit(Net(clock), train_loader(clock), val_loader(clock))
    timed = TimeProfiler(clock=clock.clock)
    trainer(tmp_path, timed).fit(Net(clock), train_loader(clock), val_loader(clock), ckpt_path=tmp_path / "3.ckpt")
    assert (timed.values["train epoch"], timed.values["train batch"]) == (4.0, 3.5)


def test_neither_an_epoch_without_batches_nor_none_at_all_is_an_error(clock: FakeClock, tmp_path: Path) -> None:
    class SkipsEpochs(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1

    timed = TimeProfiler(True, clock=clock.clock)
    fit(tmp_path, timed, clock, max_epochs=2, net=SkipsEpochs)
    assert timed.values["train epoch"] == timed.values["total train downtime"] == 0.5
    assert not {"train batch", "avg train downtime", "backward", "optimizer step"} & timed.values.keys()
    assert all(value >= 0 for value in timed.values.values())
    timed = TimeProfiler(clock=clock.clock)
    fit(tmp_path, timed, clock, limit_train_batches=0)
    assert (timed.values, timed.summary()) == ({}, "")


def test_an_optimizer_that_asks_for_the_loss_again_is_not_charged_for_it(clock: FakeClock, tmp_path: Path) -> None:
    class SlowLBFGS(torch.optim.LBFGS):
        def step(self, closure: Any) -> Any:
            loss = super().step(closure)
            clock.advance(SECOND // 2)
            return loss

    class WithLBFGS(Net):
        def configure_optimizers(self) -> Any:
            return SlowLBFGS(self.parameters(), lr=0.01, max_iter=4)

    timed = TimeProfiler(True, clock=clock.clock)
    fit(tmp_path, timed, clock, batches=1, net=WithLBFGS)
    assert timed.values["train batch"] > 6, "the loss was computed more than once"
    assert timed.values["optimizer step"] == 0.5


def test_the_steps_of_manual_optimization_are_those_of_the_optimizers(clock: FakeClock, tmp_path: Path) -> None:
    timed = TimeProfiler(True, clock=clock.clock)
    fit(tmp_path, timed, clock, net=Manual)
    assert (timed.values["optimizer step"], timed.values["backward"], timed.values["train batch"]) == (0.5, 2, 21)


def test_evaluation_by_itself_has_its_values(clock: FakeClock, tmp_path: Path) -> None:
    class Mine(TimeProfiler):
        """Its name is the prefix of its values."""

    timed = Mine(clock=clock.clock)
    one, net = trainer(tmp_path, timed), Net(clock)
    (validated,) = one.validate(net, val_loader(clock), verbose=False)
    (tested,) = one.test(net, val_loader(clock), verbose=False)
    for found, stage, short in ((validated, "validation", "val"), (tested, "test", "test")):
        values = {f"{stage} batch": 1.0, f"{stage} epoch": 2.2, f"avg {short} downtime": 0.0125}
        assert found == pytest.approx({f"Mine/{key}": value for key, value in values.items()})
    one.predict(net, val_loader(clock))
    assert timed.values["predict batch"] == 1.0
    lines = [line.split(":")[0] for line in timed.summary().splitlines()[-3:]]
    assert lines == ["validation", "test", "predict"]


def test_the_trainer_is_left_as_it_was_also_after_a_failure(clock: FakeClock, tmp_path: Path) -> None:
    timed = TimeProfiler(clock=clock.clock)
    one = trainer(tmp_path, timed, Stops(2, tmp_path / "2.ckpt"), logger=CSVLogger(tmp_path), profiler="simple")
    before = set(vars(one.profiler)), set(vars(one.logger))
    during = []

    class Looks(Net):
        def on_train_start(self) -> None:
            during.append(set(vars(self.trainer.profiler)) > before[0] and set(vars(self.logger)) > before[1])

    with pytest.raises(ArithmeticError):
        one.fit(Looks(clock), train_loader(clock), val_loader(clock))
    assert during == [True]
    after = vars(one.profiler), vars(one.logger)
    assert not {"start", "stop", "_tracekit_hooks", "log_metrics", "save"} & (set(after[0]) | set(after[1]))
    assert "[Logger]CSVLogger.log_metrics" in one.profiler.recorded_durations, (
        "others' profilers see the loggers as well"
    )


def test_everything_it_times_is_a_slice_where_a_profiler_of_tracekit_runs(clock: FakeClock, tmp_path: Path) -> None:
    memory = MemoryTraceHandler()
    with Profiler(memory, rank=0):
        fit(tmp_path, TimeProfiler(clock=clock.clock), clock, accumulate_grad_batches=2)
    names = [begin.label.name for begin, _ in memory.slices if "time profiler" in begin.label.categories]
    assert {name: names.count(name) for name in names} == {
        "train epoch": 1,
        "train batch": 4,
        "backward": 4,
        "optimizer step": 2,
        "validation epoch": 1,
        "validation batch": 2,
        "data loading": 4 + 2 + 2,
        "transfer": 2 * (4 + 2 + 2),
    }
    lost = [event for event in memory.events if "overlap" in event.track.name]
    assert lost == [], "all of them nest"


def test_a_device_is_waited_for_at_each_reading_of_the_clock_where_that_is_asked_for_and_can_be(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_waits(torch.device("meta")) is None
    monkeypatch.setattr(torch.cpu, "synchronize", lambda device: clock.advance(10 * SECOND))
    timed = TimeProfiler(True, synchronize=True, clock=clock.clock)
    fit(tmp_path, timed, clock)
    assert (timed.values["backward"], timed.values["optimizer step"]) == (12, 10.5)
    assert timed.values["train batch"] == 3.5 + 5 * 10, "at the end of the batch and around its intervals"
    assert timed.values["total train downtime"] == 4 * (0.5 + 10), "and at its start, for what was launched before it"
