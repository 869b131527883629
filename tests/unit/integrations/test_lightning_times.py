"""The arithmetic of the time profiler, on a clock that the test sets: every number is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import ConfigError
from tracekit.integrations.lightning.loop_timer import (
    ALL_KEYS,
    DEFAULT_KEYS,
    OPTIONAL_KEYS,
    LoopTimer,
    StageTimes,
    chosen_keys,
    encode_values,
    reduce_ranks,
)
from tracekit.testing import FakeClock

S = 1_000_000_000
ACTIONS = [
    "[_TrainingEpochLoop].train_dataloader_next",
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
