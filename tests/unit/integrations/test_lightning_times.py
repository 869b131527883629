"""The arithmetic of the time profiler, on a clock that the test sets: every number is known."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import ConfigError
from tracekit.integrations.lightning.actions import PARTS
from tracekit.integrations.lightning.loop_timer import (
    ALL_KEYS,
    DEFAULT_KEYS,
    OPTIONAL_KEYS,
    LoopTimer,
    StageTimes,
    chosen_keys,
    encode_values,
    epoch_values,
    reduce_ranks,
    stages_table,
)
from tracekit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

S = 1_000_000_000
FETCH = "[_TrainingEpochLoop].train_dataloader_next"
VAL_FETCH = "[_EvaluationLoop].val_next"


class Loop:
    """Plays the hooks of a training loop with given times, in seconds."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.times = LoopTimer(self.clock.clock, **options)

    def pass_(self, seconds: float) -> None:
        self.clock.advance(round(seconds * S))

    def action(self, name: str, seconds: float) -> None:
        self.times.start(name)
        self.pass_(seconds)
        self.times.stop(name)

    def train(self, *, optimizer: bool = True, samples: int = 8) -> None:
        """One batch: loader 0.5 s, forward 1 s, backward 2 s, optimizer 0.5 s."""
        self.action(FETCH, 0.5)
        self.times.begin_batch()
        self.pass_(1)
        self.times.begin("backward")
        self.pass_(2)
        self.times.end("backward")
        if optimizer:
            step = "[LightningModule]Net.optimizer_step"
            self.times.start(step)
            self.times.begin("optimizer step")
            self.pass_(0.5)
            self.times.stop(step)
        self.times.end_batch(samples)

    def validate(self, batches: int = 2) -> None:
        """One run: batches of 1 s, with 0.1 s before each."""
        self.times.begin_stage("validation")
        for _ in range(batches):
            self.action(VAL_FETCH, 0.1)
            self.times.begin_batch()
            self.pass_(1)
            self.times.end_batch(8)
        self.times.end_stage("validation")

    def epoch(self, body: Callable[[Loop], object]) -> dict[str, float]:
        self.times.begin_epoch()
        body(self)
        done = self.times.end_epoch()
        assert done is not None
        return epoch_values(done)


def plain(loop: Loop) -> None:
    for _ in range(4):
        loop.train()
    loop.validate()


def test_downtime_belongs_to_the_innermost_action_and_before_the_first_batch_to_data_loading() -> None:
    """All parts in a real Trainer: tests/integration/test_lightning_time_profiler.py."""

    def body(loop: Loop) -> None:
        loop.times.start("run_training_epoch")
        loop.pass_(7)  # the workers of the loader start
        loop.train()
        checkpoint = "[Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end"
        loop.times.start(checkpoint)
        loop.pass_(0.5)
        loop.times.start("save_checkpoint")
        loop.action("[Callback]ModelCheckpoint{'monitor': None}.on_save_checkpoint", 3)
        loop.times.stop("save_checkpoint")
        loop.times.stop(checkpoint)
        loop.pass_(0.125)
        loop.times.stop("run_training_epoch")

    values = Loop().epoch(body)
    assert [values[f"train downtime {part}"] for part in PARTS] == [
        {"data loading": 7.5, "callbacks": 0.5, "checkpointing": 3, "other": 0.125}.get(part, 0) for part in PARTS
    ]
    assert values["train epoch"] == values["total train downtime"] + values["train batch"]


def test_a_batch_that_never_ends_is_downtime_and_one_without_samples_has_none_for_each() -> None:
    def body(loop: Loop) -> None:
        loop.train(samples=0)
        loop.times.begin_batch()
        loop.pass_(1)  # and then the module leaves out the rest of the epoch

    values = Loop().epoch(body)
    assert (values["train epoch"], values["train batch"], values["total train downtime"]) == (5, 3.5, 1.5)
    assert values["train downtime per step"] == 1.5
    assert "avg train downtime" not in values


def test_the_device_is_waited_for_where_the_clock_is_read_for_work_on_it() -> None:
    loop = Loop(wait=lambda: loop.pass_(10))
    values = loop.epoch(lambda loop: loop.train())
    assert values["backward"] == 12
    assert values["optimizer step"] == 10.5
    assert values["train batch"] == 3.5 + 5 * 10, "at the end of the batch and around what lies in it"
    assert values["total train downtime"] == 0.5 + 10, "and at its start, for what was launched before it"


def test_setting_the_wall_clock_changes_nothing() -> None:
    loop = Loop()

    def body(loop: Loop) -> None:
        for step_s in (3600, -3600, 0, 86_400):
            loop.clock.wall_ns += step_s * S
            loop.train()
        loop.validate()

    assert loop.epoch(body) == Loop().epoch(plain)


