"""Read one trace, and apply the rules, and the event schema to each shape of event once.

Millions of events have a handful of shapes, and a JSON Schema takes a tenth of a millisecond for each event.
"""

from __future__ import annotations

import re
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_path
from tracekit.check.schemas import TRACE_EVENT, compile_schema
from tracekit.check.validation.events import EventChecks
from tracekit.check.validation.report import Findings
from tracekit.errors import ConfigError, MissingExtraError, TraceFormatError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.merged_head import MERGED_KEY, merged_ranks
from tracekit.formats.rank_trace import METADATA_EVENT
from tracekit.formats.trace_event import UNSET, Raw, decode_json, encode_json, raw_field
from tracekit.formats.trace_stream import FOREIGN_FORMS, form_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.arguments import StrPath
    from tracekit.check.validation.report import Kind, ValidationReport
    from tracekit.formats.byte_stream import TraceStream
    from tracekit.formats.json.window import Finding as Damage
    from tracekit.formats.trace_event import Event

MAX_HEADER_KEYS: Final = 256

# As Perfetto's trace_type.cc decides, white space left out.
_JSON_TRACE: Final = re.compile(rb'\s*(?:\{\s*"|\[\s*\{\s*")')
_JSON: Final = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*[\[{]|\s*\Z")
_OWN_PHASES: Final = frozenset("XBEiCMstfben")  # phases that tracekit writes itself: those of the schema
_OWN_METADATA: Final = b'"tracekit_'

# The rule that each damage found by the reader breaks, and the message.
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
    "not_an_event": ("perfetto-invalid-json", "what stands between the events is not an event; it begins"),
    "unreadable_header": ("perfetto-invalid-json", "the keys beside traceEvents cannot be read"),
    "data_after_end": ("perfetto-data-after-end", "there is data after the end of the document; remove it"),
}
_HEXADECIMAL: Final = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}")
_PLAIN: Final = frozenset("XBEi")
_FIRST_LETTER: Final = bytes(ord("0") if letter in b"0123456789" else letter for letter in range(256))
_UINT32_MAX: Final = 2**32 - 1
_WORDS: Final = frozenset({"ph", "s", "bp"})


def validate_trace(path: StrPath, *, schema: bool = True) -> ValidationReport:
    """Check a trace against the rules of `tracekit.check.validation.report` and, where tracekit wrote it, the schemas.

    The file is read once as a stream; memory grows by 24 bytes a slice (they must be sorted to see whether they nest).

    Args:
        path: File or URL, plain or gzip.
        schema: Apply the schemas to files that tracekit wrote. Without jsonschema they are left out, and the report
            says so.

    Raises:
        ConfigError: ``path`` is empty.
        StorageError: The file is not there or cannot be read.
        TraceFormatError: It is not JSON.
    """
    path = check_path("path", path)
    if not path:
        raise ConfigError("the path of the trace is empty; give the name of a file")
    with ByteStream(path) as stream:
        return validate_stream(stream, stream.peek(), schema=schema)


def validate_stream(stream: TraceStream, head: bytes, *, schema: bool) -> ValidationReport:
    """Check a trace that begins with ``head``; see `validate_trace`."""
    findings = Findings()
    if not _check_head(stream, head, findings):
        return findings.report(stream.path)
    try:
        reader = TraceReader(stream.path, stream=stream)
    except TraceFormatError as error:
        reason = error.reason.removeprefix("this is not a trace: ")
        findings.add("perfetto-no-events", None, f'{reason}; write {{"traceEvents":[...]}} or an array of events')
        return findings.report(stream.path)
    return _check_trace(reader, findings, _SchemaCheck(wanted=schema))


def _check_head(stream: TraceStream, head: bytes, findings: Findings) -> bool:
    """Check the first bytes; return True if Perfetto takes the file for a trace."""
    form, file = form_of(head), stream.path
    if form in FOREIGN_FORMS:
        advice = f"tracekit convert {file} OUTPUT.json makes JSON of it"
        raise TraceFormatError(file, f"this is {FOREIGN_FORMS[form]}, and validate checks JSON; {advice}")
    if not _JSON.match(head):
        raise TraceFormatError(file, "this is not JSON; validate reads traces in Chrome's Trace Event Format")
    if form == "JSON lines":
        reason = "JSON lines, of which Perfetto shows nothing; tracekit convert makes an array of them"
        findings.add("perfetto-no-events", None, reason)
        return False
    if stream.packing == "zstd":
        findings.add("perfetto-unknown-type", None, "zstd, which Perfetto does not unpack; use gzip")
    if stream.damage and not head:
        findings.add("perfetto-cut-file", None, f"{stream.damage}; tracekit recover saves what can be read")
        return False
    is_trace = _JSON_TRACE.match(head) is not None or head.lstrip().startswith(b"\xef\xbb\xbf")
    if not is_trace:
        begins = "it is empty" if not head else 'it does not begin with {" or [{"'
        findings.add("perfetto-unknown-type", None, f"{begins}, so that Perfetto does not take it for a trace")
    return is_trace


