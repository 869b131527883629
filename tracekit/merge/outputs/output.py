"""What a merge writes: the seam between rewritten events and a file format.

An output is bytes that are joined: a head, which tells what is true of the whole merge, then the events, then a tail. The
events are encoded by parts, one for each unit of inputs. A part knows nothing of the others and can be sent to another
process, so parts may be made anywhere and at any time, as long as they are joined in order.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from tracekit.errors import ConfigError
from tracekit.formats.gzip_codec import GzipWriter
from tracekit.merge.outputs.json_output import JsonOutput
from tracekit.merge.outputs.pftrace_output import PftraceOutput
from tracekit.storage import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.merge.inputs import Input
    from tracekit.merge.namespaces import Process

__all__ = ["Merged", "Output", "Part", "output_format", "packed"]

_PACKED: Final = ".gz"


@dataclass(frozen=True, slots=True)
class Merged:
    """What is true of the whole merge.

    Attributes:
        base_ns: What all times are relative to, ns since the epoch; 0 when no input tells its clock.
        inputs: In the order of the output.
        processes: In the order of display, with their threads.
        clocks: What is said of them, ready for JSON.
    """

    base_ns: int
    inputs: list[Input]
    processes: list[Process]
    clocks: dict[str, Any] = field(default_factory=dict)


class Part(Protocol):
    """Encodes the events of one unit of inputs. It can be pickled before its first use."""

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

    def head(self) -> tuple[bytes, int]:
        """Return everything up to the first event of an input, and how many metadata events that holds.

        Without any, no separator follows it.
        """

    def part(self, unit: int) -> Part:
        """Return the encoder of a unit."""

    def tail(self) -> bytes:
        """Return what follows the last event."""


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


@contextmanager
def packed(path: str, file: BinaryIO) -> Iterator[BinaryIO | GzipWriter]:
    """Open what is to be written to ``file``: packed with gzip where the name says so."""
    if not path.endswith(_PACKED):
        yield file
        return
    with GzipWriter(file) as stream:
        yield stream
