"""Minimal traces: a bad one for each rule, with what Perfetto's engine (v52) does with it, and good ones.

Used by the unit tests, which hold the rules to them, and by the golden tests, which hold Perfetto to them.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from math import nan
from typing import Any, Literal

ARCHIVE_RULES = {"archive", "archive-member", "manifest"}
"""Rules about archives, whose bad ones are in ``tests/unit/check/test_validation_archive.py``."""

Effect = Literal["hangs", "crashes", "refuses", "drops", "misleads", "none"]
"""``drops``: something is lost, with or without a stat; ``misleads``: all is loaded and shown wrongly; ``none``: this version of
the engine takes it, others or other readers do not."""


@dataclass(frozen=True)
class BadTrace:
    """A file that breaks one rule once.

    Attributes:
        name: Short name of the fault.
        rule: The rule it breaks.
        data: The file.
        event: Number of the event that breaks it, None when the file does.
        effect: Reaction of the engine.
        stat: The engine's stat that is not zero.
        slices: Number of slices in the engine.
        flows: Number of flows in the engine.
    """

    name: str
    rule: str
    data: bytes
    event: int | None = 2
    effect: Effect = "drops"
    stat: str | None = None
    slices: int | None = None
    flows: int | None = None


def event(**fields: Any) -> bytes:
    """Return an event as JSON, on pid 1 and tid 1 unless given."""
    fields = {"pid": 1, "tid": 1, **fields}
    return json.dumps({key: value for key, value in fields.items() if value is not ...}).encode()


def slice_(ts: Any, dur: Any, name: Any = "x", **more: Any) -> bytes:
    """Return a slice."""
    return event(**{"ph": "X", "ts": ts, "dur": dur, "name": name, **more})


def metadata(kind: str, /, **args: Any) -> bytes:
    """Return an event that describes a process, a thread or a trace."""
    return event(ph="M", name=kind, args=args)


def together(*events: bytes) -> bytes:
    return b",\n".join(events)


def array(*events: bytes) -> bytes:
    """Return a trace in the array form."""
    return b"[\n" + together(*events) + b"\n]\n"


def object_(*events: bytes) -> bytes:
    """Return a trace in the object form."""
    return b'{"traceEvents":' + array(*events) + b"}"


FIRST = slice_(1, 1, "first")
LAST = slice_(100_000, 1, "last")


def between(*events: bytes) -> bytes:
    """Return a trace with a good slice before and after the events, so that a loss of either shows."""
    return array(FIRST, *events, LAST)


def counter(values: str) -> bytes:
    return b'{"ph":"C","pid":1,"tid":1,"ts":5,"name":"loss","args":%s}' % values.encode()


def flow(phase: str, ts: int, **more: Any) -> bytes:
    return event(**{"ph": phase, "ts": ts, "name": "arrow", "cat": "c", "id": 7, **more})


def begin(ts: float, name: Any = "b", **more: Any) -> bytes:
    return event(ph="B", ts=ts, name=name, **more)


def end(ts: float, name: Any = "b", **more: Any) -> bytes:
    return event(ph="E", ts=ts, name=name, **more)


def raw_slice(rest: str) -> bytes:
    return b'{"ph":"X","pid":1,"tid":1,"ts":5,"dur":1,%s}' % rest.encode()


def nested(levels: int) -> bytes:
    return raw_slice('"name":"x","args":{"a":' + "[" * levels + "1" + "]" * levels + "}")


def bad_event(name: str, rule: str, events: bytes, at: int = 2, effect: Effect = "drops", **seen: Any) -> BadTrace:
    """Return a trace with bad events between good ones; number ``at`` breaks the rule."""
    return BadTrace(name, rule, between(events), at, effect, **seen)


def headed(keys: int) -> bytes:
    head = ",".join(f'"key{number}":1' for number in range(keys))
    return b"{" + head.encode() + b',"traceEvents":' + array(FIRST, LAST) + b"}"


TOKENIZER, PARSER = "json_tokenizer_failure", "json_parser_failure"
MISPLACED: dict[str, Any] = {"effect": "misleads", "stat": "misplaced_end_event", "slices": 4}
TWICE: dict[str, Any] = {"effect": "misleads", "stat": "flow_duplicate_id"}

BAD_TRACES = [
    # The file.
    BadTrace("byte order mark", "perfetto-unknown-type", b"\xef\xbb\xbf" + between(), None, "refuses"),
    BadTrace("empty array", "perfetto-unknown-type", b"[]", None, "refuses"),
    BadTrace("only a bracket", "perfetto-unknown-type", b"[", None, "refuses"),
    BadTrace("empty file", "perfetto-unknown-type", b"", None, slices=0),
    BadTrace("white space only", "perfetto-unknown-type", b" \n \n", None, slices=0),
    BadTrace("array of numbers", "perfetto-unknown-type", b"[1, 2]", None, "refuses"),
    BadTrace("one event a line", "perfetto-no-events", FIRST + b"\n" + LAST + b"\n", None, slices=0),
    BadTrace("no traceEvents", "perfetto-no-events", b'{"events":[]}', None, slices=0),
    BadTrace("traceEvents is no list", "perfetto-no-events", b'{"traceEvents":{"a":1}}', None, "refuses"),
    BadTrace("object not closed", "perfetto-cut-file", object_(FIRST, LAST)[:-3], None, "refuses"),
    BadTrace("object cut in an event", "perfetto-cut-file", object_(FIRST, LAST)[:-20], None, "refuses"),
    BadTrace("gzip cut", "perfetto-cut-file", gzip.compress(between(), mtime=0)[:-9], None, "refuses"),
    BadTrace("array not closed", "unfinished", between()[:-3], None, "none", slices=2),
    BadTrace("array cut in an event", "unfinished", between()[:-20], None, slices=1),
    BadTrace("two objects", "perfetto-data-after-end", object_(FIRST) + object_(LAST), None, slices=1),
    BadTrace("two arrays", "perfetto-data-after-end", array(FIRST) + array(LAST), None, slices=1),
    bad_event("quotes in a name", "perfetto-invalid-json", raw_slice('"name":"say "hi" now"'), effect="refuses"),
    bad_event("bare word", "perfetto-invalid-json", raw_slice('"name":ncclFloat'), effect="refuses"),
    bad_event("NUL between events", "perfetto-invalid-json", b"\0\0\0" + slice_(5, 1), effect="refuses"),
    bad_event("torn event in the middle", "perfetto-invalid-json", slice_(5, 1)[:30], effect="refuses"),
    bad_event("NaN in a counter", "perfetto-nan", counter('{"loss":NaN}'), effect="hangs"),
    bad_event("Infinity in a counter", "perfetto-nan", counter('{"loss":-Infinity}'), effect="hangs"),
    bad_event("1e400 in a counter", "perfetto-nan", counter('{"loss":1e400}'), effect="hangs"),
    bad_event("NaN in metadata", "perfetto-nan", metadata("process_name", name=nan), effect="hangs"),
    bad_event("NaN in the args of a slice", "perfetto-nan", raw_slice('"name":"x","args":{"a":NaN,"b":1}'), slices=3),
    BadTrace("NaN in the header", "perfetto-nan", b'{"lr":NaN,"traceEvents":' + between() + b"}", None, "refuses"),
    bad_event("surrogates in a name", "perfetto-surrogate-escape", slice_(5, 1, 'q"\U0001f600'), effect="refuses"),
    bad_event(
        "surrogates in a process name",
        "perfetto-surrogate-escape",
        metadata("process_name", name='q"\U0001f600'),
        effect="hangs",
    ),
    bad_event("half a surrogate", "perfetto-surrogate-escape", slice_(5, 1, 'q"\ud83d'), effect="refuses"),
    bad_event("backslash at the end of a name", "perfetto-final-backslash", slice_(5, 1, "C:\\"), effect="refuses"),
    bad_event(
        "backslash at the end of an argument", "perfetto-final-backslash", slice_(5, 1, args={"path": "C:\\"}), slices=1
    ),
    bad_event("invalid UTF-8", "invalid-utf8", slice_(5, 1, "caf@").replace(b"@", b"\xe9"), effect="none", slices=3),
    bad_event("tab in a name", "control-character", slice_(5, 1, "a@b").replace(b"@", b"\t"), effect="none", slices=3),
    BadTrace("no comma between events", "misplaced-comma", array(FIRST + b"\n" + LAST), effect="none", slices=2),
    BadTrace("700 keys", "perfetto-header-keys", headed(700), None, "crashes"),
    # One event.
    bad_event("empty event", "perfetto-phase", b"{}", stat=TOKENIZER, slices=2),
    bad_event("no ph", "perfetto-phase", slice_(5, 1, ph=...), stat=TOKENIZER, slices=2),
    bad_event("unknown ph", "perfetto-phase", slice_(5, 1, ph="Q"), slices=2),
    bad_event("no ts", "perfetto-time", slice_(..., 1), stat=TOKENIZER, slices=2),
    bad_event("ts is null", "perfetto-time", slice_(None, 1), stat=TOKENIZER, slices=1),
    bad_event("ts is a word", "perfetto-time", slice_("abc", 1), stat=TOKENIZER, slices=1),
    bad_event("ts begins with a space", "perfetto-time", slice_(" 5", 1), stat=TOKENIZER, slices=1),
    bad_event("ts of metadata is null", "perfetto-time", event(ph="M", ts=None, name="n", args={}), slices=1),
    bad_event("no dur", "perfetto-duration", slice_(5, ...), stat=PARSER, slices=2),
    bad_event("dur is null", "perfetto-duration", slice_(5, None), stat=TOKENIZER, slices=1),
    bad_event("dur is a word", "perfetto-duration", slice_(5, "abc"), stat=TOKENIZER, slices=1),
    bad_event(
        "ts before 0", "perfetto-negative-time", slice_(-5, 1), stat="trace_sorter_negative_timestamp_dropped", slices=2
    ),
    bad_event("dur below 0", "perfetto-negative-duration", slice_(50, -5), effect="misleads", slices=3),
    bad_event("epoch with decimals", "perfetto-inexact-time", slice_(1694128201545123.001, 1), effect="misleads", slices=3),
    bad_event("pid below 0", "perfetto-process-id", slice_(5, 1, pid=-1), effect="misleads", slices=3),
    bad_event("tid beyond 32 bits", "perfetto-process-id", slice_(5, 1, tid=2**32), effect="misleads", slices=3),
    bad_event("pid is a fraction", "perfetto-process-id", slice_(5, 1, pid=1.5), effect="misleads", slices=3),
    bad_event("pid is a list", "perfetto-process-id", slice_(5, 1, pid=[1]), effect="misleads", slices=3),
    bad_event("counter is true", "perfetto-counter-value", counter('{"a":true}'), stat=PARSER),
    bad_event("counter is null", "perfetto-counter-value", counter('{"a":null}'), stat=PARSER),
    bad_event("counter is a list", "perfetto-counter-value", counter('{"a":[1]}'), stat=PARSER),
    bad_event("counter is a word", "perfetto-counter-value", counter('{"a":"x"}'), stat=PARSER),
    bad_event("counter without object", "perfetto-counter-value", counter("5"), stat=PARSER),
    bad_event("flow without id", "perfetto-flow-id", flow("s", 5, id=...), stat="flow_invalid_id"),
    bad_event("flow id is a fraction", "perfetto-flow-id", flow("s", 5, id=1.5), stat="flow_invalid_id"),
    bad_event("flow id beyond 64 bits", "perfetto-flow-id", flow("s", 5, id=2**63), stat="flow_invalid_id"),
    bad_event("flow id is a word", "perfetto-flow-id", flow("s", 5, id="zz"), stat="flow_invalid_id"),
    bad_event("async without id", "perfetto-async-id", flow("b", 5, id=...), stat=PARSER, slices=2),
    bad_event("async without pid", "perfetto-async-id", flow("b", 5, pid=...), stat=PARSER, slices=2),
    bad_event("async id is a fraction", "perfetto-async-id", flow("b", 5, id=1.5), stat=PARSER, slices=2),
    bad_event("name of a process is a number", "perfetto-metadata-name", metadata("process_name", name=5), stat=PARSER),
    bad_event("sort index is a word", "perfetto-sort-index", metadata("process_sort_index", sort_index="1"), effect="none"),
    BadTrace(
        "events in two arrays",
        "duplicate-events",
        object_(FIRST)[:-1] + b"," + object_(LAST)[1:],
        None,
        "none",
        slices=2,
    ),
    bad_event("args 100 deep", "perfetto-args-nesting", nested(100), effect="none", slices=3),
    # Several events.
    bad_event(
        "slice sticks out",
        "perfetto-overlap",
        together(slice_(10, 10), slice_(15, 5.001)),
        at=3,
        stat="slice_drop_overlapping_complete_event",
        slices=3,
    ),
    bad_event(
        "slice sticks out of a B",
        "perfetto-overlap-open",
        together(begin(10), slice_(15, 10), end(20)),
        at=3,
        effect="misleads",
        slices=4,
    ),
    bad_event(
        "B sticks out of a slice",
        "perfetto-overlap-open",
        together(slice_(10, 10), begin(15), end(25)),
        at=3,
        **MISPLACED,
    ),
    bad_event(
        "slice in a B that begins with it",
        "perfetto-overlap-open",
        together(begin(10), slice_(10, 10), end(25)),
        **MISPLACED,
    ),
    bad_event("E alone", "perfetto-end-without-begin", end(10), slices=2),
    bad_event(
        "E of the outer slice first",
        "perfetto-misplaced-end",
        together(begin(10, "a"), begin(11, "b"), end(12, "a"), end(13, "b")),
        at=4,
        **MISPLACED,
    ),
    bad_event("B alone", "unclosed-begin", begin(10), effect="misleads", slices=3),
    bad_event(
        "600 deep",
        "perfetto-depth",
        together(*[slice_(10 + n, 5000 - 2 * n) for n in range(600)]),
        at=514,
        effect="misleads",
        slices=602,
    ),
    BadTrace(
        "one flow in two processes",
        "perfetto-flow-duplicate",
        array(slice_(1, 99), slice_(1, 9, pid=2), flow("s", 5), flow("s", 6, pid=2), flow("f", 61, bp="e")),
        4,
        flows=1,
        **TWICE,
    ),
    bad_event(
        "flow id used again",
        "perfetto-flow-duplicate",
        together(slice_(4, 8), flow("s", 5), flow("f", 6, bp="e"), flow("s", 7), flow("f", 8, bp="e")),
        at=5,
        flows=2,
        **TWICE,
    ),
]  # fmt: skip
"""Everything but the rules that only traces by tracekit can break."""


METADATA = {
    "format_version": 1, "tracekit_version": "0.1.0", "run_id": "run", "rank": 0, "local_rank": 0, "world_size": 2, "node": 0,
    "host": "host", "pid": 1, "attempt": 0, "rank_source": "torchrun", "boot_id": None,
    "baseTimeNanoseconds": 1790857026000000000,
    "clock": {"wall_ns": 1795217077496886033, "monotonic_ns": 5, "error_ns": 100},
}  # fmt: skip
"""Good rank metadata."""


def rank_trace(*events: bytes, **own: Any) -> bytes:
    """Return a rank trace as tracekit writes it, with changes to its metadata."""
    args = {key: value for key, value in {**METADATA, **own}.items() if value is not ...}
    return array(metadata("tracekit_metadata", **args), *events)


def merged_trace(*events: bytes, **own: Any) -> bytes:
    """Return a merged trace as tracekit writes it; ``own`` is said of it in its head."""
    own_text = json.dumps({"version": "0.1.0", **own}).encode()
    return b'{"tracekit":' + own_text + b',"traceEvents":' + array(*events) + b"}"


BAD_OWN_TRACES = [
    BadTrace("text pid", "text-process-id", rank_trace(slice_(1, 1, pid="Spans"))),
    BadTrace("plain async id", "perfetto-global-async", merged_trace(FIRST, flow("b", 5))),
    BadTrace("global instant", "perfetto-global-instant", merged_trace(FIRST, event(ph="i", ts=5, s="g", name="x"))),
    BadTrace(
        "no metadata",
        "metadata-missing",
        array(metadata("tracekit_summary", slices=0, instants=0, counters=0, dropped={})),
        None,
    ),
    BadTrace("two processes in one file", "metadata-duplicate", rank_trace(metadata("tracekit_metadata", **METADATA))),
    BadTrace("rank below 0", "schema", rank_trace(LAST, rank=-1), 1),
    BadTrace("no run", "schema", rank_trace(LAST, run_id=...), 1),
    BadTrace("future format", "schema", rank_trace(LAST, format_version=2), 1),
    BadTrace("slice without name", "schema", rank_trace(slice_(5, 1, name=...))),
    BadTrace("args is a list", "schema", rank_trace(slice_(5, 1, args=[1]))),
    BadTrace("counter as text", "schema", rank_trace(counter('{"a":"1"}'))),
    BadTrace("counter without series", "schema", rank_trace(counter("{}"))),
    BadTrace("flow without category", "schema", merged_trace(FIRST, flow("s", 5, cat=...))),
    BadTrace(
        "flow that an input starts twice",
        "input-flow-duplicate",
        merged_trace(FIRST, flow("s", 5), flow("f", 6, bp="e"), flow("s", 7), processes=[{"pid": 1, "rank": 0}]),
        4,
    ),
    BadTrace(
        "metadata that no tracekit wrote in a merge",
        "input-metadata",
        merged_trace(FIRST, metadata("tracekit_loss", lost_events="x")),
    ),
    BadTrace("phase of old", "schema", rank_trace(event(ph="I", ts=5, name="x"))),
    BadTrace("ts as text", "schema", rank_trace(slice_("5", 1))),
    BadTrace("anchor without error", "schema", rank_trace(metadata("tracekit_clock_anchor", wall_ns=1, monotonic_ns=2))),
    BadTrace("step as text", "schema", rank_trace(metadata("tracekit_clock_step", step_ns="1", monotonic_ns=2))),
    BadTrace("companion without file", "schema", rank_trace(metadata("tracekit_companion", file=""))),
    BadTrace(
        "lost events below 0",
        "schema",
        rank_trace(metadata("tracekit_summary", slices=1, instants=0, counters=0, dropped={"full": -1})),
    ),
]  # fmt: skip
"""For the rules, and the parts of the schema, that only hold for tracekit's own files."""


