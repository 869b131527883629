"""Mirrors with the real packages: nvtx under a listening tool, torch.profiler, OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.native import compiled
from tests.scripts import ROOT, run_script
from tracekit import (
    JSONTraceHandler,
    NVTXMirror,
    OpenTelemetryMirror,
    Profiler,
    RecordFunctionMirror,
    TorchProfiler,
    TraceHandler,
    cyclic_schedule,
    merge_traces,
)
from tracekit.testing import FakeClock, TraceHandlerContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.perfetto import Engine

NVTX = """
import asyncio, threading
from tracekit import NVTXMirror, Profiler

with Profiler([NVTXMirror()], rank=0, record_batches=False) as profiler:
    with profiler.marker("a", ["model"]):
        with profiler.marker("b"):
            profiler.marker("now", ["model"]).instant()
    thread = threading.Thread(target=profiler.marker("elsewhere")(int))
    thread.start()
    thread.join()
    async def work():
        async with profiler.marker("task"):
            await asyncio.sleep(0)
    async def both():
        await asyncio.gather(work(), work())
    asyncio.run(both())
    assert profiler.stats.failures == {}
"""


def test_tool_that_listens_to_nvtx_gets_every_slice(tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="nvtx is not installed")
    tool = compiled("nvtx_listener", tmp_path)
    run_script(tmp_path, "-c", NVTX, NVTX_INJECTION64_PATH=str(tool), NVTX_CALLS=str(tmp_path / "calls"))
    calls = [line.split("|") for line in (tmp_path / "calls").read_text().splitlines()]
    main = calls[0][4]
    assert {domain for _, domain, *_ in calls} == {"tracekit"}
    (category,) = [number for what, _, text, number, _ in calls if (what, text) == ("category", "model")]
    assert [(what, text, number) for what, _, text, number, thread in calls if thread == main][1:] == [
        *(("push", "a", category), ("push", "b", "0"), ("mark", "now", category), ("pop", "", "0"), ("pop", "", "0")),
        *(("start", "task", "1"), ("start", "task", "2"), ("end", "", "1"), ("end", "", "2")),
    ]
    others = [(what, text) for what, _, text, _, thread in calls if thread != main]
    assert others == [("push", "elsewhere"), ("pop", "")]


def names_in(path: str | Path) -> list[str]:
    """Return the names of the user's annotations in a torch trace, by their start."""
    events = json.loads(Path(path).read_text("utf-8"))["traceEvents"]
    found = [event for event in events if event.get("cat") == "user_annotation"]
    return [event["name"] for event in sorted(found, key=lambda event: event["ts"]) if "Step#" not in event["name"]]


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def test_slices_are_in_torchs_trace_while_it_records_and_in_both_when_merged(
    torch: Any, tmp_path: Path, engine: Engine
) -> None:
    mirror = RecordFunctionMirror()
    handlers = [JSONTraceHandler(tmp_path / "rank{rank}.json"), mirror]
    source = TorchProfiler(tmp_path / "torch-{batch}.json")
    plan = cyclic_schedule(wait=1, warmup=1, active=2, repeat=1)
    with Profiler(handlers, plan, sources=[source], rank=0) as profiler:
        for number in range(6):
            with profiler.marker('say "hi" \\ bye'), profiler.marker(f"in {number}"):
                torch.ones(4) + 1
                assert mirror.has_open is (number in (2, 3))
            profiler.marker("now").instant()
            profiler.step()
    assert profiler.stats.failures == {}
    (trace,) = tmp_path.glob("torch-*.json")
    assert names_in(trace) == ["say 'hi' / bye", "in 2", "now", "say 'hi' / bye", "in 3", "now"]
    merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "rank0.json"), str(trace)])
    with engine.load(tmp_path / "merged.json") as loaded:
        assert loaded.errors() == []
        counts = dict(loaded.rows("select name, count(*) from slice where name like 'in %' group by name"))
        assert counts == {"in 1": 1, "in 2": 2, "in 3": 2}, "warm-up is tracekit's alone"
        nested = (
            "select i.name from slice i join slice o on i.parent_id = o.id where i.name = o.name and i.category is null"
        )
        assert loaded.rows(nested + " and o.category = 'user_annotation'") == [("in 2",), ("in 3",)]
        assert loaded.rows("select name from thread where name like '%(overlap)'") == []


