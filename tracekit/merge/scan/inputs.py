"""Find and scan the inputs of a merge, and determine their ranks."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, MergeError, StorageError, TraceFormatError
from tracekit.formats.rank_trace import INDEX_SUFFIX, listed_segments
from tracekit.formats.trace_event import decode_json
from tracekit.formats.trace_stream import content_digest
from tracekit.formats.xprof import PERFETTO_COPY, host_in_name
from tracekit.merge.plan.plan import passes, stride_for, units_of
from tracekit.merge.plan.titles import order_ranks
from tracekit.merge.report import LeftOut, OmissionReport
from tracekit.merge.scan.identity import (
    RanksByHand,
    UnknownRankError,
    assign_keys,
    check_claims,
    find_ranks,
    identities_of,
    select_ranks,
    told_ranks,
)
from tracekit.merge.scan.merged_tables import read_tables
from tracekit.merge.scan.probe import probe
from tracekit.storage import basename, file_identity, is_remote, open_read, same_file, without_secrets
from tracekit.traces.inputs import is_other_json, omission_reason, trace_files

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from tracekit.merge.execute.scratch import ScratchStore
    from tracekit.merge.scan.input import Input
    from tracekit.merge.selection.selection import Selection

    Scanner = Callable[[str, Callable[[int], None] | None], Input]
    _Omission = OmissionReport | LeftOut


_MERGES: Final = {
    "composer": "Composer's own merge of the traces beside it",
    "merged": "the result of an earlier merge",
}
_NOT_THERE: Final = "is listed in the index of its recording, and not there"
_SEGMENT_STATES: Final = {
    "dropped": "was dropped while recording: the spool was full",
    "waiting": "had not been uploaded when the index was; tracekit upload finishes that",
}
_MAX_PLAIN_JSON_BYTES: Final = 16 * 1024 * 1024


def find_inputs(output: str, patterns: Sequence[str]) -> list[tuple[str, bool]]:
    """Return each file that matches a pattern, with True if the user named the file itself and not a folder or glob."""
    if not patterns:
        raise ConfigError("nothing to merge: name trace files, folders, globs or URLs")
    found: dict[tuple[str, Hashable], tuple[str, bool]] = {}
    output_identity = file_identity(output)
    for pattern in patterns:
        files = trace_files(pattern, flight_dumps=True)
        named = len(files) == 1 and same_file(files[0], pattern)
        for path in files:
            identity = file_identity(path)
            if identity == output_identity:
                if named:
                    raise ConfigError(
                        f"{without_secrets(path)}: the output is one of the inputs; choose another name with -o"
                    )
                continue
            name_and_file = os.path.basename(path), identity  # noqa: PTH119 - a thousand of them
            first, was_named = found.get(name_and_file, (_plainly(path), False))
            found[name_and_file] = first, was_named or named
    if not found:
        raise ConfigError("nothing to merge: the output itself is the only trace there")
    return sorted(found.values())


def _plainly(path: str) -> str:
    """Return a path as `PurePath` writes it, so that different spellings become equal."""
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
    store: ScratchStore,
    read_all: bool = False,
    may_pass: bool = True,
) -> tuple[list[Input], list[_Omission]]:
    """Scan every file, and determine its rank.

    Return the inputs in the order of the output, and the omitted files. Do not scan files of other ranks than the
    wanted ones if their head states the rank, unless ``read_all``.
    """
    omissions: list[_Omission] = []
    by_hand = RanksByHand(ranks)
    chosen, unread = _choose(files, by_hand, None if read_all else select, omissions)
    scanner = probe if make_scanner is None else make_scanner([path for path, _ in chosen])
    inputs, errors = _scan_all(chosen, {path for path, _ in files}, scanner, progress, omissions, store)
    if not inputs and not unread:
        if errors:
            raise errors[0]
        raise MergeError(f"{omissions[0].path}: {omissions[0].reason}")
    try:
        find_ranks(inputs, by_hand, unread)
    except UnknownRankError:
        if not unread:
            raise
        # A rank trace that was not read may contain the rank of that file.
        return gather(files, ranks, progress, make_scanner, select, store=store, read_all=True, may_pass=may_pass)
    others = list(map(without_secrets, unread))
    if select is not None and select.ranks is not None:
        inputs, unwanted = select_ranks(inputs, select)
        others += [item.shown for item in unwanted]
    omissions += [LeftOut(path, "rank", None) for path in others]
    return _settled(inputs, omissions, may_pass=may_pass), omissions


def _settled(inputs: list[Input], omissions: list[_Omission], *, may_pass: bool) -> list[Input]:
    """Sort inputs with known ranks, drop copies, and identify their processes. Return the remaining inputs."""
    inputs.sort(key=lambda item: item.order)
    inputs = _without_copies(inputs, omissions)
    stride = stride_for(inputs)
    if any(item.kind == "merged" for item in inputs):
        order = order_ranks(inputs)
        alone = {unit[0] for unit in units_of(inputs) if len(unit) == 1}
        for number, item in enumerate(inputs):
            item.passes = may_pass and number in alone and passes(item, stride) and order.fits(item)
            if item.kind == "merged" and not item.passes:
                read_tables(item)
    identities = list(map(identities_of, inputs))
    check_claims(identities)
    assign_keys(inputs, identities)
    return inputs


def _choose(
    files: Sequence[tuple[str, bool]], by_hand: RanksByHand, select: Selection | None, omissions: list[_Omission]
) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return the files to scan, and the files of unwanted ranks according to their heads."""
    present = {path for path, _ in files}
    copies = {path.removesuffix(PERFETTO_COPY) for path in present if path.endswith(PERFETTO_COPY)}
    xprof_folders = {path.removesuffix(basename(path)) for path in present if copies and host_in_name(path)}
    chosen: list[tuple[str, bool]] = []
    unread: list[str] = []
    for path, named in files:
        reason = None if named else omission_reason(path, present)
        if (
            not (named or reason)
            and basename(path) == PERFETTO_COPY
            and path.removesuffix(PERFETTO_COPY) in xprof_folders
        ):
            reason = "JAX's copy of the trace beside it"
        if reason:
            omissions.append(OmissionReport(without_secrets(path), reason, harmless=True))
        elif select is not None and select.ranks is not None and _is_unwanted(path, by_hand, select):
            unread.append(path)
        else:
            chosen.append((path, named))
    return chosen, unread


