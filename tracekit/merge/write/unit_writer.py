"""A unit is written: its events as they come, then the changes that only the last of them decides.

Which slices must leave their tracks is known when the unit has been read. The output of a small unit is held in memory until
then, and a plain file is patched in place. A packed or encoded output cannot be patched: a large unit that needs patches is cut
off and rewritten, with the patches laid over its text. Encoding and packing stop as soon as that is known, usually within the
first events. The bytes are the same whichever way was taken.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit.formats.gzip_codec import packed
from tracekit.merge.rewrite.unit_rewriter import UnitRewriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.formats.gzip_codec import GzipWriter
    from tracekit.merge.plan.unit import PartEncoder, UnitJob, UnitResult

_HELD_BYTES: Final = 4 << 20
"""The output of a unit is held in memory up to this size."""


def write_unit(
    job: UnitJob,
    file: BinaryIO,
    folder: str,
    progress: Callable[[int, int], None] | None = None,
    *,
    pack_behind: bool = False,
) -> UnitResult:
    """Write a unit to a file, at its position; a packed unit is a separate gzip member.

    ``progress`` gets the number of an input, and of its unpacked bytes read so far.
    """
    unit = UnitRewriter(job, folder, progress)
    start = file.tell()
    encoder, held, size_bytes = job.part.encoder(folder), [], 0
    is_written = False
    with packed(job.output, file, behind=pack_behind) as sink:
        is_patchable = sink is file and job.part.is_text
        for _ in unit.steps():
            if is_written:
                unit.rewriter.write(file.fileno(), start)
                continue
            held.append(unit.rewriter.take())
            size_bytes += len(held[-1])
            if size_bytes > _HELD_BYTES:
                if is_patchable or not unit.rewriter.overlaps():
                    sink.write(encoder.encode(b"".join(held)))
                held.clear()
                if is_patchable:
                    file.flush()
                    is_written = True
        if is_written:
            file.seek(0, os.SEEK_END)
        needs_patches = unit.finish() > 0 or unit.rewriter.overlaps()
        if size_bytes <= _HELD_BYTES:
            sink.write(encoder.encode(unit.rewriter.lay(b"".join(held), 0)))
        elif needs_patches and is_patchable:
            unit.rewriter.write_patches(file.fileno(), start)
        elif needs_patches:
            unit.result.twice = True
        if not unit.result.twice:
            _close(unit, encoder, sink)
    if unit.result.twice:
        file.seek(start)
        file.truncate()
        encoder = job.part.encoder(folder)
        with packed(job.output, file, behind=pack_behind) as sink:
            for _, text in UnitRewriter(job, folder, progress).patched(unit):
                sink.write(encoder.encode(text))
            _close(unit, encoder, sink)
    return unit.result


def _close(unit: UnitRewriter, encoder: PartEncoder, sink: BinaryIO | GzipWriter) -> None:
    for piece in encoder.close(unit.processes, unit.closing):
        sink.write(piece)