CROSSING = """
import gc, torch
from torch.profiler import ProfilerActivity, profile
from tracekit import Profiler, RecordFunctionMirror, TorchProfiler, cyclic_schedule
from tracekit.handlers.mirrors import record_function as module

def names(profiled):
    return [event.name for event in profiled.events() if event.name.startswith("mine")]

def session():
    return profile(activities=[ProfilerActivity.CPU])

with Profiler([RecordFunctionMirror()], rank=0, flush_interval=3600) as profiler:
    markers = [profiler.marker(f"mine {number}") for number in range(50)]
    with session() as first:
        for marker in markers:
            marker.start()
        torch.ones(2)
    assert len(names(first)) == 50
    del first
    gc.collect()
    with session() as second:
        for number in range(200):
            torch.ones(2)
        for marker in reversed(markers):
            marker.finish()
        with profiler.marker("mine alone"):
            torch.ones(2)
    assert names(second) == ["mine alone"], names(second)
    assert len(module._kept) == 50
    assert profiler.flush()
    assert module._kept == []
    assert profiler.stats.failures == {}

# tracekit's own windows, one after the other without a pause, and a slice across all of them.
plan = cyclic_schedule(warmup=0, active=1, repeat=3)
with Profiler([RecordFunctionMirror()], plan, sources=[TorchProfiler("{batch}.json")], rank=0) as one:
    with one.marker("mine across"):
        for number in range(3):
            with one.marker("mine"):
                [torch.ones(2) for _ in range(200)]
            one.step()
    assert one.stats.failures == {}
print("fine")
"""


def test_slice_that_outlives_a_torch_profile_does_not_crash_the_next(torch: Any, tmp_path: Path) -> None:
    # In a child: torch's own _RecordFunctionFast ends the process by a segmentation fault here.
    assert run_script(tmp_path, "-c", CROSSING).stdout == "fine\n"
    export = "torch.profiler export"  # a marker, too: it begins while torch still records
    assert names_in(tmp_path / "0.json") == ["mine across", "mine", export]
    assert names_in(tmp_path / "1.json") == ["mine", export]
    assert names_in(tmp_path / "2.json") == ["mine"]


def test_slice_across_the_batches_of_one_window_ends_where_it_ends(torch: Any, tmp_path: Path) -> None:
    source = TorchProfiler(tmp_path / "t-{batch}.json")
    with Profiler([RecordFunctionMirror()], cyclic_schedule(warmup=0, active=4), sources=[source], rank=0) as profiler:
        with profiler.marker("two batches"):
            for _ in range(2):
                profiler.step()
        with profiler.marker("after"):
            torch.ones(2)
        profiler.step()
        profiler.step()
    events = json.loads((tmp_path / "t-0.json").read_text("utf-8"))["traceEvents"]
    both, after = (next(event for event in events if event["name"] == name) for name in ("two batches", "after"))
    assert both["ts"] + both["dur"] <= after["ts"]


class Spans:
    """A provider whose spans stay in memory."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("user")

    def profiler(self, **options: Any) -> Profiler:
        options.setdefault("record_batches", False)
        return Profiler([OpenTelemetryMirror(self.provider)], rank=3, run_id="run", **options)

    @property
    def finished(self) -> dict[str, Any]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def parents(self) -> dict[str, str | None]:
        """Return the name of each span's parent; "?" is one that has not ended."""
        spans = self.exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans}
        return {span.name: None if span.parent is None else names.get(span.parent.span_id, "?") for span in spans}


@pytest.fixture
def spans() -> Iterator[Spans]:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    from opentelemetry import trace

    found = Spans()
    yield found
    assert not trace.get_current_span().get_span_context().is_valid, "a span was left the current one"
    found.provider.shutdown()


def test_spans_have_their_parents_the_users_among_them(spans: Spans) -> None:
    with spans.profiler() as profiler:
        with spans.tracer.start_as_current_span("job"):
            with profiler.marker("outer"):
                with spans.tracer.start_as_current_span("request"), profiler.marker("inner"):
                    pass
                with profiler.marker("second"):
                    pass
            with profiler.marker("third"):
                pass
        with profiler.marker("alone"):
            pass
    assert profiler.stats.failures == {}
    assert spans.parents() == {
        "job": None,
        "alone": None,
        "outer": "job",
        "third": "job",
        "request": "outer",
        "second": "outer",
        "inner": "request",
    }


def test_spans_carry_the_training_time_the_rank_and_the_times_of_the_trace(spans: Spans, tmp_path: Path) -> None:
    handlers = [OpenTelemetryMirror(spans.provider), JSONTraceHandler(tmp_path / "t{rank}.json")]
    with Profiler(handlers, rank=3, run_id="run", record_batches=False, flush_interval=3600) as profiler:
        profiler.step(samples=8, tokens=100)
        profiler.next_epoch()
        with profiler.marker("a", ["model", "x"]):
            profiler.marker("now", ["y"]).instant()
    span = spans.finished["a"]
    values = {"run_id": "run", "rank": 3, "iteration": 0, "epoch": 1, "batch": 1, "sample": 8, "token": 100}
    when = {f"tracekit.{name}": value for name, value in values.items()}
    assert dict(span.attributes) == {**when, "tracekit.categories": ("model", "x")}
    (event,) = span.events
    assert (event.name, dict(event.attributes)) == ("now", {**when, "tracekit.categories": ("y",)})
    assert span.start_time <= event.timestamp <= span.end_time
    # In decimals: a double of microseconds holds each time, but not the sum of two.
    events = json.loads((tmp_path / "t3.json").read_text("utf-8"), parse_float=Decimal)
    base_ns = events[0]["args"]["baseTimeNanoseconds"]
    told = [event for event in events if event["name"] == "a"]
    assert "".join(event["ph"] for event in told) in {"X", "BE"}  # two, if it was open when the writer looked
    start_us, end_us = told[0]["ts"], told[-1]["ts"] + told[-1].get("dur", 0)
    assert (span.start_time, span.end_time) == (base_ns + start_us * 1000, base_ns + end_us * 1000)


