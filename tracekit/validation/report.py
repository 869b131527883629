"""What a validation found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracekit.validation.rules import RULES

if TYPE_CHECKING:
    from tracekit.validation.rules import Kind, Severity

__all__ = ["KEPT_PER_RULE", "Findings", "Problem", "ValidationReport"]

KEPT_PER_RULE: Final = 10
"""How many problems of one rule are kept; all are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule broken at one place.

    Attributes:
        rule: Id of the rule.
        severity: "error" or "warning".
        file: The file, as it may be printed.
        event: Which event of the file, counted from 1 in the order of the file; None when the file as a whole is meant.
        offset_bytes: Where in the unpacked file, when known.
        message: What is there and what to do.
        count: How often the rule is broken here; more than 1 where only the first place is known.
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
        kind: "rank", "merged" or "other": which severities apply.
        form: "array", "object", "archive", "manifest", or "unknown" when the file is no trace.
        events: How many events could be read; of an archive how many traces, of a manifest how many files.
        problems: In the order of the file; of each rule the first `KEPT_PER_RULE`.
        counts: How often each rule is broken, kept or not.
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
        """Return how many errors or warnings there are, kept or not."""
        return sum(count for rule, count in self.counts.items() if RULES[rule].severity(self.kind) == severity)

    @property
    def errors(self) -> int:
        """How many errors there are, kept or not."""
        return self.total("error")

    @property
    def warnings(self) -> int:
        """How many warnings there are, kept or not."""
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
                {
                    "rule": problem.rule,
                    "severity": problem.severity,
                    "event": problem.event,
                    "offset_bytes": problem.offset_bytes,
                    "message": problem.message,
                    "count": problem.count,
                }
                for problem in self.problems
            ],
            "not_checked": self.not_checked,
        }


@dataclass(slots=True)
class _Found:
    count: int = 0
    kept: list[tuple[int | None, int | None, str, int]] = field(default_factory=list)


class Findings:
    """Collects broken rules while a file is read; how bad each is, is known when the kind of the file is.

    Attributes:
        total: How many were noted.
    """

    __slots__ = ("_found", "total")

    def __init__(self) -> None:
        self.total = 0
        self._found: dict[str, _Found] = {}

    def add(
        self, rule: str, event: int | None, message: str, *, offset_bytes: int | None = None, count: int = 1
    ) -> None:
        """Note that a rule is broken."""
        found = self._found.setdefault(rule, _Found())
        found.count += count
        self.total += count
        if len(found.kept) < KEPT_PER_RULE:
            found.kept.append((event, offset_bytes, message, count))

    def close(self, file: str, kind: Kind) -> tuple[tuple[Problem, ...], dict[str, int]]:
        """Return the problems in the order of the file, and the counts by rule."""
        problems, counts = [], {}
        for rule, found in self._found.items():
            severity = RULES[rule].severity(kind)
            if severity is None:
                continue
            counts[rule] = found.count
            for event, offset_bytes, message, count in found.kept:
                problems.append(Problem(rule, severity, file, event, offset_bytes, message, count))
        problems.sort(key=lambda problem: (problem.event or 0, problem.offset_bytes or 0, problem.rule))
        return tuple(problems), counts
