"""From what the user named to the one local file that is opened: as it is, fetched, or merged."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError, TraceFormatError
from tracekit.formats.file_kinds import HEAD_BYTES
from tracekit.formats.trace_event import encode_events
from tracekit.formats.trace_files import trace_files
from tracekit.formats.trace_reader import TraceReader
from tracekit.merge import MergeReport, merge_traces
from tracekit.merge.workers import fitting_pool
from tracekit.storage import basename, download, is_remote, open_read, same_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Prepared", "mended", "prepare"]

_HARMLESS: Final = {"cut_file", "cut_event"}
"""What Perfetto takes in an array of events, as a recording that goes on or was killed leaves it."""

_TIME_BEYOND_DOUBLES: Final = re.compile(rb'"(?:ts|dur)"\s*:\s*-?[\d.]+[eE]\+?\d{3}')
"""Perfetto refuses all of a trace with such a time, but takes such numbers elsewhere."""

_SHOWN: Final = re.compile(
    # JSON, archives, perf, Fuchsia, Java, Perfetto's own; then texts: systrace, ninja, Instruments, ART, logcat, perf.
    rb"\s*(?:\xef\xbb\xbf)?[{\[]|PK\x03\x04|.{257}ustar|PERFILE2|SIMPLEPERF|\x10\0\x04FxT|JAVA PROFILE|\n"
    rb"|\s*(?:[#<*]|TRACE:|SLOW|-{5}|\d\d-\d\d |\d{4}-\d\d-\d\d)|\S[^\n]* \d+\.\d+: ",
    re.DOTALL,
)
"""How the formats begin that Perfetto takes, as far as they can be told by that."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is opened.

    Attributes:
        path: A local file.
        merge: What the merge says that made it; None for a file that was there.
    """

    path: Path
    merge: MergeReport | None = None


def prepare(
    inputs: Sequence[str],
    folder: Path,
    output: str | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> Prepared:
    """Return the file to open. One file is opened as it is, whatever it is; several, and folders, are merged.

    Args:
        inputs: Files, folders, globs and URLs.
        folder: For files that are needed only as long as they are open.
        output: Where to keep the merged trace; among ``folder`` by default.
        overwrite: Whether ``output`` may be replaced.
        progress: Called now and then with the share that is done, 0 to 1, and with what is being done.

    Raises:
        TracekitError: An input cannot be read or merged, or the output cannot be written.
    """
    if len(inputs) == 1:
        (name,) = inputs
        files = trace_files(name, flight_dumps=True)
        if len(files) == 1 and same_file(files[0], name):
            if output is not None:
                raise ConfigError(f"-o is for the result of a merge, and {name} is one file, which is opened as it is")
            if not is_remote(name):
                return Prepared(Path(files[0]))
            if progress is not None:
                progress(0.0, f"fetching {basename(name)}")
            copy = folder / basename(name)
            download(name, str(copy))
            return Prepared(copy)
    if output is not None and is_remote(output):
        raise ConfigError(f"-o {output}: name a local file; a browser cannot be given another")
    target = output or str(folder / "merged.json.gz")
    with fitting_pool(target, inputs) as executor:
        report = merge_traces(target, inputs, overwrite=overwrite, progress=progress, executor=executor)
    return Prepared(Path(target), report)


def mended(prepared: Prepared, folder: Path, progress: Callable[[float, str], None] | None = None) -> Prepared:
    """Return a trace as it is, or a repaired copy where Perfetto would refuse it, or never end with it.

    NaN in a counter makes Perfetto's engine loop for ever; a cut object, a cut gzip file and some escapes make it refuse all.

    Args:
        prepared: The trace; what a merge wrote is fine. Not unboundedly large: it is read to its end.
        folder: For the copy.
        progress: As for `prepare`.

    Raises:
        TracekitError: It cannot be read, or not be repaired, or it is nothing that Perfetto could show.
    """
    if prepared.merge is not None or not _is_damaged(str(prepared.path), progress):
        return prepared
    target = folder / "repaired.json.gz"
    return Prepared(target, merge_traces(str(target), [str(prepared.path)], progress=progress))


def _is_damaged(path: str, progress: Callable[[float, str], None] | None) -> bool:
    try:
        with TraceReader(path) as reader:
            if reader.foreign:
                return reader.foreign != "pftrace"  # which Perfetto shows as it is
            for run in reader.runs():
                if _TIME_BEYOND_DOUBLES.search(reader.run_text or encode_events(run)):
                    return True
                if progress is not None:
                    progress(0.0, f"checking {basename(path)}")
            found = {finding.kind for finding in (*reader.repairs, *reader.drops)}
            as_recorded = reader.form == "array" and not reader.compressed and found <= _HARMLESS
            return bool(found) and not as_recorded
    except TraceFormatError as error:
        # Perfetto knows more formats: archives, systrace, Fuchsia's ...
        if _SHOWN.match(_head(path)):
            return False
        reason = f"{error.reason}; Perfetto cannot show it (--force opens it as it is)"
        raise TraceFormatError(error.path, reason, offset_bytes=error.offset_bytes) from None


def _head(path: str) -> bytes:
    with open_read(path) as file:
        head = file.read(HEAD_BYTES)
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return head
