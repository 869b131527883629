"""The stack frames of a merged trace: those that its events name, of all inputs, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.formats.final_backslash import without_final_backslash

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JoinedFrames"]

_MOST_BYTES: Final = 12 << 20
"""Together with the other keys behind the events, no more than `TraceReader` reads there, and little for one machine."""


class JoinedFrames:
    """Takes the frames of one input after the other, up to 12 MiB of text. Beyond that, a frame may stay whose caller does not.

    Attributes:
        left_out: How many frames of inputs did not fit.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._frames: dict[str, bytes] = {}
        self._bytes = 0

    def take(self, frames: Mapping[str, bytes]) -> None:
        """Take in frames: the JSON text of each by its id, as `tracekit.formats.stack_frames.StackFrames` has them."""
        for name in sorted(frames):
            if name in self._frames:
                continue
            size = len(name) + len(frames[name])
            if self._bytes + size > _MOST_BYTES:
                self.left_out += 1
                continue
            self._frames[name] = frames[name]
            self._bytes += size

    def text(self) -> bytes:
        """Return the JSON object of all frames, in the order of their ids; empty where there are none."""
        if not self._frames:
            return b""
        found = b",\n".join(b'"%b":%b' % (name.encode(), self._frames[name]) for name in sorted(self._frames))
        return b"{\n%b\n}" % without_final_backslash(found)

    @property
    def warning(self) -> str | None:
        """What a reader of the merged trace must know, or None."""
        if not self.left_out:
            return None
        return (
            f"{self.left_out:,} stack frames are left out: those of all inputs take more than {_MOST_BYTES >> 20} MiB; "
            "the events that name them are there"
        )
