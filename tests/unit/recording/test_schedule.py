"""The cyclic schedule: the vectors of the reference system, its refusals, and what tracekit does better."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.errors import ConfigError
from tracekit.recording.schedule import CyclicSchedule, ProfilerAction, cyclic_schedule

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


AT_3 = at(3, epoch=1, batch=10)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (cyclic_schedule(active=4, repeat=0, epoch_length=7), ["WAAAVWV", "WAAAVWV"]),
        (cyclic_schedule(active=4, epoch_length=3).with_epoch_length(None), ["WAAAVSS", "WAAAVSS"]),
        (cyclic_schedule(wait=1, active=3, repeat=0, per="run", epoch_length=7), ["AAVSWAA", "VSWAAVS"]),
        (cyclic_schedule(skip_first=1, active=2).resumed_at(AT_3), ["SSSSWAV", "SWAVSSS"]),
        (cyclic_schedule(skip_first=1, active=4, per="run").resumed_at(AT_3), ["SSSSWAA", "AVSSSSS"]),
        (cyclic_schedule(active=2).resumed_at(AT_3).resumed_at(at(1, epoch=2, batch=15)), ["WAVSSSS", "SWAVSSS"]),
    ],
    ids=["per epoch", "length unknown", "per run", "resumed", "resumed, per run", "resumed twice"],
)
def test_epochs_and_resumption_move_the_windows(schedule: CyclicSchedule, expected: list[str]) -> None:
    """In the second and third epoch of 7 batches each."""
    assert [actions(schedule, 7, epoch=epoch, epoch_start=7 * epoch) for epoch in (1, 2)] == expected


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
    with pytest.raises(ConfigError, match="epoch_length must be a whole number from 1 on"):
        cyclic_schedule().with_epoch_length(-3)
