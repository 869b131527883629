"""Timers like those of Megatron and NeMo, with their calls in the trace; see `Timers`, the sinks, and `read_timers`."""

from tracekit.timers.sinks import (
    CSVSink,
    JSONLinesSink,
    MLflowSink,
    Sink,
    TensorBoardSink,
    TextSink,
    WandbSink,
    metrics,
)
from tracekit.timers.table import Row, TimerTable
from tracekit.timers.timer import DummyTimer, OffTimer, Timer, TimerBase
from tracekit.timers.timers import Timers
from tracekit.timers.trace_files import read_timers

__all__ = [
    "CSVSink",
    "DummyTimer",
    "JSONLinesSink",
    "MLflowSink",
    "OffTimer",
    "Row",
    "Sink",
    "TensorBoardSink",
    "TextSink",
    "Timer",
    "TimerBase",
    "TimerTable",
    "Timers",
    "WandbSink",
    "metrics",
    "read_timers",
]
