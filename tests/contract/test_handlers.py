"""Every handler of tracekit keeps to the contract that users' handlers are tested with."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tracekit import FlightRecorder, JSONTraceHandler, MemoryTraceHandler, TraceHandler
from tracekit.testing import TraceHandlerContract

if TYPE_CHECKING:
    from pathlib import Path


class TestJSONTraceHandler(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        return JSONTraceHandler(tmp_path / "rank{rank}.json")


class TestJSONTraceHandlerPerWindow(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        return JSONTraceHandler(tmp_path / "rank{rank}-ep{epoch}-ba{batch}.json.gz")


class TestJSONTraceHandlerRotating(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        return JSONTraceHandler(
            tmp_path / "rank{rank}-part{part}.json.gz",
            rotate_bytes=1000,
            rotate_every="1ep",
            num_traces_to_keep=3,
            max_total_bytes=100_000,
        )


class TestFlightRecorder(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        return FlightRecorder(tmp_path / "rank{rank}-dump{dump}.json", slow_step=1.1, on_close=True, excepthooks=True)


class TestFlightRecorderWithASignal(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        return FlightRecorder(tmp_path / "rank{rank}-ba{batch}.json.gz", on_signal=signal.SIGUSR2, max_bytes=4 << 20)


class TestMemoryTraceHandler(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        return MemoryTraceHandler()


class TestHandlerOfEventsOneByOne(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        class Inline(TraceHandler):
            inline = True

        return Inline()
