"""A unit is written: its events as they come, then the changes that only the last of them decides.

Which slices must leave their tracks is known when the unit has been read. The output of a small unit is held in memory until
then, and a plain file is patched in place. Where the output is packed or encoded, or is a pipe, a large unit that needs patches
is cut off and rewritten, with the patches laid over its text. The bytes are the same whichever way was taken.
"""

from __future__ import annotations

from contextlib import ExitStack
from copy import copy
from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit.formats.gzip_codec import packed
from tracekit.merge.rewrite.unit_rewriter import UnitRewriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.formats.gzip_codec import GzipWriter
    from tracekit.merge.plan.unit import Part, UnitJob, UnitResult
    from tracekit.merge.rewrite.rewriter import AnyRewriter

_HELD_BYTES: Final = 4 << 20
"""The output of a unit is held in memory up to this size."""


def write_unit(
    job: UnitJob,
    file: BinaryIO,
    progress: Callable[[int, int], None] | None = None,
    *,
    folder: str | None = None,
    pack_behind: bool = False,
) -> UnitResult:
    """Write a unit to a file, at its position; a packed unit is a separate gzip member.

    Args:
        job: The unit.
        file: Where to write.
        progress: Called with the number of an input, and of its unpacked bytes read so far.
        folder: The folder of scratch files; the system's folder for temporary files if None.
        pack_behind: Pack in another thread, if a processor is free.

    Raises:
        MergeError: A file changed since it was planned.
        StorageError: One cannot be read any more.
    """
    unit = UnitRewriter(job, folder, progress)
    can_cut = _is_file(file)
    can_patch = can_cut and job.part.is_text and not job.output.endswith(".gz")
    sink = _Sink(job, file, can_write=can_cut, pack_behind=pack_behind)
    with sink:
        for _ in unit.steps():
            sink.drain(unit.rewriter)
        count = unit.finish()
        if sink.is_held:
            sink.release(unit.rewriter.lay if count else None)
        elif count and can_patch and sink.start is not None:
            file.flush()
            unit.rewriter.write_patches(file.fileno(), sink.start)
        elif count:
            sink.is_void = True
        if not sink.is_void:
            sink.close(unit)
    unit.result.twice = sink.is_void
    if unit.result.twice:
        if sink.start is not None:
            file.seek(sink.start)
            file.truncate()
        # Rewrite the unit with the patches of the first time laid over its text.
        again = UnitRewriter(job, folder, progress)
        position = 0
        with _Sink(job, file, can_write=True, pack_behind=pack_behind, holds=0) as sink:
            for _ in again.steps():
                text = again.rewriter.take()
                sink.write(unit.rewriter.lay(text, position))
                position += len(text)
            sink.close(unit)
    return unit.result


class _Sink:
    """Takes the output of a unit, and holds it back while it is small.

    Attributes:
        start: The position of the unit in the file, once some of it is written.
        is_void: True if the written part must be written again.
    """

    def __init__(
        self, job: UnitJob, file: BinaryIO, *, can_write: bool, pack_behind: bool, holds: int | None = None
    ) -> None:
        self.start: int | None = None
        self.is_void = False
        self._job = job
        self._file = file
        self._can_write = can_write
        self._pack_behind = pack_behind
        self._holds = _HELD_BYTES if holds is None else holds
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_direct = False
        self._stack = ExitStack()
        self._packed: BinaryIO | GzipWriter | None = None
        self._part: Part = job.part

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    @property
    def is_held(self) -> bool:
        """True if all of the unit is still held back."""
        return self._packed is None and not self.is_void

    def drain(self, rewriter: AnyRewriter) -> None:
        """Take the output of a rewriter."""
        if self._is_direct:
            rewriter.write(self._file.fileno())
        else:
            self.write(rewriter.take())

    def write(self, text: bytes) -> None:
        """Take events, each with a separator behind it."""
        if not text or self.is_void:
            return
        if self._packed is None:
            self._held.append(text)
            self._held_bytes += len(text)
            if self._held_bytes > self._holds:
                if self._can_write:
                    self.release(None)
                else:
                    self.is_void = True
                    self._held.clear()
            return
        self._write(text)

    def release(self, lay: Callable[[bytes, int], bytes] | None) -> None:
        """Write what is held back.

        Args:
            lay: Lays patches over a text at a position.
        """
        if self._packed is None:
            self._open()
        position = 0
        for text in self._held:
            self._write(text if lay is None else lay(text, position))
            position += len(text)
        self._held.clear()
        self._is_direct = self._job.part.is_text and self._packed is self._file and self.start is not None
        if self._is_direct:
            self._file.flush()

    def close(self, unit: UnitRewriter) -> None:
        """Write what follows the events of the unit."""
        if self._packed is None:  # no event at all
            self._open()
        for piece in self._part.close(unit.processes, unit.closing):
            self._piece(piece)

    def _open(self) -> None:
        self.start = self._file.tell() if self._can_write and _is_file(self._file) else None
        self._part = copy(self._job.part)
        self._packed = self._stack.enter_context(packed(self._job.output, self._file, behind=self._pack_behind))

    def _write(self, text: bytes) -> None:
        self._piece(self._part.encode(text))

    def _piece(self, piece: bytes) -> None:
        if piece and self._packed is not None:
            self._packed.write(piece)


def _is_file(file: BinaryIO) -> bool:
    """Return True for a file on a disk of this machine, which can be cut off and written anywhere."""
    try:
        return file.seekable() and file.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
