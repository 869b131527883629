"""The report on the recovery of a trace: a few lines for people, JSON for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.formats.json.window import LostBytes

_NAMED: Final = 100

_REPAIRS: Final = {
    "bad_escape": "backslashes that begin no escape",
    "bare_word": "words without quotes",
    "byte_order_mark": "a byte order mark",
    "control_character": "raw control characters",
    "data_after_end": "events after the closing bracket",
    "invalid_utf8": "text that is not UTF-8",
    "lone_surrogate": "halves of surrogate pairs",
    "missing_bracket": "no opening bracket",
    "missing_comma": "missing commas",
    "not_finite": "NaN or Infinity",
    "second_header": "a second header",
    "surrogate_escape": "characters written as two escapes",
    "trailing_comma": "commas too many",
    "unescaped_quote": "quotes that are not escaped",
}


@dataclass(frozen=True, slots=True)
class OpenSlice:
    """A slice without an end: the process was in it when the file ended, or its end is lost.

    Attributes:
        name: Its name.
        pid: Its process, as the file has it.
        tid: Its thread.
        thread: The name of the thread, empty where it is unknown.
        open_ns: From its begin to the last event of the file (in a rank trace also: to the last reading of the clocks, which
            goes on while a process hangs); None when it has no readable time.
    """

    name: str
    pid: int | str | None
    tid: int | str | None
    thread: str
    open_ns: int | None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The damage of one file and its recovery.

    Attributes:
        path: The file, as it may be printed.
        output: The file that was written, or None when ``path`` is whole.
        kept_as: The new name of the input that the output has replaced, or None.
        form: "array" or "object".
        compressed: True for gzip.
        events: The number of readable events.
        losses: The parts in the middle that could not be read; the first 1000.
        lost_parts: The number of all such parts.
        lost_events: The number of events that begin in these parts, a lower bound.
        lost_bytes: The length of these parts together.
        tail: The unreadable end of the file, None when the last event is complete.
        closed: True if the file has its closing bracket.
        damages: Sentences about data that could not be unpacked.
        repairs: The number of repairs without loss, by kind.
        open_slices: The slices that were open at the end, outermost first on each thread.
        closed_slices: True if an end was written for the open slices.
    """

    path: str
    output: str | None
    kept_as: str | None
    form: str
    compressed: bool
    events: int
    losses: tuple[LostBytes, ...]
    lost_parts: int
    lost_events: int
    lost_bytes: int
    tail: LostBytes | None
    closed: bool
    damages: tuple[str, ...]
    repairs: dict[str, int]
    open_slices: tuple[OpenSlice, ...]
    closed_slices: bool

    @property
    def whole(self) -> bool:
        """True if there was nothing to recover."""
        return self.closed and not (self.lost_parts or self.tail or self.damages or self.repairs)

    @property
    def complete(self) -> bool:
        """True if only the torn end is lost."""
        return not self.lost_parts

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {"status": "whole" if self.whole else "recovered", "complete": self.complete, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the report for people."""
        if self.whole:
            return [f"{self.path}: whole, {counted(self.events, 'event')}; nothing to recover", *self._open_lines()]
        lines = [f"{self.path}: {counted(self.events, 'event')} recovered into {self.output}"]
        if self.kept_as:
            lines.append(f"  the damaged file is kept as {self.kept_as}")
        lines += [f"  {damage}" for damage in self.damages]
        if self.lost_parts:
            lines.append(
                f"  lost in the middle: {counted(self.lost_parts, 'part')}, {counted(self.lost_bytes, 'byte')}, "
                + (f"at least {counted(self.lost_events, 'event')}" if self.lost_events else "no event is seen in them")
            )
            lines += [f"    {_part(loss)}" for loss in self.losses[:10]]
            if self.lost_parts > 10:
                lines.append(f"    and {counted(self.lost_parts - 10, 'more part')} (--json lists them)")
        if self.tail:
            lines.append(f"  lost at the end: {_part(self.tail)}")
        if not self.closed:
            lines.append(f"  the {self.form} was not closed; it is now")
        lines += [f"  repaired: {_REPAIRS.get(kind, kind)} ({count})" for kind, count in sorted(self.repairs.items())]
        return [*lines, *self._open_lines()]

    def _open_lines(self) -> list[str]:
        lines = []
        for slice_ in self.open_slices[:_NAMED]:
            where = slice_.thread or f"pid {slice_.pid}, tid {slice_.tid}"
            time = "" if slice_.open_ns is None else f", for {_duration(slice_.open_ns)}"
            lines.append(f"  open at the end: {slice_.name} ({where}){time}")
        if len(self.open_slices) > _NAMED:
            lines.append(f"  and {len(self.open_slices) - _NAMED} more open slices")
        if lines and self.closed_slices:
            lines.append("  these slices end at the time of the last event now")
        return lines


def _part(loss: LostBytes) -> str:
    events = f", at least {counted(loss.events, 'event')}" if loss.events else ""
    return f"{counted(loss.length_bytes, 'byte')} from byte {loss.offset_bytes} on{events}, beginning with {loss.begins[:40]!r}"


def _duration(ns: int) -> str:
    if ns < 1_000_000:
        return f"{ns / 1000:.3f} µs"
    if ns < 1_000_000_000:
        return f"{ns / 1_000_000:.3f} ms"
    return f"{ns / 1_000_000_000:.3f} s"
