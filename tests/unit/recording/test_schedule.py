"""The cyclic schedule: the vectors of the reference system, its refusals, and what tracekit does better."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.errors import ConfigError
from tracekit.recording.schedule import CyclicSchedule, ProfilerAction, cyclic_schedule
from tracekit.timestamp import Timestamp

LETTERS = {
    ProfilerAction.SKIP: "S",
    ProfilerAction.WARMUP: "W",
    ProfilerAction.ACTIVE: "A",
    ProfilerAction.ACTIVE_AND_SAVE: "V",
}


def at(batch_in_epoch: int, epoch: int = 0, batch: int | None = None) -> Any:
    """A training time, as far as a schedule reads it."""
    return SimpleNamespace(batch_in_epoch=batch_in_epoch, epoch=epoch, batch=batch_in_epoch if batch is None else batch)


def actions(schedule: CyclicSchedule, count: int, *, start: int = 0, epoch: int = 0, epoch_start: int = 0) -> str:
    return "".join(LETTERS[schedule(at(n, epoch, epoch_start + n))] for n in range(start, start + count))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "WAAAVSSSSSSSSS"),
        ({"skip_first": 1, "wait": 2, "warmup": 3, "active": 4}, "SSSWWWAAAVSSSS"),
        ({"skip_first": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}, "SSWAVSWAVSSSSS"),
        ({"repeat": 0}, "WAAAVWAAAVWAAA"),
        ({"wait": 1, "warmup": 0, "active": 1, "repeat": 0}, "SVSVSVSV"),
        ({"warmup": 1, "active": 4, "repeat": 0, "epoch_length": 7}, "WAAAVWV"),
        ({"warmup": 0, "active": 1000, "repeat": 0, "epoch_length": 5}, "AAAAV"),
        # The reference warms up in the last batch (WAAAVW), and its trace stays open into the next epoch.
        ({"warmup": 1, "active": 4, "repeat": 0, "epoch_length": 6}, "WAAAVS"),
    ],
)
def test_the_actions_follow_the_reference_vectors(arguments: dict[str, Any], expected: str) -> None:
    assert actions(cyclic_schedule(**arguments), len(expected)) == expected


@pytest.mark.parametrize("action", ProfilerAction)
def test_an_action_is_built_from_a_member_or_a_name_in_any_case(action: ProfilerAction) -> None:
    """As Composer's, which is a string enumeration."""
    for spelling in (action, action.value, action.name, action.name.title()):
        assert ProfilerAction(spelling) is action


@pytest.mark.parametrize("wrong", ["record", "", None, 1, ["active"]])
def test_anything_else_is_no_action_and_the_error_lists_the_actions(wrong: object) -> None:
    with pytest.raises(
        ConfigError, match="is not a ProfilerAction; the actions are skip, warmup, active, active_and_save"
    ):
        ProfilerAction(wrong)


def test_an_action_equals_its_value_and_hashes_like_it() -> None:
    action = ProfilerAction.ACTIVE
    assert action == "active"
    assert "active" == action  # noqa: SIM300 - either way round
    assert action != "warmup"
    assert action != "ACTIVE"  # differs from Composer, where equal things hash differently
    assert action != ProfilerAction.ACTIVE_AND_SAVE
    assert action not in (None, 1)
    assert {"active": 1}[action] == {action: 1}["active"] == 1  # type: ignore[index]
    assert len({*ProfilerAction, "active", "skip"}) == 4
    assert pickle.loads(pickle.dumps(action)) is copy.deepcopy(action) is action
    assert (str(action), f"{action}") == ("ProfilerAction.ACTIVE",) * 2


def test_per_epoch_every_epoch_starts_again() -> None:
    schedule = cyclic_schedule(active=4, repeat=0, epoch_length=7)
    assert actions(schedule, 7, epoch=3, epoch_start=21) == "WAAAVWV"


def test_per_run_the_count_goes_on_and_an_epoch_does_not_cut_a_window() -> None:
    schedule = cyclic_schedule(wait=1, active=3, repeat=0, per="run", epoch_length=4)
    assert actions(schedule, 4) + actions(schedule, 4, epoch=1, epoch_start=4) == "SWAAVSWA"


def test_a_resumed_run_is_counted_from_where_it_was_resumed() -> None:
    schedule = cyclic_schedule(skip_first=1, active=2).resumed_at(at(3))
    assert actions(schedule, 10) == "SSSSWAVSSS"


def test_the_resume_offset_holds_in_the_resumed_epoch_only() -> None:
    schedule = cyclic_schedule(active=2).resumed_at(at(3, epoch=5, batch=53))
    assert actions(schedule, 7, epoch=5, epoch_start=50) == "SSSWAVS"
    assert actions(schedule, 7, epoch=6, epoch_start=57) == "WAVSSSS"


def test_per_run_the_resume_offset_is_counted_in_batches_of_the_run() -> None:
    schedule = cyclic_schedule(skip_first=1, active=2, per="run").resumed_at(at(3, epoch=5, batch=53))
    assert actions(schedule, 6, start=3, epoch=5, epoch_start=50) == "SWAVSS"
    assert actions(schedule, 5, epoch=6, epoch_start=59) == "SSSSS"


def test_resuming_twice_counts_from_the_second_time_alone() -> None:
    schedule = cyclic_schedule(active=2).resumed_at(at(3)).resumed_at(at(1, epoch=1, batch=8))
    assert actions(schedule, 4) == "WAVS"
    assert actions(schedule, 4, epoch=1, epoch_start=7) == "SWAV"


def test_it_follows_a_real_timestamp_through_an_epoch() -> None:
    schedule, timestamp = cyclic_schedule(active=2, epoch_length=3), Timestamp()
    seen = ""
    for _ in range(2):
        for _ in range(3):
            seen += LETTERS[schedule(timestamp)]
            timestamp = timestamp.to_next_batch(samples=4)
        timestamp = timestamp.to_next_epoch()
    assert seen == "WAVWAV"


def test_an_unknown_epoch_length_leaves_the_end_of_the_epoch_to_the_profiler() -> None:
    schedule = cyclic_schedule(active=4, epoch_length=3).with_epoch_length(None)
    assert actions(schedule, 3) == "WAA"


def test_a_schedule_is_a_value() -> None:
    schedule = cyclic_schedule(wait=1)
    assert schedule.with_epoch_length(9) == cyclic_schedule(wait=1, epoch_length=9)
    assert schedule.epoch_length is None
    assert hash(schedule) == hash(cyclic_schedule(wait=1))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"wait": 0, "warmup": 0, "active": 0, "repeat": 1}, "active"),
        ({"wait": 0, "warmup": 0, "active": 0, "repeat": 0}, "active"),
        ({"active": 0, "repeat": 0}, "active"),
        ({"repeat": -1}, "repeat"),
        ({"wait": -1, "active": 2, "repeat": 0}, "wait"),
        ({"warmup": -1}, "warmup"),
        ({"skip_first": -1}, "skip_first"),
        ({"skip_first": 1.0}, "skip_first"),
        ({"active": True}, "active"),
        ({"repeat": "2"}, "repeat"),
        ({"wait": None}, "wait"),
        ({"epoch_length": 0}, "epoch_length"),
        ({"per": "batch"}, "per"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_and_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"cyclic_schedule: {named} must be"):
        cyclic_schedule(**arguments)


def test_a_wrong_epoch_length_is_refused_when_it_is_told_later() -> None:
    with pytest.raises(ConfigError, match="epoch_length must be a whole number from 1 on"):
        cyclic_schedule().with_epoch_length(-3)
