"""What is to be merged: from the paths that the user named to scanned inputs, each with its rank."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, MergeError, StorageError, TraceFormatError
from tracekit.formats.segment_index import INDEX_SUFFIX, listed_segments
from tracekit.formats.trace_event import decode_json
from tracekit.formats.trace_files import TRACE_SUFFIXES, trace_files
from tracekit.formats.trace_stream import content_digest
from tracekit.formats.xprof import PERFETTO_COPY, host_in_name
from tracekit.merge.input import Input, Omission
from tracekit.merge.kept_scan import KeptScan
from tracekit.merge.processes import assign_keys, check_claims
from tracekit.merge.ranks import RanksByHand, UnknownRankError, find_ranks, select_ranks, told_ranks
from tracekit.merge.scan import scan
from tracekit.spill import ScratchError
from tracekit.storage import basename, file_identity, is_remote, open_read, same_file, size_bytes, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from tracekit.merge.input_scan import InputScan
    from tracekit.merge.selection.selection import Selection
    from tracekit.merge.shelf import Shelf

    Scanner = Callable[[str, Callable[[int], None] | None], InputScan]

__all__ = ["SUFFIXES", "find_inputs", "gather"]

SUFFIXES: Final = TRACE_SUFFIXES
_MAX_PLAIN_JSON_BYTES: Final = 16 * 1024 * 1024


def find_inputs(output: str, patterns: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the files that the patterns stand for, each once, and whether it was named itself (not by folder or glob).

    Raises:
        ConfigError: Nothing was named, or the output is one of the inputs.
        StorageError: A pattern stands for nothing.
    """
    if not patterns:
        raise ConfigError("nothing to merge: name trace files, folders, globs or URLs")
    found: dict[str, bool] = {}
    for pattern in patterns:
        files = trace_files(pattern, flight_dumps=True)
        named = len(files) == 1 and same_file(files[0], pattern)
        for path in files:
            if same_file(path, output):
                if named:
                    raise ConfigError(
                        f"{without_secrets(path)}: the output is one of the inputs; choose another name with -o"
                    )
                continue
            key = _plainly(path)
            found[key] = found.get(key, False) or named
    unique: list[tuple[str, bool]] = []
    seen: set[tuple[str, Hashable]] = set()
    for path, named in found.items():
        identity = os.path.basename(path), file_identity(path)  # noqa: PTH119 - a thousand of them
        if identity not in seen:
            seen.add(identity)
            unique.append((path, named))
    if not unique:
        raise ConfigError("nothing to merge: the output itself is the only trace there")
    return sorted(unique)


def _plainly(path: str) -> str:
    """Return a path as `PurePath` writes it, so that two spellings are one."""
    if is_remote(path) or (os.sep == "/" and "//" not in path and "./" not in path):
        return path
    return str(PurePath(path))


def gather(
    files: Sequence[tuple[str, bool]],
    ranks: Mapping[str, int],
    progress: Callable[[str, int], None] | None = None,
    make_scanner: Callable[[list[str]], Scanner] | None = None,
    select: Selection | None = None,
    *,
    shelf: Shelf,
    read_all: bool = False,
) -> tuple[list[Input], list[Omission]]:
    """Scan every file and find out its rank.

    Args:
        files: As `find_inputs` returns them.
        ranks: Ranks given by hand, by path or file name.
        progress: Called with a path and the number of its bytes read.
        make_scanner: Makes what scans the files that are wanted; None: they are scanned here, one after the other.
        select: The ranks that are wanted; files of others are not scanned where their head tells whose they are.
        shelf: Where what is found is kept, but for a few numbers.
        read_all: Whether to scan them all the same.

    Returns:
        The inputs in the order of the output, and the files that are left out.

    Raises:
        MergeError: A rank is unknown, or two processes claim one.
        ConfigError: A rank is given by hand for a file that is not there.
        TraceFormatError: None of the files is a trace.
        StorageError: None of the files can be read.
    """
    omissions: list[Omission] = []
    present = {path for path, _ in files}
    xprof_folders = {path.removesuffix(basename(path)) for path in present if host_in_name(path)}
    wanted = select is not None and select.ranks is not None
    by_hand = RanksByHand(ranks)
    unread: list[str] = []
    chosen: list[tuple[str, bool]] = []
    for path, named in files:
        copies = {re.sub(r"(\.json(?:\.gz)?)$", rf".recovered{ending}", path) for ending in (".json", ".json.gz")} - {
            path
        }
        if not named and not present.isdisjoint(copies):
            omissions.append(Omission(without_secrets(path), "its recovered copy is merged instead", harmless=True))
            continue
        if not named and basename(path) == PERFETTO_COPY and path.removesuffix(PERFETTO_COPY) in xprof_folders:
            omissions.append(Omission(without_secrets(path), "JAX's copy of the trace beside it", harmless=True))
            continue
        if select is not None and wanted and not read_all:
            told = told_ranks(path, by_hand)
            if told is not None and not any(map(select.wants_rank, told)):
                unread.append(path)
                continue
        chosen.append((path, named))
    scanner = scan if make_scanner is None else make_scanner([path for path, _ in chosen])
    inputs, errors = _scan_all(chosen, present, scanner, progress, omissions, shelf)
    if not inputs and not unread:
        if errors:
            raise errors[0]
        raise MergeError(f"{omissions[0].path}: {omissions[0].reason}")
    try:
        find_ranks(inputs, by_hand, unread)
    except UnknownRankError:
        if not unread:
            raise
        # A rank trace that was not read may say whose file that is.
        return gather(files, ranks, progress, make_scanner, select, shelf=shelf, read_all=True)
    omissions += [Omission(without_secrets(path), "rank", harmless=True, requested=True) for path in unread]
    if select is not None and wanted:
        inputs, others = select_ranks(inputs, select)
        omissions += [Omission(item.scan.path, "rank", harmless=True, requested=True) for item in others]
    inputs.sort(key=lambda item: item.order)
    inputs = _without_copies(inputs, omissions)
    check_claims(inputs)
    assign_keys(inputs)
    return inputs, omissions


