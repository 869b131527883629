"""ProfilerOptions: the configuration of a Profiler."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from tracekit import ConfigError, MemoryTraceHandler, Profiler, SystemProfiler
from tracekit.recording.options import ProfilerOptions

HANDLER = MemoryTraceHandler()


def test_profiler_and_its_options_have_the_same_names_and_defaults() -> None:
    arguments = list(inspect.signature(Profiler.__init__).parameters.values())[1:]
    options = {field.name: field.default for field in dataclasses.fields(ProfilerOptions)}
    assert {argument.name: argument.default for argument in arguments} == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace_handlers": "x"}, r"trace_handlers must be a .*, not 'x'; JSONTraceHandler\('x'\) writes a file"),
        ({"trace_handlers": [MemoryTraceHandler]}, r"trace_handlers must .*; call it: MemoryTraceHandler\(...\)"),
        ({"trace_handlers": [SystemProfiler()]}, "trace_handlers must be .* not .*; pass it as sources="),
        ({"trace_handlers": [HANDLER, HANDLER]}, "trace_handlers names one TraceHandler twice"),
        ({"sources": [3]}, r"sources must be a Source or a list of them, not \[3\]"),
        ({"schedule": 3}, r"schedule must be a function of the Timestamp, such as cyclic_schedule\(...\), not 3"),
        ({"timestamp": 3}, "timestamp must be a Timestamp, not 3"),
        ({"counts": "all"}, "counts must be one of 'rank', 'global', not 'all'"),
        ({"counts": ["rank"]}, "counts must be one of 'rank', 'global', not .*"),
        ({"flush_interval": 0}, "flush_interval must be a number of seconds above 0, not 0"),
        ({"shutdown_timeout": 1e10}, "shutdown_timeout must be at most 1,000,000,000 seconds .*, not 10000000000.0"),
        ({"shutdown_timeout": "1"}, "shutdown_timeout must be a number of seconds above 0, not '1'"),
        ({"sigterm_grace": -1}, "sigterm_grace must be a number of seconds above 0, not -1"),
        ({"max_buffered_events": 0}, "max_buffered_events must be a whole number from 1 on, not 0"),
        ({"max_buffered_bytes": 1.5}, "max_buffered_bytes must be a whole number from 1 on, not 1.5"),
        ({"on_full": "wait"}, "on_full must be one of 'drop_newest', 'drop_oldest', 'block', not 'wait'"),
    ],
)
@pytest.mark.parametrize("kind", [Profiler, ProfilerOptions])
def test_a_wrong_option_is_refused_by_name(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        kind(**options)


def test_limits_beyond_64_bits_are_no_limits() -> None:
    with Profiler(max_buffered_events=1 << 70, max_buffered_bytes=1 << 70) as profiler:
        profiler.marker("a").instant()
    assert (profiler.stats.instants, profiler.stats.dropped) == (1, {})


def test_options_are_frozen_and_hold_tuples() -> None:
    handler, source = MemoryTraceHandler(), SystemProfiler()
    options = ProfilerOptions(trace_handlers=handler, sources=[source])  # type: ignore[arg-type]
    assert (options.trace_handlers, options.sources) == ((handler,), (source,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.flush_interval = 1.0  # type: ignore[misc]
