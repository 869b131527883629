r"""The rules: their names, their severity in each kind of file, and their sources; and the report on a file.

The importer named in the sources is Perfetto's (google/perfetto, ``src/trace_processor``): ``json_trace_tokenizer.cc``
and ``json_trace_parser.cc`` in ``importers/json``, ``json_parser.h`` in ``util``, ``slice_tracker.h`` and
``flow_tracker.cc`` in ``importers/common``, ``trace_type.cc`` for the type of a file. Effects were seen on its
v52 engine unless a version is given; ``tests/golden`` asks the engine again.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from tracekit.structs import Struct, asdict

# A rank trace by tracekit, a merged trace by tracekit, or a Trace Event Format file by anybody else.
Kind = Literal["rank", "merged", "other"]
Severity = Literal["error", "warning"]

# A merge keeps these as its input has them.
_WARNINGS_IN_MERGED: Final = frozenset({"perfetto-phase"})


class Rule(Struct, frozen=True):
    """One rule."""

    id: str
    why: str  # the effect of breaking it, and the source
    own: Severity  # in files that tracekit wrote
    other: Severity | None  # in other files; None where the same thing is normal there (torch.profiler's traces)

    def severity(self, kind: Kind) -> Severity | None:
        """Return the severity in a kind of file, or None when it is normal there."""
        if kind == "merged" and self.id in _WARNINGS_IN_MERGED:
            return "warning"
        return self.other if kind == "other" else self.own


# Errors in every file.
_ERRORS: Final = {
    "perfetto-unknown-type": 'Perfetto refuses a JSON file that does not begin with {" or [{", for example after a '
    "byte order mark, or an empty array (trace_type.cc).",
    "perfetto-no-events": "Perfetto loads an object without a list traceEvents, or one event a line (NDJSON), as an "
    "empty timeline or not at all (json_trace_tokenizer.cc).",
    "perfetto-cut-file": 'Perfetto refuses an object that is not closed ("JSON trace file is incomplete") and a cut '
    "gzip file (json_trace_tokenizer.cc; google/perfetto#926).",
    "perfetto-data-after-end": "Perfetto passes over what follows the end of the first JSON document, without a word "
    "(json_trace_tokenizer.cc).",
    "perfetto-invalid-json": "Perfetto refuses the whole file at an unescaped quote, a bare word or a torn event "
    "(json_parser.h; pytorch/pytorch#146900).",
    "perfetto-nan": "Perfetto never ends loading NaN, Infinity or 1e400 in the args of a counter or metadata event, "
    "refuses the file for one in another field, and loses the args after it elsewhere (json_trace_parser.cc).",
    "perfetto-surrogate-escape": r"Perfetto from v53 on refuses a file with \ud83d\ude00 escapes in a name and never "
    "ends loading them in a process name; v52 does when the text holds an escaped quote too (json_parser.h; "
    "scala/scala3#26006).",
    "perfetto-final-backslash": r"Perfetto v52 takes the quote behind a text that ends with \\ for an escaped one: it "
    "refuses the file, or shows nothing of it where the text stands in args (json_trace_tokenizer.cc).",
    "perfetto-header-keys": "Perfetto's engine crashes on hundreds of keys beside traceEvents, since it reads each "
    "by recursion (ParseInternal in json_trace_tokenizer.cc; 500 pass, 700 crash v52).",
    "perfetto-time": "Perfetto drops an event without ts, and all that follows one whose ts is null or no number "
    "(json_trace_tokenizer.cc).",
    "perfetto-duration": "Perfetto drops a slice X without dur, and all that follows one whose dur is null or no "
    "number (json_trace_tokenizer.cc).",
    "perfetto-negative-time": "Perfetto drops events before 0 (trace_sorter.cc, stat "
    "trace_sorter_negative_timestamp_dropped).",
    "perfetto-counter-value": "Perfetto drops counter values that are not numbers: true, null, lists, words "
    "(json_trace_parser.cc, stat json_parser_failure).",
    "perfetto-flow-id": "Perfetto drops a flow whose id is missing or is neither a 64-bit integer nor hexadecimal "
    "text (json_trace_parser.cc, stat flow_invalid_id).",
    "perfetto-async-id": "Perfetto drops asynchronous events without pid, or whose id is neither an integer nor text "
    "(json_trace_parser.cc, stat json_parser_failure).",
    "perfetto-metadata-name": "Perfetto drops a process_name or thread_name that is no text (json_trace_parser.cc, "
    "stat json_parser_failure).",
    "archive": "The archive is cut or damaged: Perfetto refuses a tar that ends early, and what it cannot read of a "
    "zip (tar_trace_reader.cc, zip_reader.cc).",
    "archive-member": "Perfetto refuses the whole archive for one member that it does not take for a trace, or "
    "cannot unpack (zip_trace_reader.cc, tar_trace_reader.cc).",
    "manifest": "Perfetto v58 refuses an archive whose perfetto_manifest breaks a rule of its format "
    "(perfetto_manifest_reader.cc; schemas/perfetto_manifest.schema.json).",
}

# Errors in what tracekit wrote, warnings in other files.
_ERRORS_OF_TRACEKIT: Final = {
    "invalid-utf8": "Perfetto shows replacement characters; other readers refuse the file (pytorch/kineto#80).",
    "control-character": "Raw control characters in text are not JSON: current Perfetto takes them, older ones and "
    "chrome://tracing refuse the file (google/perfetto#598, pytorch/pytorch#130622).",
    "misplaced-comma": "A missing comma between events or one too many inside an event is not JSON, which Perfetto "
    "takes and others refuse (json_trace_tokenizer.cc).",
    "duplicate-events": "Perfetto reads both of two arrays traceEvents, as tracekit does; most other readers take "
    "the last one only (json_trace_tokenizer.cc).",
    "perfetto-phase": "Perfetto drops an event without ph and passes over phases it does not know "
    "(json_trace_tokenizer.cc, json_trace_parser.cc). A merge keeps those of the Trace Event Format, which other "
    "viewers show.",
    "perfetto-negative-duration": "Perfetto takes a negative dur as it is and draws nonsense (json_trace_parser.cc).",
    "perfetto-inexact-time": "Perfetto reads a ts with decimals as a double: above 2^53 ns (104 days) nanoseconds "
    "are rounded, at epoch times to 256 ns, which breaks nesting (json_trace_tokenizer.cc; Ascend/pytorch#133).",
    "perfetto-process-id": "Perfetto takes a pid or tid that is not an integer in 0..2^32-1 for 0, so that all such "
    "tracks fall into one (json_trace_tokenizer.cc).",
    "perfetto-sort-index": "Perfetto from v53 on counts an error for a sort_index that is not a number, and does not "
    "sort by it (google/perfetto PR 3273).",
    "perfetto-args-nesting": "Perfetto's engine crashes on args nested very deeply (100,000 levels in v52), other "
    "readers at about 1,000.",
    "perfetto-overlap": "Perfetto up to v56 drops a slice that sticks out of the slice it begins in, on one pid and "
    "tid; later ones draw it on a track of its own (slice_tracker.h, stat slice_drop_overlapping_complete_event; "
    "google/perfetto#4280).",
    "perfetto-overlap-open": "Perfetto draws an X that sticks out of an open B as it is, and cuts a B short where "
    "the X ends in which it begins; at one time X comes before B (slice_tracker.cc, stat misplaced_end_event).",
    "perfetto-end-without-begin": "Perfetto passes over an E that no open B fits, by name and category where they "
    "are given (slice_tracker.h).",
    "perfetto-misplaced-end": "Perfetto closes a slice that is not the innermost one and counts data loss "
    "(slice_tracker.h, stat misplaced_end_event).",
    "perfetto-depth": "Perfetto drops slices (v58) or draws them on one level (v52) from a depth of 512 on one track "
    "on (slice_tracker.h, kMaxDepth).",
    "perfetto-flow-duplicate": "Perfetto matches flows by cat, name and id over all processes: one id started twice "
    "draws arrows between what has nothing to do with each other, or loses one (flow_tracker.cc, stat "
    "flow_duplicate_id).",
}

# Errors in what tracekit wrote, normal in other files.
_ERRORS_ONLY_OF_TRACEKIT: Final = {
    "text-process-id": "Perfetto numbers text pids and tids itself, the same text in two ranks as one process "
    "(json_trace_tokenizer.cc).",
    "perfetto-global-async": "Perfetto shows asynchronous slices with a plain id outside of their process, all ranks "
    "mixed; id2.local keeps them inside (json_trace_parser.cc).",
    "perfetto-global-instant": "Perfetto shows instants of scope g on one track without a name that all ranks share "
    "(json_trace_parser.cc).",
    "metadata-missing": "The rank trace does not say whose it is, so merge cannot place it (formats/rank_trace.py).",
    "metadata-duplicate": "Two processes wrote one file (formats/rank_trace.py).",
    "schema": "The event is not as tracekit writes it (schemas/trace_event.schema.json).",
}

# Warnings in every file.
_WARNINGS: Final = {
    "unfinished": "The array has no closing bracket: the file is still written, or its process was killed. Perfetto "
    "loads all but a torn last event (json_trace_tokenizer.cc).",
    "unclosed-begin": "Perfetto draws a B without E to the end of the trace. In a rank trace that is what the "
    "process was in when it was killed (slice_tracker.h).",
}

# Warnings in what tracekit wrote, normal in other files.
_WARNINGS_ONLY_OF_TRACEKIT: Final = {
    "input-flow-duplicate": "An input starts a flow twice, and the merge keeps its ids: Perfetto may draw a wrong "
    "arrow within this rank (flow_tracker.cc, stat flow_duplicate_id).",
    "input-metadata": "An input says about itself what tracekit does not write, and the merge keeps it "
    "(schemas/trace_event.schema.json).",
}

_BY_SEVERITY: Final[tuple[tuple[Severity, Severity | None, dict[str, str]], ...]] = (
    ("error", "error", _ERRORS),
    ("error", "warning", _ERRORS_OF_TRACEKIT),
    ("error", None, _ERRORS_ONLY_OF_TRACEKIT),
    ("warning", "warning", _WARNINGS),
    ("warning", None, _WARNINGS_ONLY_OF_TRACEKIT),
)
RULES: Final = {name: Rule(name, why, own, other) for own, other, whys in _BY_SEVERITY for name, why in whys.items()}
KEPT_PER_RULE: Final = 10  # the maximum number of kept problems of one rule; all are counted


class Problem(Struct, frozen=True):
    """A rule broken at one place.

    Attributes:
        event: The number of the event, counted from 1 in the order of the file; None for the file as a whole.
        offset_bytes: The place in the unpacked file, when known.
        count: The number of violations; more than 1 where only the first place is known.
    """

    rule: str
    severity: Severity
    file: str
    event: int | None
    offset_bytes: int | None
    message: str
    count: int = 1

    def __str__(self) -> str:
        place = [self.file]
        byte = None if self.offset_bytes is None else f"byte {self.offset_bytes}"
        if self.event is not None:
            place.append(f"event {self.event}" + (f" ({byte})" if byte else ""))
        elif byte:
            place.append(byte)
        more = f" ({self.count} times)" if self.count > 1 else ""
        label = "warning: " if self.severity == "warning" else ""
        return f"{': '.join(place)}: {label}[{self.rule}] {self.message}{more}"


class ValidationReport(Struct, frozen=True):
    """The verdict on one file.

    Attributes:
        kind: "rank", "merged" or "other"; decides the severities.
        form: "array", "object", "archive", "manifest", or "unknown" when the file is not a trace.
        events: The number of readable events; for an archive the number of traces, for a manifest the number of files.
        problems: In the order of the file; of each rule the first `KEPT_PER_RULE`.
        counts: The number of violations of each rule, kept or not.
        not_checked: Why the schemas were not applied, or None.
    """

    file: str
    kind: Kind
    form: str
    events: int
    problems: tuple[Problem, ...]
    counts: dict[str, int]
    not_checked: str | None = None

    def total(self, severity: Severity) -> int:
        """Return the number of errors or warnings, kept or not."""
        return sum(count for rule, count in self.counts.items() if RULES[rule].severity(self.kind) == severity)

    @property
    def errors(self) -> int:
        """The number of errors, kept or not."""
        return self.total("error")

    @property
    def warnings(self) -> int:
        """The number of warnings, kept or not."""
        return self.total("warning")

    def as_dict(self) -> dict[str, Any]:
        """Return the report for machines; JSON-safe."""
        return {
            "file": self.file,
            "kind": self.kind,
            "form": self.form,
            "events": self.events,
            "errors": self.errors,
            "warnings": self.warnings,
            "counts": self.counts,
            "problems": [
                {key: value for key, value in asdict(problem).items() if key != "file"} for problem in self.problems
            ],
            "not_checked": self.not_checked,
        }


class Findings:
    """Collects broken rules while a file is read; their severity is known when the kind of the file is."""

    __slots__ = ("_counts", "_kept", "total")

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[str, int] = {}
        self._kept: dict[str, list[tuple[int | None, int | None, str, int]]] = {}

    def add(
        self, rule: str, event: int | None, message: str, *, offset_bytes: int | None = None, count: int = 1
    ) -> None:
        """Record that a rule is broken."""
        self.total += count
        self._counts[rule] = self._counts.get(rule, 0) + count
        kept = self._kept.setdefault(rule, [])
        if len(kept) < KEPT_PER_RULE:
            kept.append((event, offset_bytes, message, count))

    def report(
        self, file: str, kind: Kind = "other", form: str = "unknown", events: int = 0, not_checked: str | None = None
    ) -> ValidationReport:
        """Return the report on a file, with the problems in the order of the file; the arguments are its attributes."""
        severities = {rule: RULES[rule].severity(kind) for rule in self._counts}
        problems = [
            Problem(rule, severity, file, *found)
            for rule, severity in severities.items()
            if severity is not None
            for found in self._kept[rule]
        ]
        problems.sort(key=lambda problem: (problem.event or 0, problem.offset_bytes or 0, problem.rule))
        counts = {rule: count for rule, count in self._counts.items() if severities[rule] is not None}
        return ValidationReport(file, kind, form, events, tuple(problems), counts, not_checked)