def _scan_all(
    files: list[tuple[str, bool]],
    present: set[str],
    scanner: Scanner,
    progress: Callable[[str, int], None] | None,
    omissions: list[Omission],
    shelf: Shelf,
) -> tuple[list[Input], list[TraceFormatError | StorageError]]:
    """Scan files, and add those that are left out to ``omissions``; returns the inputs, and why others cannot be read."""
    inputs: list[Input] = []
    errors: list[TraceFormatError | StorageError] = []
    for path, named in files:
        report = None if progress is None else lambda done, path=path: progress(path, done)
        try:
            found = _scanned(scanner, path, report, shelf)
        except ScratchError:
            raise
        except (TraceFormatError, StorageError) as error:
            listed = None if named else _listed(path)
            if listed is not None:
                omissions += _missing(listed, present)
                continue
            harmless = not (named or isinstance(error, _TooDeepError)) and _is_other_json(path)
            reason = error.reason if isinstance(error, TraceFormatError) else str(error)
            omissions.append(Omission(without_secrets(path), "no trace" if harmless else reason, harmless))
            errors.append(error)
            continue
        if len(found.composer_ranks) > 1 and not named:
            reason = "Composer's own merge of the traces beside it; name the file itself to merge it"
            omissions.append(Omission(without_secrets(path), reason, harmless=True))
            continue
        if found.kind == "merged" and not named:
            omissions.append(
                Omission(
                    without_secrets(path),
                    "the result of an earlier merge; name the file itself to merge it",
                    harmless=True,
                )
            )
            continue
        inputs.append(Input(path, found))
    return inputs, errors


class _TooDeepError(TraceFormatError):
    """A trace that is one, and of which too much is said."""


def _scanned(scanner: Scanner, path: str, report: Callable[[int], None] | None, shelf: Shelf) -> KeptScan:
    try:
        return KeptScan(scanner(path, report), shelf)
    except RecursionError:  # what it says cannot be pickled, here or in a worker
        raise _TooDeepError(without_secrets(path), "what it says beside its events is nested too deeply") from None


def _listed(path: str) -> list[tuple[str, str]] | None:
    """Return the segments that an index lists; None if the file is none."""
    if not path.endswith(INDEX_SUFFIX):
        return None
    try:
        with open_read(path) as file:
            return listed_segments(decode_json(file.read(_MAX_PLAIN_JSON_BYTES)), path)
    except (TraceFormatError, StorageError, ValueError, OSError):
        return None


def _missing(listed: list[tuple[str, str]], present: set[str]) -> list[Omission]:
    """Tell of the segments that an index lists and that are not there."""
    reasons = {
        "dropped": "was dropped while recording: the spool was full",
        "waiting": "had not been uploaded when the index was; tracekit upload finishes that",
    }
    return [
        Omission(
            without_secrets(path), reasons.get(state, "is listed in the index of its recording, and not there"), False
        )
        for path, state in listed
        if path not in present
    ]


def _is_other_json(path: str) -> bool:
    """Tell whether a file is whole, valid JSON that just is no trace."""
    try:
        if (size_bytes(path) or 0) > _MAX_PLAIN_JSON_BYTES:
            return False
        with open_read(path) as file:
            decode_json(file.read())
    except (ValueError, OSError, StorageError):
        return False
    return True


def _without_copies(inputs: list[Input], omissions: list[Omission]) -> list[Input]:
    """Leave out files that hold the same events as another one, such as a trace and its packed copy."""
    kept: dict[tuple[Any, ...], list[Input]] = {}
    digest = cache(content_digest)
    result: list[Input] = []
    for item in inputs:
        scan = item.scan
        if result and item.rank != result[-1].rank:
            kept.clear()  # they are in the order of the ranks
        same = (
            item.rank,
            scan.kind,
            item.pids,
            item.host,
            scan.bytes_read,
            scan.start_ns,
            scan.lowest_ns,
            scan.highest_ns,
            tuple(scan.phase_counts),
        )
        others = kept.setdefault(same, []) if scan.highest_ns is not None else []
        # Recordings of equal loops may agree in all of this, and differ in their names or values.
        original = next((other for other in others if digest(other.path) == digest(item.path)), None)
        if original is not None:
            omissions.append(Omission(scan.path, f"holds the same events as {original.scan.path}", harmless=True))
            continue
        others.append(item)
        result.append(item)
    return result
