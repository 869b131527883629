"""Steps of an unmodified loop: what ends them, and which steps torch.profiler gets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tracekit import MemoryTraceHandler, Profiler, ProfilerAction, cyclic_schedule
from tracekit.auto.components import StepWindow
from tracekit.auto.recorder import AutoRecorder
from tracekit.recording.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.recording.source import Recorder


class Optimizer:
    """An object with a weak reference."""


@pytest.fixture
def recorder() -> Iterator[AutoRecorder]:
    recorder = AutoRecorder()
    with Profiler(MemoryTraceHandler()) as profiler:
        recorder._profiler, recorder.thread = profiler, threading.get_ident()
        yield recorder


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        ("f", [0]),
        ("fa", [0, 0]),
        ("fafafa", [0, 0, 1, 1, 2, 2]),  # a step ends with the next request for data
        ("ffffa ffffa f", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]),  # accumulated batches are one
        ("fab fab f", [0, 0, 0, 1, 1, 1, 2]),  # several optimizers are one
        ("ab ab f", [1, 1, 2, 2, 2]),
        ("aa", [1, 2]),  # without requests it ends with the optimizer
        ("faaaa faaaa", [0, 0, 2, 3, 4, 4, 5, 6, 7, 8]),  # several optimizer steps for one request
        ("nnn", [1, 2, 3]),  # an optimizer that is gone no longer leads
    ],
)
def test_steps_end_with_requests_for_data_or_with_the_optimizer(
    recorder: AutoRecorder, calls: str, steps: list[int]
) -> None:
    """By letter: f fetches, a and b are optimizers, n is a new one."""
    optimizers = {"a": Optimizer(), "b": Optimizer()}
    profiler = recorder.running()
    assert profiler is not None
    found = []
    for call in calls.replace(" ", ""):
        if call == "f":
            recorder.fetching()
        else:
            optimizer = optimizers.get(call) or Optimizer()
            recorder.optimizer_starts(optimizer)
            recorder.optimizer_ended(optimizer)
            del optimizer
        found.append(int(profiler.timestamp.batch))
    assert found == steps


class Noting(Source):
    """Notes the actions that it gets."""

    def __init__(self) -> None:
        self.actions: list[ProfilerAction] = []
        self.closed = False

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        self.actions.append(action)

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        assert finished is self.actions[-1]
        self.actions.append(action)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("window", "expected"), [((2, 4), "SKIP WARMUP ACTIVE SAVE SKIP SKIP"), ((0, 1), "SAVE SKIP SKIP SKIP SKIP SKIP")]
)
def test_a_source_gets_the_actions_of_its_window(window: tuple[int, int], expected: str) -> None:
    source = Noting()
    with Profiler(MemoryTraceHandler(), sources=StepWindow(source, window)) as profiler:
        for _ in range(5):
            profiler.step()
    assert source.closed
    assert " ".join(action.name.removeprefix("ACTIVE_AND_") for action in source.actions) == expected


def test_a_source_that_steps_on_change_gets_no_call_between() -> None:
    class Changes(Noting):
        steps_on_change = True

    source = Changes()
    schedule = cyclic_schedule(wait=2, warmup=0, active=3, repeat=1)
    with Profiler(MemoryTraceHandler(), schedule, sources=source) as profiler:
        for _ in range(7):
            profiler.step()
    assert [action.name for action in source.actions] == ["SKIP", "ACTIVE", "ACTIVE_AND_SAVE", "SKIP"]


def test_a_source_without_steps_gets_the_actions_of_the_schedule_while_it_is_on() -> None:
    source, on = Noting(), [True, True, False, True, True]
    schedule = cyclic_schedule(wait=0, warmup=1, active=2, repeat=2)
    with Profiler(MemoryTraceHandler(), schedule, sources=StepWindow(source, None, lambda: on.pop(0))) as profiler:
        for _ in range(4):
            profiler.step()
    assert [action.name for action in source.actions] == ["WARMUP", "ACTIVE", "SKIP", "WARMUP", "ACTIVE"]
