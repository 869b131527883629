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
    assign_keys,
    check_claims,
    find_ranks,
    identities_of,
    select_ranks,
    told_ranks,
)
from tracekit.merge.scan.merged_tables import read_tables
from tracekit.merge.scan.probe import probe
from tracekit.storage import basename, file_identity, is_remote, open_read, without_secrets
from tracekit.traces.inputs import files_of, is_other_json, omission_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

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
    for path, named in files_of(patterns):
        identity = file_identity(path)
        if identity != output_identity:
            name_and_file = os.path.basename(path), identity  # noqa: PTH119 - a thousand of them
            plain = path if is_remote(path) else str(PurePath(path))  # one spelling of several
            first, was_named = found.get(name_and_file, (plain, False))
            found[name_and_file] = first, was_named or named
        elif named:
            raise ConfigError(f"{without_secrets(path)}: the output is one of the inputs; choose another name with -o")
    if not found:
        raise ConfigError("nothing to merge: the output itself is the only trace there")
    return sorted(found.values())


def gather(
    files: Sequence[tuple[str, bool]],
    ranks: Mapping[str, int],
    progress: Callable[[str, int], None] | None = None,
    make_scanner: Callable[[list[str]], Scanner] = lambda _: probe,
    select: Selection | None = None,
    *,
    store: ScratchStore,
    may_pass: bool = True,
) -> tuple[list[Input], list[_Omission]]:
    """Scan every file, and determine its rank.

    Return the inputs in the order of the output, and the omitted files. Do not scan files of other ranks than the
    wanted ones if their head states the rank.
    """
    by_hand = RanksByHand(ranks)
    wanted = None if select is None else select.ranks
    while True:
        omissions: list[_Omission] = []
        chosen, unread = _choose(files, by_hand, wanted, omissions)
        scanner = make_scanner([path for path, _ in chosen])
        inputs, errors = _scan_all(chosen, {path for path, _ in files}, scanner, progress, omissions, store)
        if not inputs and not unread:
            raise errors[0] if errors else MergeError(f"{omissions[0].path}: {omissions[0].reason}")
        if find_ranks(inputs, by_hand, unread):
            break
        wanted = None
    others = list(map(without_secrets, unread))
    if select is not None and select.ranks is not None:
        inputs, unwanted = select_ranks(inputs, select)
        others += [item.shown for item in unwanted]
    omissions += [LeftOut(path, "rank", None) for path in others]
    return _settled(inputs, omissions, may_pass=may_pass), omissions


def _settled(inputs: list[Input], omissions: list[_Omission], *, may_pass: bool) -> list[Input]:
    """Sort inputs with known ranks, drop copies, and identify their processes. Return the remaining inputs."""
    inputs = _without_copies(sorted(inputs, key=lambda item: item.order), omissions)
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
    files: Sequence[tuple[str, bool]], by_hand: RanksByHand, wanted: Collection[int] | None, omissions: list[_Omission]
) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return the files to scan, and the files of unwanted ranks according to their heads."""
    present = {path for path, _ in files}
    copies = {path.removesuffix(PERFETTO_COPY) for path in present if path.endswith(PERFETTO_COPY)}
    xprof_folders = {path.removesuffix(basename(path)) for path in present if copies and host_in_name(path)}
    chosen: list[tuple[str, bool]] = []
    unread: list[str] = []
    for path, named in files:
        reason = "" if named else omission_reason(path, present)
        is_copy = basename(path) == PERFETTO_COPY and path.removesuffix(PERFETTO_COPY) in xprof_folders
        if is_copy and not named:
            reason = reason or "JAX's copy of the trace beside it"
        if reason:
            omissions.append(OmissionReport(without_secrets(path), reason, harmless=True))
            continue
        ranks = None if wanted is None else told_ranks(path, by_hand)
        if wanted is None or ranks is None or not ranks.isdisjoint(wanted):
            chosen.append((path, named))
        else:
            unread.append(path)
    return chosen, unread


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
            item = scanner(path, None if progress is None else partial(progress, path)).keep(store)
        except RecursionError:  # its header cannot be pickled, here or in a worker
            nested = TraceFormatError(without_secrets(path), "what it says beside its events is nested too deeply")
            omissions.append(OmissionReport(nested.path, nested.reason, harmless=False))
            errors.append(nested)
            continue
        except (TraceFormatError, StorageError) as error:
            missing = None if named else _missing_segments(path, present)
            if missing is not None:
                omissions += missing
                continue
            harmless = not named and is_other_json(path)
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


def _missing_segments(path: str, present: set[str]) -> list[OmissionReport] | None:
    """Return the segments that the index of a recording lists and that are not there; None for another file."""
    if not path.endswith(INDEX_SUFFIX):
        return None
    try:
        with open_read(path) as file:
            listed = listed_segments(decode_json(file.read(_MAX_PLAIN_JSON_BYTES)), path)
    except (TraceFormatError, StorageError, ValueError, OSError):
        return None
    if listed is None:
        return None
    missing = [(segment, state) for segment, state in listed if segment not in present]
    return [
        OmissionReport(without_secrets(name), _SEGMENT_STATES.get(state, _NOT_THERE), False) for name, state in missing
    ]


def _without_copies(inputs: list[Input], omissions: list[_Omission]) -> list[Input]:
    """Drop files with the same events as another file, such as the packed copy of a trace."""
    kept: dict[tuple[Any, ...], list[Input]] = {}
    digest = cache(content_digest)
    result: list[Input] = []
    for item in inputs:
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