def test_exception_is_the_status_of_its_span_without_its_text_and_an_instant_alone_is_a_span(spans: Spans) -> None:
    with spans.profiler() as profiler:
        profiler.marker("now").instant()
        with pytest.raises(ValueError, match="secret"), profiler.marker("a"):
            raise ValueError("secret")
    now, span = spans.finished["now"], spans.finished["a"]
    assert now.start_time == now.end_time
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "ValueError")
    (event,) = span.events
    assert (event.name, dict(event.attributes)) == ("exception", {"exception.type": "ValueError"})


def test_each_thread_and_each_task_has_its_own_parents(spans: Spans) -> None:
    async def work(profiler: Profiler, name: str) -> None:
        async with profiler.marker(f"{name} outer"):
            await asyncio.sleep(0)
            with profiler.marker(f"{name} inner"):
                await asyncio.sleep(0)

    async def both(profiler: Profiler) -> None:
        with profiler.marker("all"):
            await asyncio.gather(work(profiler, "one"), work(profiler, "two"))

    with spans.profiler() as profiler:
        asyncio.run(both(profiler))
        with profiler.marker("main"):
            thread = threading.Thread(target=profiler.marker("thread")(int))
            thread.start()
            thread.join()
    assert profiler.stats.failures == {}
    assert spans.parents() == {
        "all": None,
        "main": None,
        "thread": None,
        "one outer": "all",
        "two outer": "all",
        "one inner": "one outer",
        "two inner": "two outer",
    }


def test_slices_that_end_crosswise_leave_no_span_behind(spans: Spans) -> None:
    with spans.profiler() as profiler:
        a, b = profiler.marker("a"), profiler.marker("b")
        with spans.tracer.start_as_current_span("job"):
            a.start()
            b.start()
            a.finish()
            with profiler.marker("in b"):
                pass
            b.finish()
            with profiler.marker("after"):
                pass
    assert spans.parents() == {"job": None, "a": "job", "b": "a", "in b": "b", "after": "job"}


def test_slice_that_ends_in_another_task_is_ended_without_a_complaint(
    spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    async def numbers(profiler: Profiler) -> Any:
        with profiler.marker("generator"):
            yield 1
            yield 2

    async def main(profiler: Profiler) -> None:
        generator = numbers(profiler)
        await asyncio.create_task(anext(generator))
        await asyncio.create_task(generator.aclose())

    with spans.profiler() as profiler:
        asyncio.run(main(profiler))
    assert list(spans.finished) == ["generator"]
    assert profiler.stats.failures == {}
    assert caplog.text == ""


def test_spans_that_are_open_when_the_profiler_stops_are_ended_and_say_so(spans: Spans) -> None:
    clock = FakeClock()
    profiler = spans.profiler(clock=clock.clock)
    profiler.start()
    with profiler.marker("outer"), profiler.marker("inner"):
        clock.advance(5_000)
        profiler.stop()
        assert {span.end_time - span.start_time for span in spans.finished.values()} == {5_000}
        unfinished = {name: span.attributes["tracekit.unfinished"] for name, span in spans.finished.items()}
        assert unfinished == {"outer": True, "inner": True}
        with spans.tracer.start_as_current_span("after"):
            pass
    assert spans.parents() == {"outer": None, "inner": "outer", "after": None}


def test_without_an_sdk_nothing_happens_and_nothing_fails() -> None:
    pytest.importorskip("opentelemetry", reason="opentelemetry-api is not installed")
    with Profiler([OpenTelemetryMirror()], rank=0) as profiler, profiler.marker("a"):
        profiler.marker("now").instant()
    assert profiler.stats.failures == {}


def test_example_is_in_torchs_trace_and_in_tracekits(torch: Any, tmp_path: Path, engine: Engine) -> None:
    for package in ("nvtx", "opentelemetry"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    source = (ROOT / "examples" / "mirrors.py").read_text("utf-8")
    assert len(source.splitlines()) <= 30
    folder = tmp_path / run_script(tmp_path, "-c", source).stdout.strip().rpartition(" ")[2]
    merge_traces(str(tmp_path / "merged.json"), [str(folder)])
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        counts = dict(trace.rows("select name, count(*) from slice where name like '%ward' group by name"))
    assert counts == {"forward": 3 + 2, "backward": 3 + 2}, "three with the warm-up, and torch's two"


class TestNVTXMirror(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        pytest.importorskip("nvtx", reason="nvtx is not installed")
        return NVTXMirror()


class TestOpenTelemetryMirror(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
        return OpenTelemetryMirror(Spans().provider)


class TestRecordFunctionMirror(TraceHandlerContract):
    def make_handler(self, tmp_path: Path) -> TraceHandler:
        pytest.importorskip("torch", reason="torch is not installed")
        return RecordFunctionMirror()
