"""The names that Lightning gives to what it does, and the slices and the table that are made of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tracekit import MemoryTraceHandler, Profiler
from tracekit.integrations.lightning.actions import ActionSlices, action_of
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKPOINT = "[Callback]ModelCheckpoint{'monitor': None, 'mode': 'min', 'every_n_train_steps': 0}.on_train_batch_end"


@pytest.mark.parametrize(
    ("text", "name", "categories", "part"),
    [
        ("[LightningModule]Net.training_step", "Net.training_step", ("lightning", "module"), "callbacks"),
        ("[LightningModule]Net.train_dataloader", "Net.train_dataloader", ("lightning", "module"), "data loading"),
        ("[LightningDataModule]Data.setup", "Data.setup", ("lightning", "datamodule"), "callbacks"),
        ("[Strategy]DDPStrategy.batch_to_device", "DDPStrategy.batch_to_device", ("lightning", "strategy"), "transfer"),
        ("[Strategy]DDPStrategy.backward", "DDPStrategy.backward", ("lightning", "strategy"), None),
        (CHECKPOINT, "ModelCheckpoint.on_train_batch_end", ("lightning", "callback"), "callbacks"),
        ("save_checkpoint", "save_checkpoint", ("lightning",), "checkpointing"),
        ("run_training_epoch", "run_training_epoch", ("lightning",), None),
        (
            "[_TrainingEpochLoop].train_dataloader_next",
            "train_dataloader_next",
            ("lightning", "trainingepochloop"),
            "data loading",
        ),
        ("[_PredictionLoop].predict_next", "predict_next", ("lightning", "predictionloop"), "data loading"),
        ("[Logger]CSVLogger.log_metrics", "CSVLogger.log_metrics", ("lightning", "logger"), "logging"),
        ("[Callback]TimeProfiler.setup", "TimeProfiler.setup", ("lightning", "callback"), "callbacks"),
        ("my own action", "my own action", ("lightning",), None),
        ("", "", ("lightning",), None),
    ],
)
def test_names_are_read(text: str, name: str, categories: tuple[str, ...], part: str | None) -> None:
    action = action_of(text)
    assert (action.name, action.categories, action.part, action.own) == (name, categories, part, False)


def slices_of(memory: MemoryTraceHandler) -> list[tuple[str, str | None]]:
    return [(begin.label.name, (end.label.args or {}).get("exception")) for begin, end in memory.slices]


@pytest.mark.parametrize(
    ("starts", "stops", "ended"),
    [
        ("aba", "aba", "aba"),
        ("ab", "ab", "ab"),
        ("ab", "", "ba"),
        (["[Callback]tracekit.TimeProfiler.setup"], ["[Callback]tracekit.TimeProfiler.setup"], ""),
        (["[Callback]tracekit.MyProfiler{'a': 1}.on_train_batch_start"], [], ""),
    ],
    ids=["open several times", "overlapping", "open at the end", "a hook of tracekit itself", "of a subclass"],
)
def test_actions_are_slices(starts: Sequence[str], stops: Sequence[str], ended: str) -> None:
    memory, clock = MemoryTraceHandler(), FakeClock()
    with Profiler(memory, rank=0):
        slices = ActionSlices(clock.clock)
        for name in starts:
            slices.start(name)
            clock.advance(1_000_000_000)
        for name in stops:
            slices.stop(name)
        slices.close()
    assert [name for name, _ in slices_of(memory)] == [*ended]
    if ended == "aba":
        found = slices.durations()
        assert (found["a"].count, found["a"].total_ns, found["b"].total_ns) == (2, 4_000_000_000, 2_000_000_000)


def test_threads_do_not_disturb_each_other() -> None:
    memory = MemoryTraceHandler()
    slices, together = ActionSlices(), threading.Barrier(4)

    def work() -> None:
        for _ in range(300):
            slices.start("work")
            together.wait()
            slices.stop("work")

    with Profiler(memory, rank=0):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(memory.slices) == slices.durations()["work"].count == 1200


def test_an_exception_that_ends_an_action_is_told_by_its_slice_alone() -> None:
    memory = MemoryTraceHandler()
    slices = ActionSlices()

    def profiled(name: str, *, fail: bool) -> None:
        slices.start(name)
        try:
            if fail:
                raise ArithmeticError
        finally:
            slices.stop(name)

    with Profiler(memory, rank=0):
        try:
            profiled("fails", fail=True)
        except ArithmeticError:
            profiled("cleans up", fail=False)
    assert slices_of(memory) == [("fails", "ArithmeticError"), ("cleans up", None)]


def test_what_an_exception_leaves_open_ends_with_the_action_around_it() -> None:
    """Lightning stops "optimizer_step" of manual optimization only where the optimizer did not raise."""
    memory, clock = MemoryTraceHandler(), FakeClock()
    with Profiler(memory, rank=0):
        slices = ActionSlices(clock.clock)

        def batch() -> None:
            slices.start("batch")
            try:
                slices.start("optimizer_step")
                clock.advance(1_000_000_000)
                raise ArithmeticError
            finally:
                slices.stop("batch")

        for _ in range(2):
            with pytest.raises(ArithmeticError):
                batch()
    assert slices_of(memory) == [("optimizer_step", "ArithmeticError"), ("batch", "ArithmeticError")] * 2
    assert slices.recorded_durations == {"optimizer_step": [1.0, 1.0], "batch": [1.0, 1.0]}


def test_recorded_durations_are_seconds_of_the_latest_actions(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.integrations.lightning.actions.MAX_RECORDED", 300)
    clock = FakeClock()
    slices = ActionSlices(clock.clock)
    assert slices.recorded_durations["nothing yet"] == []

    def run(milliseconds: range) -> None:
        for number in milliseconds:
            slices.start("a")
            clock.advance(number * 1_000_000)
            slices.stop("a")

    run(range(3))
    assert slices.recorded_durations == {"a": [0.0, 0.001, 0.002]}
    run(range(3, 2000))
    for _ in range(2):
        assert slices.recorded_durations["a"] == [number / 1000 for number in range(1700, 2000)]
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "tracekit: recorded_durations holds the latest 300 durations of each action, and 'a' has 2000"
    ]
    assert slices.durations()["a"].count == 2000
    assert len(slices._kinds["a"].recorded_ns) <= 2 * 300


def test_a_stop_without_a_start_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    slices = ActionSlices()
    for _ in range(3):
        slices.stop("never started")
    slices.stop("[Callback]tracekit.TimeProfiler.setup")
    (message,) = caplog.messages
    assert "never started" in message


def test_strict_slices_raise_for_a_wrong_start_and_stop_and_hide_no_exception(caplog: pytest.LogCaptureFixture) -> None:
    slices = ActionSlices(strict=True)
    with pytest.raises(ValueError, match="'a' was stopped, and it was never started"):
        slices.stop("a")
    slices.start("a")
    with pytest.raises(ValueError, match="'a' was started, and it is open already"):
        slices.start("a")
    thread = threading.Thread(target=slices.stop, args=("a",))  # which SimpleProfiler allows
    thread.start()
    thread.join()
    slices.stop("a")
    slices.start("outer")
    try:
        slices.start("inner")
        raise KeyError
    except KeyError:
        slices.stop("a")
        slices.stop("outer")
    slices.stop("inner")  # by its owner, after an exception has ended it
    slices.start("inner")
    slices.stop("inner")
    with pytest.raises(ValueError, match="never started"):
        slices.stop("inner")
    assert len(caplog.messages) == 1


def test_the_table_states_units_puts_the_largest_first_and_leaves_the_arguments_of_callbacks_out() -> None:
    clock = FakeClock()
    slices = ActionSlices(clock.clock)
    assert slices.summary() == ""
    for name, seconds in ((CHECKPOINT, 1), ("large", 6), (CHECKPOINT.replace("min", "max"), 1)):
        slices.start(name)
        clock.advance(seconds * 1_000_000_000)
        slices.stop(name)
    table = [line.split() for line in slices.summary().splitlines()]
    assert " ".join(table[0]) == "Action Calls Total (s) Mean (s) p50 (s) p95 (s) Max (s) Percentage %"
    assert table[2:] == [
        ["large", "1", *["6.000000"] * 5, "75.00"],
        ["[Callback]ModelCheckpoint.on_train_batch_end", "2", "2.000000", *["1.000000"] * 4, "25.00"],
    ]
    slices.extended = False
    assert [line.split() for line in slices.summary().splitlines()][2] == ["large", "6.000000", "6.000000"]