GOOD_TRACES = {
    "array": between(),
    "object": object_(FIRST, LAST),
    "comma after the last event": array(FIRST, LAST)[:-2] + b",]",
    "white space before": b"  \n [ \n " + array(FIRST)[2:],
    "gzip of two members": gzip.compress(array(FIRST)[:-2]) + gzip.compress(b"]"),
    "unpaired flows": between(flow("f", 5), flow("s", 6, id=8), flow("f", 7, id=9), flow("f", 8, id=9)),
    "text pids of torch": between(slice_(5, 1, pid="Spans", tid="PyTorch Profiler"), slice_(5, 1, pid="Traces")),
    "global instant of torch": between(event(ph="i", ts=5, s="g", name="Record Window End")),
    "text times and slices of no duration": between(slice_("5", "1.5"), slice_(8, 0), slice_(8.5, 0)),
    "whole epoch microseconds": between(slice_(1694128201545123, 1)),
    "slices that touch and nest": between(slice_(10, 10), slice_(10, 10), slice_(10, 5), slice_(15, 5), slice_(20, 1)),
    "an E without a name": between(begin(10), begin(11, "c"), end(12, ""), end(13, "b", cat="")),
    "a slice that begins with its B and ends with it": between(begin(10), slice_(10, 10), end(20)),
    "begin and end": between(begin(10), begin(11, "c"), end(12, ...), end(13), begin(13), end(14)),
    "escaped backslash before ud83d": between(slice_(5, 1, "caf\u00e9 \\ud83d")),
    "metadata": between(metadata("process_name", name="python"), metadata("whatever")),
}
"""By others than tracekit, odd, and shown right."""
