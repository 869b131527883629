"""Remains: the file that a process left, read as strictly as a viewer reads it."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

__all__ = ["Remains", "left_in", "opened", "opens", "read_trace"]


@dataclass
class Remains:
    """A rank trace as it was left.

    Attributes:
        path: The file.
        events: Its whole records.
        torn: The bytes behind the last whole record, if one was cut.
        closed: True if the array was closed.
    """

    path: Path
    events: list[dict[str, Any]]
    torn: bytes
    closed: bool

    def of(self, phases: str, name: str | None = None) -> list[dict[str, Any]]:
        """Return the events of some phases (``"XB"``), of one name or all."""
        return [event for event in self.events if event["ph"] in phases and name in (None, event["name"])]

    def count(self, phases: str, name: str | None = None) -> int:
        """Count such events."""
        return len(self.of(phases, name))

    def values(self, counter: str, series: str) -> list[float]:
        """Return the values of one series of a counter, in the order of the file."""
        return [event["args"][series] for event in self.of("C", counter)]

    def open_slices(self) -> list[str]:
        """Return the names of the slices that have begun and not ended."""
        stacks: dict[tuple[int, int], list[str]] = {}
        for event in self.of("BE"):
            stack = stacks.setdefault((event["pid"], event["tid"]), [])
            if event["ph"] == "B":
                stack.append(event["name"])
            else:
                assert stack, f"the end of a slice that never began: {event}"
                stack.pop()
        return [name for stack in stacks.values() for name in stack]

    @property
    def metadata(self) -> dict[str, Any]:
        """The args of the first metadata event."""
        first = self.events[0]
        assert first["name"] == "tracekit_metadata", f"the file does not begin with its metadata: {first}"
        return first["args"]

    @property
    def summary(self) -> dict[str, Any]:
        """The counts at the end."""
        last = self.events[-1]
        assert last["name"] == "tracekit_summary", f"the file does not end with its summary: {last}"
        return last["args"]

    @property
    def newest_ns(self) -> int:
        """When the newest event in the file ended, on the monotonic clock; the start of the recording without one."""
        clock = self.metadata["clock"]
        offset_ns = self.metadata["baseTimeNanoseconds"] - clock["wall_ns"] + clock["monotonic_ns"]
        ends = [event["ts"] + event.get("dur", 0) for event in self.of("XBEiC")]
        return round(max(ends) * 1000) + offset_ns if ends else clock["monotonic_ns"]


def left_in(folder: Path, pattern: str = "t.json*") -> Remains:
    """Read the only trace in a folder."""
    found = sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))
    assert len(found) == 1, f"one trace should be in the folder, not {[path.name for path in found]}"
    return read_trace(found[0])


def read_trace(path: Path) -> Remains:
    """Read a rank trace.

    Raises:
        AssertionError: It is not what a viewer takes: a tear in its middle, no head, a cut gzip.
    """
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise AssertionError(f"{path.name}: gzip that does not open: {error}") from error
    assert data.startswith(b"[\n"), f"{path.name} does not begin as an array, but with {data[:40]!r}"
    closed = data.endswith(b"\n]\n")
    lines = data[2 : -2 if closed else None].split(b"\n")
    tail = lines.pop()  # empty, unless a record is cut there
    while lines and not lines[-1]:
        lines.pop()  # the array was about to be closed
    events = []
    for number, line in enumerate(lines, 2):
        # The comma of the last record is taken away when the array is closed.
        last = number == len(lines) + 1 and tail == b""
        assert line.endswith(b",") or last, f"{path.name}:{number}: a record without its comma: {line[-200:]!r}"
        try:
            events.append(orjson.loads(line.removesuffix(b",")))
        except orjson.JSONDecodeError as error:
            raise AssertionError(
                f"{path.name}:{number}: a record that is not JSON ({error}): {line[:200]!r}"
            ) from error
    with suppress(orjson.JSONDecodeError):  # cut right behind a record, which viewers show
        events.append(orjson.loads(tail.removesuffix(b",")))
        tail = b""
    assert events, f"{path.name}: not one whole record"
    return Remains(path, events, tail, closed)


def opened(engine: Engine, path: Path) -> Remains:
    """Read a rank trace, or the only one in a folder, and assert that it opens."""
    remains = left_in(path) if path.is_dir() else read_trace(path)
    opens(engine, remains)
    return remains


def opens(engine: Engine, remains: Remains) -> None:
    """Assert that Perfetto's engine loads the file as it is, without an error, and shows every slice that is in it."""
    counters = sum(len(event["args"]) for event in remains.of("C"))
    expected: Any = ([], remains.count("XBi"), counters)
    with engine.load(remains.path) as trace:
        slices, values = (trace.scalar(f"select count(*) from {table}") for table in ("slice", "counter"))
        found = (trace.errors(), slices, values)
    assert found == expected, f"errors, slices and counter values are {found}, and should be {expected}"
