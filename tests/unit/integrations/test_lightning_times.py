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

from tracekit import ConfigError, MemoryTraceHandler, Profiler
from tracekit.integrations.lightning.actions import PARTS
from tracekit.integrations.lightning.loop_timer import LoopTimer, StageTimes
from tracekit.integrations.lightning.table import stages_table
from tracekit.integrations.lightning.time_values import (
    ALL_KEYS,
    DEFAULT_KEYS,
    OPTIONAL_KEYS,
    chosen_keys,
    encode_values,
    epoch_values,
    keys_of_stage,
    reduce_ranks,
    stage_values,
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


def without_validation(loop: Loop) -> None:
    for _ in range(4):
        loop.train()


def validation_every_2_batches(loop: Loop) -> None:
    for batch in range(4):
        loop.train()
        if batch % 2:
            loop.validate()


def accumulate_4_batches(loop: Loop) -> None:
    for batch in range(4):
        loop.train(optimizer=batch == 3)
    loop.validate()


def accumulate_2_of_3_batches(loop: Loop) -> None:
    for batch in range(3):
        loop.train(optimizer=batch == 1)
    loop.validate()


# What the reference prints in each of these cases, where that is right, and what is right where it is not.
EXAMPLES = {
    plain: (16.0, 3.5, 0.5, 2.0, 0.0625, 0.2, 0.0125),
    without_validation: (16.0, 3.5, 0.5, 2.0, 0.0625, None, None),
    validation_every_2_batches: (16.0, 3.5, 0.5, 2.0, 0.0625, 0.4, 0.0125),
    accumulate_4_batches: (14.5, 3.125, 0.5, 2.0, 0.0625, 0.2, 0.0125),
    accumulate_2_of_3_batches: (11.0, 9.5 / 3, 0.5, 1.5, 0.0625, 0.2, 0.0125),
}
EXAMPLE_KEYS = (
    "train epoch",
    "train batch",
    "optimizer step",
    "total train downtime",
    "avg train downtime",
    "total val downtime",
    "avg val downtime",
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_the_worked_examples_have_the_right_answers(example: Callable[[Loop], None]) -> None:
    values = Loop().epoch(example)
    assert [values.get(key) for key in EXAMPLE_KEYS] == pytest.approx(list(EXAMPLES[example]))
    assert values["backward"] == 2
    if example is validation_every_2_batches:
        assert values["validation epoch"] == pytest.approx(2.2)
    assert values["train downtime per step"] == pytest.approx(0.5)
    assert values["train downtime data loading"] == values["total train downtime"]


def test_every_part_of_the_downtime_has_its_place_and_their_sum_is_the_total() -> None:
    loop = Loop()

    def body(loop: Loop) -> None:
        loop.times.start("run_training_epoch")
        loop.pass_(7)  # the workers of the loader start
        for _ in range(2):
            loop.train()
            loop.action("[Strategy]SingleDeviceStrategy.batch_to_device", 0.25)
            loop.action("[LightningModule]Net.on_train_batch_end", 1)
            loop.action("[Logger]CSVLogger.log_metrics", 2)
            checkpoint = "[Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end"
            loop.times.start(checkpoint)
            loop.pass_(0.5)
            loop.times.start("save_checkpoint")
            loop.action("[Callback]ModelCheckpoint{'monitor': None}.on_save_checkpoint", 3)
            loop.times.stop("save_checkpoint")
            loop.times.stop(checkpoint)
            loop.pass_(0.125)
        loop.times.stop("run_training_epoch")

    values = loop.epoch(body)
    parts = {part: values[f"train downtime {part}"] for part in PARTS}
    assert parts == {
        "data loading": 7 + 2 * 0.5,
        "transfer": 2 * 0.25,
        "callbacks": 2 * (1 + 0.5),
        "logging": 2 * 2,
        "checkpointing": 2 * 3,
        "other": 2 * 0.125,
    }
    assert sum(parts.values()) == values["total train downtime"]
    assert values["train epoch"] == values["total train downtime"] + 2 * values["train batch"]


def test_what_lies_between_epochs_belongs_to_neither() -> None:
    loop = Loop()
    first = loop.epoch(plain)
    loop.action("save_checkpoint", 4)
    second = loop.epoch(plain)
    assert "between epochs" not in first
    assert second == {**first, "between epochs": 4.0}


def test_an_epoch_without_batches_has_no_mean_of_them() -> None:
    values = Loop().epoch(lambda loop: loop.pass_(3))
    assert values["train epoch"] == values["total train downtime"] == values["train downtime other"] == 3
    assert not {"train batch", "avg train downtime", "train downtime per step", "backward"} & values.keys()
    nothing = Loop().epoch(lambda loop: None)
    assert set(nothing.values()) == {0.0}


def test_batches_whose_samples_cannot_be_told_have_no_downtime_for_each() -> None:
    values = Loop().epoch(lambda loop: loop.train(samples=0))
    assert "avg train downtime" not in values
    assert values["train downtime per step"] == 0.5


def test_a_batch_that_never_ends_is_downtime() -> None:
    def body(loop: Loop) -> None:
        loop.train()
        loop.times.begin_batch()
        loop.pass_(1)  # and then the module leaves out the rest of the epoch

    values = Loop().epoch(body)
    assert (values["train epoch"], values["train batch"], values["total train downtime"]) == (5, 3.5, 1.5)


def test_the_loss_that_an_optimizer_asks_for_again_is_not_its_own_time() -> None:
    def body(loop: Loop) -> None:
        step, again = "[LightningModule]Net.optimizer_step", "[Strategy]SingleDeviceStrategy.training_step"
        loop.times.begin_batch()
        loop.times.start(step)
        for _ in range(3):
            loop.action(again, 5)
            loop.times.begin("optimizer step")
            loop.pass_(0.25)
        loop.times.stop(step)
        loop.times.end_batch(8)

    assert Loop().epoch(body)["optimizer step"] == 0.75


def test_ends_without_beginnings_do_nothing() -> None:
    loop = Loop()
    loop.times.end_batch(8)
    loop.times.end("backward")
    loop.times.end("optimizer step")
    loop.times.stop(FETCH)
    assert loop.times.end_epoch() is None
    assert loop.times.end_stage("test") is None
    assert loop.epoch(plain) == Loop().epoch(plain)


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


def test_an_epoch_that_was_interrupted_goes_on_with_its_times_and_without_the_pause() -> None:
    loop = Loop()
    loop.times.begin_epoch()
    loop.train()
    loop.train()
    until = loop.times.epoch_until_now()
    assert until is not None
    stored = {stage: times.to_dict() for stage, times in until.items()}

    later = Loop()
    later.pass_(3600)
    later.times.resumed = {stage: StageTimes.from_dict(times) for stage, times in stored.items()}
    later.times.start("run_training_epoch")
    later.train()
    later.train()
    later.validate()
    later.times.stop("run_training_epoch")
    done = later.times.end_epoch()
    assert done is not None
    assert epoch_values(done) == Loop().epoch(plain)
    assert done["train"].runs == 1


def test_times_outlive_a_checkpoint() -> None:
    loop = Loop()
    loop.times.begin_epoch()
    plain(loop)
    epoch = loop.times.end_epoch()
    assert epoch is not None
    assert {stage: StageTimes.from_dict(times.to_dict()) for stage, times in epoch.items()} == epoch


def test_everything_timed_is_a_slice_of_the_active_profiler() -> None:
    memory = MemoryTraceHandler()
    with Profiler(memory, rank=0):
        loop = Loop()
        loop.epoch(validation_every_2_batches)
        loop.times.begin_epoch()
        loop.times.begin_batch()
        loop.times.close()
    names = [start.label.name for start, _ in memory.slices]
    assert {name: names.count(name) for name in names} == {
        "train epoch": 2,
        "train batch": 5,
        "data loading": 8,
        "backward": 4,
        "optimizer step": 4,
        "validation epoch": 2,
        "validation batch": 4,
    }


def test_parts_have_no_slices_where_all_actions_have_some() -> None:
    memory = MemoryTraceHandler()
    with Profiler(memory, rank=0):
        Loop(slices_of_parts=False).epoch(plain)
    assert "data loading" not in {start.label.name for start, _ in memory.slices}


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


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_the_documented_keys() -> None:
    assert chosen_keys((), details=False) == sorted(DEFAULT_KEYS)
    assert len(chosen_keys(("backward",), details=False)) == 7
    assert chosen_keys((True,), details=False) == sorted({*DEFAULT_KEYS, *OPTIONAL_KEYS})
    assert len(chosen_keys((True,), details=False)) == 10
    assert chosen_keys((True,), details=True) == sorted(ALL_KEYS)
    assert set(chosen_keys(("train downtime per step",), details=False)) == {*DEFAULT_KEYS, "train downtime per step"}


@pytest.mark.parametrize("keys", [("backward", "backward"), ("train batch", "backward"), ("backward", True)])
def test_naming_a_key_twice_or_a_default_key_is_no_error(keys: tuple[Any, ...]) -> None:
    assert "backward" in chosen_keys(keys, details=False)


@pytest.mark.parametrize("key", ["foo", False, 1, None, ["backward"]])
def test_an_unknown_key_is_an_error_that_names_the_known_ones(key: Any) -> None:
    with pytest.raises(ConfigError, match="'train batch', 'validation batch'") as failure:
        chosen_keys(("backward", key), details=False)
    assert repr(key) in str(failure.value)
    assert isinstance(failure.value, ValueError)


def test_every_key_has_a_value_where_there_was_something() -> None:
    loop = Loop()
    loop.epoch(plain)
    loop.pass_(1)
    assert loop.epoch(plain).keys() == set(ALL_KEYS)


def test_a_test_has_the_keys_of_validation_under_its_own_name() -> None:
    loop = Loop()
    loop.times.begin_stage("test")
    loop.action(VAL_FETCH, 0.5)
    loop.times.begin_batch()
    loop.pass_(2)
    loop.times.end_batch(4)
    times = loop.times.end_stage("test")
    assert times is not None
    values = stage_values("test", times)
    assert values.keys() == set(keys_of_stage(ALL_KEYS, "test"))
    assert (values["test batch"], values["test epoch"], values["avg test downtime"]) == (2, 2.5, 0.125)
    assert not any("val" in key or "train" in key for key in values)


def test_ranks_are_put_together_without_those_that_have_nothing() -> None:
    keys = ["train batch", "validation batch", "backward"]
    rows = [
        encode_values(values, keys)
        for values in ({"train batch": 1.0}, {"train batch": 2.5, "validation batch": 0.5}, {})
    ]
    assert reduce_ranks(rows, keys, "mean") == {"train batch": 1.75, "validation batch": 0.5}
    assert reduce_ranks(rows, keys, "max")["train batch"] == 2.5
    assert reduce_ranks(rows, keys, "min")["train batch"] == 1.0


def test_a_rank_that_took_no_time_counts() -> None:
    assert reduce_ranks([[0], [2 * S]], ["backward"], "mean") == {"backward": 1.0}


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
    code = "import sys, tracekit.integrations.lightning.loop_timer, tracekit.integrations.lightning.table; "
    code += "sys.exit(any(name.split('.')[0] in ('lightning', 'pytorch_lightning', 'torch') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
