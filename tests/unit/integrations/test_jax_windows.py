"""Windows of JAX traces: what holds for any settings, any steps and any interruptions."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from tracekit.distributed import detect_process
from tracekit.integrations.jax import JaxProfilerConfig
from tracekit.integrations.jax.windows import Windows

if TYPE_CHECKING:
    import pytest

MINUTE_NS = 60_000_000_000


def run(config: JaxProfilerConfig, first: int, minutes: list[int], cuts: set[int]) -> list[tuple[int, int, bool]]:
    """Play a training; returns the traces: the steps after which they begin and end, and whether they were cut."""
    windows, now_ns, begin = Windows(config), 0, -1
    traces = []
    for step, passed in enumerate(minutes, first):
        now_ns += passed * MINUTE_NS
        decision = windows.after_step(step, 0, now_ns)
        if decision == "start":
            assert begin < 0
            windows.started()
            begin = step
        elif decision == "stop":
            assert begin >= 0
            held = windows.ended(now_ns)
            assert (held.first, held.steps, held.again) == (begin + 1, step - begin, False)
            traces.append((begin, step, False))
            begin = -1
        if step in cuts and begin >= 0:
            held = windows.ended(now_ns, early=True)
            assert held.steps == step - begin
            traces.append((begin, step, True))
            begin = -1
    return traces


configs = st.builds(
    JaxProfilerConfig,
    every_n_steps=st.sampled_from([-1, 1, 7]),
    profile_every_n_minutes=st.sampled_from([-1, 0, 3, 60]),
    profile_first_step=st.integers(0, 40),
    profile_n_steps=st.integers(1, 10),
)


@given(configs, st.integers(1, 60), st.lists(st.integers(0, 5), max_size=120), st.sets(st.integers(1, 180), max_size=6))
def test_no_trace_is_shorter_or_much_longer_than_it_should_be(
    config: JaxProfilerConfig, first: int, minutes: list[int], cuts: set[int]
) -> None:
    number = config.profile_n_steps
    for begin, end, cut in run(config, first, minutes, cuts):
        assert cut or end - begin >= number
        assert end - begin <= 2 * number


@given(configs, st.integers(1, 60), st.lists(st.integers(0, 5), max_size=120))
def test_the_steps_that_are_asked_for_are_recorded_whole(
    config: JaxProfilerConfig, first: int, minutes: list[int]
) -> None:
    """Also in a resumed run, which asks for those after its first one."""
    begin = max(config.profile_first_step, first)
    end = begin + config.profile_n_steps
    if end < first + len(minutes):
        assert any(start <= begin and end <= stop for start, stop, _ in run(config, first, minutes, set()))


def initialised(monkeypatch: pytest.MonkeyPatch, **state: Any) -> None:
    module: Any = SimpleNamespace(global_state=SimpleNamespace(**state))
    monkeypatch.setitem(sys.modules, "jax._src.distributed", module)


def test_jax_distributed_tells_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    initialised(monkeypatch, client=object(), process_id=3, num_processes=4)
    found = detect_process(environ={"RANK": "1", "WORLD_SIZE": "2"})
    assert (found.rank, found.world_size, found.source) == (3, 4, "jax.distributed")
    found = detect_process(rank=2, world_size=8, environ={})
    assert (found.rank, found.world_size, found.source) == (2, 8, "arguments")


def test_a_jax_distributed_that_is_not_initialised_or_unknown_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for state in ({"client": None, "process_id": 0, "num_processes": None}, {"client": object()}, {}):
        initialised(monkeypatch, **state)
        assert detect_process(environ={}).source == "default"
