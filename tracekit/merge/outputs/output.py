"""What a merge writes: the seam between rewritten events and a file format.

An output is bytes that are joined: a head, which tells what is true of the whole merge, then the events, then a tail. The
events are encoded by parts, one for each unit of inputs. A part knows nothing of the others and can be sent to another
process, so parts may be made anywhere and at any time, as long as they are joined in order.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from tracekit.errors import ConfigError
from tracekit.formats.gzip_codec import GzipWriter
from tracekit.merge.outputs.json_output import JsonOutput
from tracekit.merge.outputs.pftrace_output import PftraceOutput
from tracekit.storage import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.merge.outputs.merged import Merged

__all__ = ["Output", "Part", "output_format", "packed", "write_head"]

_HEAD_BYTES: Final = 1 << 18
"""So much of a head is packed at once: a packer that is given single names packs badly."""
_PACKED: Final = ".gz"


class Part(Protocol):
    """Encodes the events of one unit of inputs. It can be pickled before its first use.

    Attributes:
        writes_out_frames: Whether the format has no table of stack frames, so that events get the frames themselves.
    """

    writes_out_frames: bool

    def encode(self, number: int, events: bytes) -> bytes:
        """Return what the next run of events adds to the output; empty where the part keeps it until later.

        Args:
            number: Of the input.
            events: JSON objects with ``,`` between them, as `Patcher.patch` returns them.
        """

    def finish(self) -> Iterable[bytes]:
        """Return what the part kept until the end of its inputs, piece by piece."""


class Output(Protocol):
    """A file format of merged traces.

    Attributes:
        separator: What stands between two pieces that parts return, and between the head and the first of them.
        units: The inputs by number; those of one unit go through one part, one after the other. Of most formats every
            input is a unit of its own.
    """

    separator: bytes
    units: list[list[int]]

    def __init__(self, merged: Merged) -> None: ...

    def head(self, write: Callable[[bytes], object]) -> int:
        """Write everything up to the first event of an input; returns how many metadata events that holds.

        Without any, no separator follows it.

        Args:
            write: Takes a piece.
        """

    def part(self, unit: int) -> Part:
        """Return the encoder of a unit."""

    def tail(self, stack_frames: bytes) -> bytes:
        """Return what follows the last event.

        Args:
            stack_frames: The table of stack frames, as JSON; empty where there are none.
        """


_FORMATS: Final[dict[str, Callable[[Merged], Output]]] = {".json": JsonOutput, ".pftrace": PftraceOutput}


def output_format(path: str) -> Callable[[Merged], Output]:
    """Return the output that a name asks for by its ending.

    Raises:
        ConfigError: There is none of this ending.
    """
    for ending, output in _FORMATS.items():
        if path.removesuffix(_PACKED).endswith(ending):
            return output
    endings = " or ".join(f"{ending} or {ending}{_PACKED}" for ending in _FORMATS)
    raise ConfigError(
        f"{without_secrets(path)}: the output must end with {endings}, or with .tar or .zip for an archive"
    )


def write_head(output: Output, sink: BinaryIO | GzipWriter) -> int:
    """Write the head of an output; returns how many metadata events it holds."""
    held = bytearray()

    def take(piece: bytes) -> None:
        held.extend(piece)
        if len(held) >= _HEAD_BYTES:
            sink.write(bytes(held))
            held.clear()

    declared = output.head(take)
    sink.write(bytes(held))
    return declared


@contextmanager
def packed(path: str, file: BinaryIO, *, behind: bool = False) -> Iterator[BinaryIO | GzipWriter]:
    """Open what is to be written to ``file``: packed with gzip where the name says so, and ``behind`` as `GzipWriter` does it."""
    if not path.endswith(_PACKED):
        yield file
        return
    with GzipWriter(file, behind=behind) as stream:
        yield stream
