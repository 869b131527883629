"""Find the traces that the user named, and the rank and base time that each of them states."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.formats.decimal_time import whole_number
from tracekit.formats.kineto import rank_in_name, rank_of_header
from tracekit.formats.rank_trace import BASE_TIME_KEY, COMPANION_EVENT, COMPOSER_RANK_EVENT, METADATA_EVENT
from tracekit.formats.trace_files import TRACE_SUFFIXES, trace_files
from tracekit.formats.xprof import ANCHOR_EVENT
from tracekit.storage import basename, is_remote, printable_name, same_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

ANONYMOUS: Final = ".anonymous.json"
"""The ending of the copies of `tracekit anonymise` in place of that of the trace, without ``.gz``."""

CERTAIN_RANKS: Final = frozenset({METADATA_EVENT, "distributedInfo.rank"})
"""The sources of a rank that nothing outside the file can change."""

_ENDINGS: Final = (".json.gz.tmp", ".json.tmp", ".json.zst", ".json.gz", ".json", ".gz")


def find_traces(patterns: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the files that the patterns match, each once, and whether it was named itself (not by folder or glob).

    Raises:
        ConfigError: Nothing was named.
        StorageError: A pattern matches nothing.
    """
    if not patterns:
        raise ConfigError("no trace is named: give files, folders, globs or URLs")
    found: dict[str, bool] = {}
    places: dict[str, str] = {}
    for pattern in patterns:
        files = trace_files(pattern, flight_dumps=True, pipes=True)  # each trace is read once
        named = len(files) == 1 and same_file(files[0], pattern)
        for path in files:
            key = path if is_remote(path) else str(PurePath(path))
            # Two names of one file are one, also where one is a link.
            key = places.setdefault(path if is_remote(path) else str(Path(path).resolve()), key)
            found[key] = found.get(key, False) or named
    return [(path, named) for path, named in sorted(found.items()) if named or not omission_reason(path, found)]


def omission_reason(path: str, files: Collection[str]) -> str:
    """Return the reason why the events of a file are those of another one of these files; empty if they are not."""
    if any(copy in files for copy in recovered_copies(path)):
        return "its recovered copy is merged instead"
    stem, is_anonymous, _ = path.rpartition(ANONYMOUS)
    if is_anonymous and any(f"{stem}{suffix}" in files for suffix in TRACE_SUFFIXES):
        return "the trace that it is an anonymous copy of is merged instead"
    return ""


def recovered_copies(path: str) -> tuple[str, str]:
    """Return the names that `tracekit recover` gives the copy of a trace: plain, and packed."""
    path = path.split("?", 1)[0] if is_remote(path) else path
    ending = next((ending for ending in _ENDINGS if path.endswith(ending) and basename(path) != ending), "")
    stem = path.removesuffix(ending)
    return f"{stem}.recovered.json", f"{stem}.recovered.json.gz"


def rank_inside(
    header: dict[str, Any], metadata: dict[str, Any], composer_ranks: Collection[int] = ()
) -> tuple[int, str] | None:
    """Return the rank that a trace states inside, and the event or key that states it; None when none does.

    Args:
        header: The keys next to its events.
        metadata: Those of a rank trace.
        composer_ranks: The ranks in Composer's metadata; several where Composer has merged.
    """
    own = whole_number(metadata.get("rank"))
    if own is not None:
        return own, METADATA_EVENT
    found = rank_of_header(header)
    if found is None and len(composer_ranks) == 1:
        found = next(iter(composer_ranks)), COMPOSER_RANK_EVENT
    return found


def stated_rank(
    path: str, inside: tuple[int, str] | None, companions: Mapping[str, int] | None = None, anchored: int | None = None
) -> tuple[int, str] | None:
    """Return the rank of a trace, and what states it; None when nothing does.

    Args:
        path: The file.
        inside: The result of `rank_inside`.
        companions: The rank of each file that a rank trace names as a trace of its process.
        anchored: The rank in the clock anchor of a trace of XLA's profiler.
    """
    name = printable_name(path)
    if inside is not None and inside[1] in CERTAIN_RANKS:
        return inside
    if anchored is not None:
        return anchored, ANCHOR_EVENT
    if companions and name in companions:
        return companions[name], COMPANION_EVENT
    in_name = rank_in_name(name)
    return inside or (None if in_name is None else (in_name, "file name"))


def base_of(header: dict[str, Any], metadata: dict[str, Any]) -> int:
    """Return the base of the times of a file in ns since the epoch; 0 if the file does not state it."""
    viztracer = header.get("viztracer_metadata")
    base = metadata.get(BASE_TIME_KEY, header.get(BASE_TIME_KEY))
    if base is None and isinstance(viztracer, dict):
        base = viztracer.get(BASE_TIME_KEY)
    if isinstance(base, float) and 0 < base < 2**62:
        # A double holds it to 256 ns, and Kineto's bases are whole seconds.
        base = round(base / 1e9) * 10**9
    return whole_number(base, 2**62) or 0