def _check_trace(reader: TraceReader, findings: Findings, schema: _SchemaCheck) -> ValidationReport:
    merged = MERGED_KEY in reader.header
    checks = EventChecks(findings, merged_ranks(reader.header) or {})
    number = 0
    for number, event in enumerate(chain.from_iterable(reader.runs()), 1):
        before = findings.total
        checks.check(number, event)
        if schema.not_checked or not (checks.by_tracekit or merged):
            continue
        if merged and event.ph not in _OWN_PHASES:
            continue  # kept as the input has it
        wrong = schema.wrong(event)
        # A rule says it better than the schema.
        if wrong and findings.total == before:
            of_input = merged and event.ph == "M" and raw_field(event.name).startswith(_OWN_METADATA)
            findings.add("input-metadata" if of_input else "schema", number, wrong)
    checks.finish()
    kind: Kind = "merged" if MERGED_KEY in reader.header else "rank" if checks.by_tracekit else "other"
    _add_damages(reader, findings)
    if len(reader.header) > MAX_HEADER_KEYS:
        message = f"{len(reader.header)} keys stand beside traceEvents; write at most {MAX_HEADER_KEYS}"
        findings.add("perfetto-header-keys", None, message)
    if kind == "rank" and not checks.metadata:
        message = "there is no event tracekit_metadata; was the head of the file cut off?"
        findings.add("metadata-missing", None, message)
    for repeated in checks.metadata[1:] if kind == "rank" else []:
        message = f"tracekit_metadata stands in event {checks.metadata[0]} already; give each process a file of its own"
        findings.add("metadata-duplicate", repeated, message)
    return findings.report(
        reader.path, kind, reader.form, number, not_checked=None if kind == "other" else schema.not_checked
    )


def _add_damages(reader: TraceReader, findings: Findings) -> None:
    torn = {damage.kind for damage in reader.drops} & {"broken_event", "not_an_event"}
    for damage in [*reader.repairs, *reader.drops]:
        if damage.kind == "trailing_comma" and "last event" in damage.detail:
            continue  # every reader takes it, and a live file has one
        if damage.kind == "missing_comma" and torn:
            continue  # a torn event has lost its comma too
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
    if reader.form == "array" and "gzip" not in damage.detail:
        rule, message = "unfinished", "the array has no closing bracket; is its process still running?"
        if damage.kind == "cut_event":
            message = "the last event is torn"
    elif damage.kind == "cut_file":
        rule, message = "perfetto-cut-file", f"{damage.detail}; tracekit merge reads what is left of it"
    else:
        return
    findings.add(rule, None, message, offset_bytes=damage.offset_bytes)


def shape(value: Any, key: str = "") -> Any:
    """Return the types, the ranges of numbers and the few words that the event schema looks at, of the value of a key."""
    if isinstance(value, str):
        if key in _WORDS:
            return value
        return "" if not value else "hexadecimal" if key == "id" and _HEXADECIMAL.fullmatch(value) else "text"
    if isinstance(value, (bool, type(None))):
        return value
    if isinstance(value, (int, float)):
        # 1.0 is an integer to JSON Schema.
        whole = isinstance(value, int) or value.is_integer()
        return whole, value < -(2**63), value < 0, value == 0, value == 1, value < 2**32, value < 2**63
    if isinstance(value, dict):
        # "name" says which metadata event it is, and so which schema its args have.
        of_metadata = value.get("ph") == "M"
        return tuple(
            (inner, item if of_metadata and inner == "name" and isinstance(item, str) else shape(item, inner))
            for inner, item in value.items()
        )
    return ("list", *(shape(item) for item in value))


class _SchemaCheck:
    """Checks events against the event schema."""

    def __init__(self, *, wanted: bool) -> None:
        self.not_checked = None if wanted else "the schemas were not asked for"  # why not, or None
        self._validate: Callable[[Any], str | None] | None = None
        self._verdicts: dict[Any, str | None] = {}

    def wrong(self, event: Event) -> str | None:
        """Return what is wrong with an event, or None."""
        key = _plain_shape(event)
        if key is not None and key in self._verdicts:
            return self._verdicts[key]
        if self._validate is None:
            try:
                self._validate = compile_schema(TRACE_EVENT)
            except MissingExtraError as error:
                self.not_checked = str(error)
                return None
        try:
            value = _decoded(event)
        except ValueError:
            return None  # a number beyond the range of a double breaks another rule
        if value.get("name") == METADATA_EVENT:  # the schema looks at its values, and there are few
            return self._validate(value)
        if key is None:
            key = shape(value)
        if key not in self._verdicts:
            self._verdicts[key] = self._validate(value)
        return self._verdicts[key]


def _decoded(event: Event) -> dict[str, Any]:
    """Return the event as the schema sees it: args only where the schema looks into them."""
    if event.args is not UNSET and event.ph not in ("C", "M") and memoryview(event.args)[0] == ord("{"):
        event = copy(event)
        event.args = Raw(b"{}")
    value: dict[str, Any] = decode_json(encode_json(event))
    return value


def _plain_shape(event: Event) -> tuple[Any, ...] | None:
    """Return `shape` of the most usual events at a tenth of its cost, or None: the first letter of a JSON text is its type."""
    pid, tid = event.pid, event.tid
    if event.ph not in _PLAIN or type(pid) is not int or (type(tid) is not int and tid is not UNSET):
        return None
    texts = (event.name, event.cat, event.ts, event.dur, event.args)
    return (
        event.ph,
        0 <= pid <= _UINT32_MAX,
        tid is UNSET or 0 <= tid <= _UINT32_MAX,
        tid is UNSET,
        *[None if text is UNSET else _FIRST_LETTER[memoryview(text)[0]] for text in texts],
        None if event.s is UNSET else bytes(event.s),
    )
