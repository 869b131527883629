"""Steps of an unmodified loop: what ends them, and which steps torch.profiler gets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tracekit import MemoryTraceHandler, Profiler, ProfilerAction, cyclic_schedule
from tracekit.auto.recorder import AutoRecorder
from tracekit.auto.step_window import StepWindow
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


def steps(recorder: AutoRecorder) -> int:
    profiler = recorder.running()
    assert profiler is not None
    return int(profiler.timestamp.batch)


def optimize(recorder: AutoRecorder, *optimizers: object) -> None:
    for optimizer in optimizers:
        recorder.optimizer_starts(optimizer)
        recorder.optimizer_ended(optimizer)


def test_a_step_ends_with_the_next_request_for_data(recorder: AutoRecorder) -> None:
    optimizer = Optimizer()
    for number in range(3):
        recorder.fetching()
        assert steps(recorder) == number
        optimize(recorder, optimizer)
        assert steps(recorder) == number


def test_accumulated_batches_are_one_step(recorder: AutoRecorder) -> None:
    optimizer = Optimizer()
    for _ in range(3):
        for _ in range(4):
            recorder.fetching()
        optimize(recorder, optimizer)
    recorder.fetching()
    assert steps(recorder) == 3


@pytest.mark.parametrize("fetches", [True, False])
def test_several_optimizers_are_one_step(recorder: AutoRecorder, fetches: bool) -> None:
    first, second = Optimizer(), Optimizer()
    for _ in range(3):
        if fetches:
            recorder.fetching()
        optimize(recorder, first, second)
    recorder.fetching()
    assert steps(recorder) == 3


def test_steps_without_requests_end_with_the_optimizer(recorder: AutoRecorder) -> None:
    optimizer = Optimizer()
    optimize(recorder, optimizer)
    assert steps(recorder) == 1
    optimize(recorder, optimizer)
    assert steps(recorder) == 2


def test_several_steps_for_one_request_are_all_counted(recorder: AutoRecorder) -> None:
    optimizer = Optimizer()
    for rounds in range(1, 4):
        recorder.fetching()
        for _ in range(4):
            optimize(recorder, optimizer)
        assert steps(recorder) == 4 * rounds


def test_an_optimizer_that_is_gone_no_longer_leads(recorder: AutoRecorder) -> None:
    for _ in range(3):
        optimize(recorder, Optimizer())
    assert steps(recorder) == 3


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
