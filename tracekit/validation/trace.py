"""Reads one trace and brings all rules together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracekit.arguments import check_path
from tracekit.errors import ConfigError, MissingExtraError, TraceFormatError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.event_fields import raw_field
from tracekit.formats.merged_head import MERGED_KEY, merged_ranks
from tracekit.formats.schema import TRACE_EVENT, compile_schema
from tracekit.formats.trace_reader import TraceReader
from tracekit.formats.trace_stream import foreign_form
from tracekit.validation.events import EventChecks, schema_check
from tracekit.validation.flows import Flows
from tracekit.validation.report import Findings, ValidationReport
from tracekit.validation.tracks import Tracks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.arguments import StrPath
    from tracekit.formats.trace_event import Event
    from tracekit.formats.trace_reader import Finding as Damage
    from tracekit.validation.rules import Kind

__all__ = ["validate_trace"]

MAX_HEADER_KEYS: Final = 256

# As Perfetto's trace_type.cc decides, white space left out.
_JSON_TRACE: Final = re.compile(rb'\s*(?:\{\s*"|\[\s*\{\s*")')
_JSON: Final = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*[\[{]|\s*\Z")
_OWN_PHASES: Final = frozenset("XBEiCMstfben")
"""Phases that tracekit writes itself: those of the schema."""
_OWN_METADATA: Final = b'"tracekit_'

# What the reader repairs or passes over, and which rule that breaks.
_DAMAGES: Final = {
    "byte_order_mark": ("perfetto-unknown-type", "the file begins with a UTF-8 byte order mark; remove it"),
    "invalid_utf8": ("invalid-utf8", "the file is not valid UTF-8; encode text as UTF-8"),
    "surrogate_escape": (
        "perfetto-surrogate-escape",
        "a character is written as two \\u escapes; write it as UTF-8 (json.dumps: ensure_ascii=False)",
    ),
    "lone_surrogate": (
        "perfetto-surrogate-escape",
        "half of a surrogate pair is written as a \\u escape; replace it with \\ufffd",
    ),
    "unescaped_quote": ("perfetto-invalid-json", 'a quote inside a text is not escaped; write \\"'),
    "bad_escape": ("perfetto-invalid-json", "a backslash begins no escape of JSON; write \\\\"),
    "bare_word": ("perfetto-invalid-json", "a word stands without quotes"),
    "control_character": ("control-character", "a raw control character stands in a text; write it as \\u00XX"),
    "not_finite": ("perfetto-nan", "NaN or Infinity; leave the value out, or write it as a text"),
    "second_events": ("duplicate-events", "traceEvents stands twice; write one array"),
    "missing_comma": ("misplaced-comma", "a comma is missing between two events"),
    "broken_event": ("perfetto-invalid-json", "an event cannot be read; it begins"),
    "not_an_event": ("perfetto-invalid-json", "what stands between the events is no event; it begins"),
    "unreadable_header": ("perfetto-invalid-json", "the keys beside traceEvents cannot be read"),
    "data_after_end": ("perfetto-data-after-end", "there is data after the end of the document; remove it"),
}


def validate_trace(path: StrPath, *, schema: bool = True) -> ValidationReport:
    """Check a trace against the rules of `tracekit.validation.rules` and, where tracekit wrote it, the schemas.

    The file is read once as a stream; memory grows by 24 bytes a slice (they must be sorted to see whether they nest).

    Args:
        path: File or URL, plain or gzip.
        schema: Whether to apply the schemas to files that tracekit wrote. Without jsonschema they are left out, and the
            report says so.

    Raises:
        ConfigError: ``path`` is empty.
        StorageError: The file is not there or cannot be read.
        TraceFormatError: It is no JSON, so there is nothing to validate.
    """
    path = check_path("path", path)
    if not path:
        raise ConfigError("the path of the trace is empty; give the name of a file")
    findings = Findings()
    with ByteStream(path) as stream:
        head = stream.read()
        while not head.strip() and (piece := stream.read()):
            head = piece
        file = stream.path
        foreign = foreign_form(head)
        if foreign:
            raise TraceFormatError(
                file,
                f"this is {foreign}, and validate checks JSON; tracekit convert {file} OUTPUT.json makes JSON of it",
            )
        if not _JSON.match(head):
            raise TraceFormatError(file, "this is no JSON; validate reads traces in Chrome's Trace Event Format")
        if stream.damage and not head:
            findings.add("perfetto-cut-file", None, f"{stream.damage}; tracekit recover saves what can be read")
            return _not_a_trace(file, findings)
    if not _JSON_TRACE.match(head) and not head.lstrip().startswith(b"\xef\xbb\xbf"):
        begins = "it is empty" if not head.strip() else 'it does not begin with {" or [{"'
        findings.add("perfetto-unknown-type", None, f"{begins}, so that Perfetto does not take it for a trace")
        return _not_a_trace(file, findings)
    try:
        reader = TraceReader(path)
    except TraceFormatError as error:
        reason = error.reason.removeprefix("this is no trace: ")
        findings.add("perfetto-no-events", None, f'{reason}; write {{"traceEvents":[...]}} or an array of events')
        return _not_a_trace(file, findings)
    with reader:
        return _validate(reader, findings, schema=schema)


def _validate(reader: TraceReader, findings: Findings, *, schema: bool) -> ValidationReport:
    tracks, flows = Tracks(findings), Flows(findings)
    checks = EventChecks(findings, tracks, flows)
    check_schema: Callable[[Event], str | None] | None = None
    not_checked = None if schema else "the schemas were not asked for"
    merged = _is_merged(reader)
    if merged:
        flows.rank_of = merged_ranks(reader.header)
    number = 0
    for run in reader.runs():
        for number, event in enumerate(run, number + 1):  # noqa: B020 - goes on counting
            before = findings.total
            checks.check(number, event)
            if check_schema is None:
                # The first event of a rank trace, or a key of a merged trace's head, says that tracekit wrote the file.
                if not_checked or not (checks.by_tracekit or _is_merged(reader)):
                    continue
                try:
                    check_schema = schema_check(compile_schema(TRACE_EVENT))
                except MissingExtraError as error:
                    not_checked = str(error)
                    continue
            if merged and event.ph not in _OWN_PHASES:
                continue  # kept as the input has it
            wrong = check_schema(event)
            # A rule says it better than the schema.
            if wrong and findings.total == before:
                of_input = merged and event.ph == "M" and raw_field(event.name).startswith(_OWN_METADATA)
                findings.add("input-metadata" if of_input else "schema", number, wrong)
    tracks.check()
    kind: Kind = "merged" if _is_merged(reader) else "rank" if checks.by_tracekit else "other"
    _add_damages(reader, findings)
    if len(reader.header) > MAX_HEADER_KEYS:
        findings.add(
            "perfetto-header-keys",
            None,
            f"{len(reader.header)} keys stand beside traceEvents; write at most {MAX_HEADER_KEYS}",
        )
    if kind == "rank":
        if not checks.metadata:
            findings.add(
                "metadata-missing", None, "there is no event tracekit_metadata; was the head of the file cut off?"
            )
        for repeated in checks.metadata[1:]:
            findings.add(
                "metadata-duplicate",
                repeated,
                f"tracekit_metadata stands in event {checks.metadata[0]} already; give each process a file of its own",
            )
    problems, counts = findings.close(reader.path, kind)
    return ValidationReport(
        file=reader.path,
        kind=kind,
        form=reader.form,
        events=number,
        problems=problems,
        counts=counts,
        not_checked=None if kind == "other" else not_checked,
    )


def _is_merged(reader: TraceReader) -> bool:
    return MERGED_KEY in reader.header


def _add_damages(reader: TraceReader, findings: Findings) -> None:
    torn = {damage.kind for damage in reader.drops} & {"broken_event", "not_an_event"}
    for damage in [*reader.repairs, *reader.drops]:
        if damage.kind == "trailing_comma" and "last event" in damage.detail:
            continue  # everybody takes it, and a live file has one
        if damage.kind == "missing_comma" and torn:
            continue  # where something was torn there is no comma either
        if damage.kind in ("cut_file", "cut_event"):
            _add_cut(reader, findings, damage)
            continue
        rule, message = _DAMAGES.get(damage.kind, ("misplaced-comma", damage.detail))
        if damage.kind == "unreadable_header" and damage.offset_bytes > reader.run_offset_bytes:
            rule, message = (
                "perfetto-data-after-end",
                "what follows the events cannot be read; is it a second document?",
            )
        if message.endswith("begins"):
            message = f"{message} {damage.detail!r}"
        findings.add(rule, damage.event, message, offset_bytes=damage.offset_bytes, count=damage.count)


def _add_cut(reader: TraceReader, findings: Findings, damage: Damage) -> None:
    at = damage.offset_bytes
    if reader.form == "object" or "gzip" in damage.detail:
        if damage.kind == "cut_file":
            message = f"{damage.detail}; tracekit merge reads what is left of it"
            findings.add("perfetto-cut-file", None, message, offset_bytes=at)
    else:
        torn = damage.kind == "cut_event"
        message = (
            "the last event is torn" if torn else "the array has no closing bracket; is its process still running?"
        )
        findings.add("unfinished", None, message, offset_bytes=at)


def _not_a_trace(file: str, findings: Findings) -> ValidationReport:
    problems, counts = findings.close(file, "other")
    return ValidationReport(file=file, kind="other", form="unknown", events=0, problems=problems, counts=counts)
