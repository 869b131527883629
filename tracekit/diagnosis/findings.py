"""What was looked at, and what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Section"]


@dataclass(slots=True)
class Section:
    """One thing that was looked at.

    Attributes:
        title: What.
        facts: What was found, by name; ready for JSON.
        problems: What is wrong, each a sentence that says what to do.
        notes: What is not wrong, but good to know.
    """

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the section as JSON-ready values."""
        return {"title": self.title, "facts": self.facts, "problems": self.problems, "notes": self.notes}