def test_memory_does_not_grow_with_the_batches() -> None:
    def stored(batches: int) -> int:
        loop = Loop()
        loop.times.begin_epoch()
        for _ in range(batches):
            loop.train()
        epoch = loop.times.epoch_until_now()
        assert epoch is not None
        return len(pickle.dumps(epoch))

    assert stored(3000) < stored(30) + 100, "numbers with more digits"


ACTIONS = [
    FETCH,
    "[Strategy]SingleDeviceStrategy.batch_to_device",
    "[LightningModule]Net.on_train_batch_end",
    "[LightningModule]Net.optimizer_step",
    "[LightningModule]Net.training_step",
    "[Logger]CSVLogger.log_metrics",
    "save_checkpoint",
    "run_training_epoch",
    "on_validation_model_zero_grad",
    "my own action",
]
EVENTS = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 1000)),
    st.sampled_from([("begin_batch",), ("end_batch", 8), ("epoch_until_now",), ("begin_epoch",), ("end_epoch",)]),
    st.tuples(st.sampled_from(["start", "stop"]), st.sampled_from(ACTIONS)),
    st.tuples(st.sampled_from(["begin", "pause", "end"]), st.sampled_from(["backward", "optimizer step"])),
    st.tuples(st.sampled_from(["begin_stage", "end_stage"]), st.sampled_from(["validation", "test"])),
)


@given(st.lists(EVENTS))
def test_whatever_happens_every_nanosecond_is_booked_once_and_nothing_is_negative(events: list[Any]) -> None:
    clock = FakeClock()
    timer = LoopTimer(clock.clock)
    booked: list[StageTimes] = []
    timer.begin_stage("whole")
    started_ns = clock.monotonic_ns
    for name, *args in events:
        if name == "pass":
            clock.advance(args[0])
            continue
        getattr(timer, name)(*args)
        booked += [times for times in timer._stages.values() if not any(times is known for known in booked)]
    whole = timer.end_stage("whole")
    assert whole is not None
    booked.append(whole)
    assert sum(times.total_ns for times in {id(times): times for times in booked}.values()) == (
        clock.monotonic_ns - started_ns
    )
    assert all(value >= 0 for times in booked for value in times.downtime_ns.values())


def test_the_documented_keys() -> None:
    assert chosen_keys((), details=False) == sorted(DEFAULT_KEYS)
    assert chosen_keys((True,), details=False) == sorted({*DEFAULT_KEYS, *OPTIONAL_KEYS})
    assert chosen_keys((True,), details=True) == sorted(ALL_KEYS)
    assert (len(DEFAULT_KEYS), len(OPTIONAL_KEYS)) == (6, 4)
    assert set(chosen_keys(("train downtime per step",), details=False)) == {*DEFAULT_KEYS, "train downtime per step"}
    for keys in (("backward",), ("backward", "backward"), ("train batch", "backward")):
        assert chosen_keys(keys, details=False) == sorted({*DEFAULT_KEYS, "backward"})
    assert "backward" in chosen_keys(("backward", True), details=False)


@pytest.mark.parametrize("key", ["foo", False, 1, None, ["backward"]])
def test_an_unknown_key_is_an_error_that_names_the_known_ones(key: Any) -> None:
    with pytest.raises(ConfigError, match="'train batch', 'validation batch'") as failure:
        chosen_keys(("backward", key), details=False)
    assert repr(key) in str(failure.value)
    assert isinstance(failure.value, ValueError)


def test_ranks_are_put_together_without_those_that_have_nothing() -> None:
    keys = ["train batch", "validation batch", "backward"]
    found: list[dict[str, float]] = [{"train batch": 1.0}, {"train batch": 2.5, "validation batch": 0.5}, {}]
    rows = [encode_values(values, keys) for values in found]
    assert reduce_ranks(rows, keys, "mean") == {"train batch": 1.75, "validation batch": 0.5}
    assert reduce_ranks(rows, keys, "max")["train batch"] == 2.5
    assert reduce_ranks(rows, keys, "min")["train batch"] == 1.0
    assert reduce_ranks([[0], [2 * S]], ["backward"], "mean") == {"backward": 1.0}, "no time is a time"


def test_the_table_tells_what_downtime_was() -> None:
    loop = Loop()
    loop.times.begin_epoch()
    plain(loop)
    epoch = loop.times.end_epoch()
    assert epoch is not None
    text = stages_table({**epoch, "test": StageTimes()})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "Time profiler Calls Total (s) Mean (s) p50 (s) p95 (s) Max (s) Percentage %"
    assert lines[2] == "train batch 4 14.000000 3.500000 3.500000 3.500000 3.500000 76.92"
    assert lines[-2] == ("train: 16.000000 s, of which 2.000000 s downtime (12.50 %): data loading 2.000000 s")
    assert stages_table({"train": StageTimes()}) == ""


def test_the_arithmetic_needs_no_lightning() -> None:
    code = "import sys, tracekit.integrations.lightning.loop_timer; "
    code += "sys.exit(any(name.split('.')[0] in ('lightning', 'pytorch_lightning', 'torch') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
