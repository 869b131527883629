"""Problems of a file, and the report that lists them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.check.validation.rules import RULES

if TYPE_CHECKING:
    from tracekit.check.validation.rules import Kind, Severity

KEPT_PER_RULE: Final = 10
"""The maximum number of kept problems of one rule; all are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule broken at one place.

    Attributes:
        rule: Id of the rule.
        severity: "error" or "warning".
        file: The file, as it may be printed.
        event: The number of the event, counted from 1 in the order of the file; None for the file as a whole.
        offset_bytes: The place in the unpacked file, when known.
        message: The problem and its solution.
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


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The verdict on one file.

    Attributes:
        file: The file, as it may be printed.
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
    """Collects broken rules while a file is read; their severity is known when the kind of the file is.

    Attributes:
        total: The number of collected problems.
    """

    __slots__ = ("_counts", "_kept", "total")

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[str, int] = {}
        self._kept: dict[str, list[tuple[int | None, int | None, str, int]]] = {}

    def add(
        self, rule: str, event: int | None, message: str, *, offset_bytes: int | None = None, count: int = 1
    ) -> None:
        """Note that a rule is broken."""
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
