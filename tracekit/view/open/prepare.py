"""Make the one local file that is opened from the inputs: use it as it is, fetch it, merge several, or repair it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tracekit.errors import ConfigError, TraceFormatError
from tracekit.formats.byte_stream import HEAD_BYTES, packing_of
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.trace_event import encode_events
from tracekit.merge import MergeReport, merge_traces
from tracekit.merge.execute.executor import fitting_pool
from tracekit.storage import basename, download, is_remote, open_read, same_file
from tracekit.structs import Struct
from tracekit.traces.inputs import trace_files

# Perfetto takes these in an array of events, as a recording that goes on or was killed leaves it.
_HARMLESS: Final = {"cut_file", "cut_event"}
# Perfetto refuses all of a trace with such a time, but takes such numbers elsewhere.
_TIME_BEYOND_DOUBLES: Final = re.compile(rb'"(?:ts|dur)"\s*:\s*-?[\d.]+[eE]\+?\d{3}')
# The beginnings of the formats that Perfetto takes.
_SHOWN: Final = re.compile(
    # JSON, archives, perf, Fuchsia, Java, Perfetto's own; then texts: systrace, ninja, Instruments, ART, logcat, perf.
    rb"\s*(?:\xef\xbb\xbf)?[{\[]|PK\x03\x04|.{257}ustar|PERFILE2|SIMPLEPERF|\x10\0\x04FxT|JAVA PROFILE|\n"
    rb"|\s*(?:[#<*]|TRACE:|SLOW|-{5}|\d\d-\d\d |\d{4}-\d\d-\d\d)|\S[^\n]* \d+\.\d+: ",
    re.DOTALL,
)


class Prepared(Struct, frozen=True):
    """A local file, and the report of the merge that made it, if one did."""

    path: Path
    merge: MergeReport | None = None


def prepare(
    inputs: Sequence[str],  # files, folders, globs and URLs
    folder: Path,  # for temporary files
    output: str | None = None,  # the merged trace; in ``folder`` by default
    *,
    overwrite: bool = False,  # ``output`` may be replaced
    event_args: str = "all",  # see `merge_traces`; one file is rewritten unless this is "all"
    progress: Callable[[float, str], None] | None = None,
) -> Prepared:
    """Return the file to open. One file is opened as it is; several, and folders, are merged. Raises TracekitError."""
    if len(inputs) == 1 and event_args == "all":
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
        report = merge_traces(
            target, inputs, overwrite=overwrite, args=event_args, progress=progress, executor=executor
        )
    return Prepared(Path(target), report)


def mended(prepared: Prepared, folder: Path, progress: Callable[[float, str], None] | None = None) -> Prepared:
    """Return a trace as it is, or a repaired copy in a folder where Perfetto would refuse it or never end.

    NaN in a counter makes Perfetto's engine loop endlessly. A cut object, a cut gzip file and some escapes make it refuse the
    whole trace. The trace is read completely, unless a merge has written it. Raises TracekitError if it cannot be read or
    repaired, or Perfetto could not show it.
    """
    if prepared.merge is not None or not _is_damaged(str(prepared.path), progress):
        return prepared
    target = folder / "repaired.json.gz"
    return Prepared(target, merge_traces(str(target), [str(prepared.path)], progress=progress))


def _is_damaged(path: str, progress: Callable[[float, str], None] | None) -> bool:
    if packing_of(_head(path)) == "zstd":
        return True
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
    if packing_of(head) != "gzip":
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return head