def _is_unwanted(path: str, by_hand: RanksByHand, select: Selection) -> bool:
    ranks = told_ranks(path, by_hand)
    return ranks is not None and not any(map(select.wants_rank, ranks))


def _scan_all(
    files: list[tuple[str, bool]],
    present: set[str],
    scanner: Scanner,
    progress: Callable[[str, int], None] | None,
    omissions: list[_Omission],
    store: ScratchStore,
) -> tuple[list[Input], list[TraceFormatError | StorageError]]:
    """Scan files. Return the inputs, and the errors of unreadable files. Add the omitted files to ``omissions``."""
    inputs: list[Input] = []
    errors: list[TraceFormatError | StorageError] = []
    for path, named in files:
        try:
            item = _scanned(scanner, path, progress, store)
        except (TraceFormatError, StorageError) as error:
            listed = None if named else _listed(path)
            if listed is not None:
                omissions += _missing(listed, present)
                continue
            harmless = not (named or isinstance(error, _TooDeepError)) and is_other_json(path)
            reason = error.reason if isinstance(error, TraceFormatError) else str(error)
            omissions.append(OmissionReport(without_secrets(path), "no trace" if harmless else reason, harmless))
            errors.append(error)
            continue
        merge = _MERGES.get("composer" if len(item.composer_ranks) > 1 else item.kind)
        if merge is None or named:
            inputs.append(item)
        else:
            omissions.append(
                OmissionReport(without_secrets(path), f"{merge}; name the file itself to merge it", harmless=True)
            )
    return inputs, errors


class _TooDeepError(TraceFormatError):
    """The file is a trace, but too deeply nested. A separate class, so that it does not count as other JSON."""


def _scanned(scanner: Scanner, path: str, progress: Callable[[str, int], None] | None, store: ScratchStore) -> Input:
    try:
        return scanner(path, None if progress is None else partial(progress, path)).keep(store)
    except RecursionError:  # its header cannot be pickled, here or in a worker
        raise _TooDeepError(without_secrets(path), "what it says beside its events is nested too deeply") from None


def _listed(path: str) -> list[tuple[str, str]] | None:
    if not path.endswith(INDEX_SUFFIX):
        return None
    try:
        with open_read(path) as file:
            return listed_segments(decode_json(file.read(_MAX_PLAIN_JSON_BYTES)), path)
    except (TraceFormatError, StorageError, ValueError, OSError):
        return None


def _missing(listed: list[tuple[str, str]], present: set[str]) -> list[OmissionReport]:
    return [
        OmissionReport(without_secrets(path), _SEGMENT_STATES.get(state, _NOT_THERE), False)
        for path, state in listed
        if path not in present
    ]


def _without_copies(inputs: list[Input], omissions: list[_Omission]) -> list[Input]:
    """Drop files with the same events as another file, such as the packed copy of a trace."""
    kept: dict[tuple[Any, ...], list[Input]] = {}
    digest = cache(content_digest)
    result: list[Input] = []
    for item in inputs:
        if result and item.rank != result[-1].rank:
            kept.clear()  # the inputs are sorted by rank
        same = item.rank, item.kind, item.digest, item.base_ns
        others = kept.setdefault(same, []) if item.highest_ns is not None else []
        # Recordings of equal loops may have the same key, but different names or values.
        original = next((other for other in others if digest(other.path) == digest(item.path)), None)
        if original is not None:
            omissions.append(OmissionReport(item.shown, f"holds the same events as {original.shown}", harmless=True))
            continue
        others.append(item)
        result.append(item)
    return result
