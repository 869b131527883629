"""The traces that the user named, and whose they are."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError
from tracekit.formats.kineto import rank_in_name, rank_of_header
from tracekit.formats.rank_trace import BASE_TIME_KEY
from tracekit.formats.trace_files import trace_files
from tracekit.storage import basename, is_remote, same_file

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["base_of", "find_traces", "merged_ranks", "stated_rank"]


def find_traces(patterns: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the files that the patterns stand for, each once, and whether it was named itself (not by folder or glob).

    Raises:
        ConfigError: Nothing was named.
        StorageError: A pattern stands for nothing.
    """
    if not patterns:
        raise ConfigError("no trace is named: give files, folders, globs or URLs")
    found: dict[str, bool] = {}
    places: dict[str, str] = {}
    for pattern in patterns:
        files = trace_files(pattern, pipes=True)  # each trace is read once
        named = len(files) == 1 and same_file(files[0], pattern)
        for path in files:
            key = path if is_remote(path) else str(PurePath(path))
            # Two names of one file are one, also where one is a link.
            key = places.setdefault(path if is_remote(path) else str(Path(path).resolve()), key)
            found[key] = found.get(key, False) or named
    # A damaged trace beside its recovered copy would be counted twice.
    return [
        (path, named)
        for path, named in sorted(found.items())
        if named or not any(copy != path and copy in found for copy in _recovered(path))
    ]


def _recovered(path: str) -> list[str]:
    return [re.sub(r"(\.json(?:\.gz)?)$", rf".recovered{ending}", path) for ending in (".json", ".json.gz")]


def stated_rank(
    path: str, header: dict[str, Any], metadata: dict[str, Any], composer_ranks: Collection[int] = ()
) -> int | None:
    """Return the rank that a trace states, inside or by its name; None when it does not.

    Args:
        path: The file.
        header: The keys beside its events.
        metadata: Those of a rank trace.
        composer_ranks: The ranks in Composer's metadata; several where Composer has merged.
    """
    own = metadata.get("rank")
    if isinstance(own, int) and not isinstance(own, bool) and own >= 0:
        return own
    stated = rank_of_header(header)
    if stated is not None:
        return stated[0]
    return next(iter(composer_ranks)) if len(composer_ranks) == 1 else rank_in_name(basename(path))


def merged_ranks(header: dict[str, Any]) -> dict[Any, int] | None:
    """Return whose each ``pid`` of a merged trace is; None when the header is not that of one."""
    own = header.get("tracekit")
    if not isinstance(own, dict) or "merge" not in own:
        return None
    table = own.get("processes")
    return {
        entry["pid"]: entry["rank"]
        for entry in (table if isinstance(table, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("pid"), int) and isinstance(entry.get("rank"), int)
    }


def base_of(header: dict[str, Any], metadata: dict[str, Any]) -> int:
    """Return what the times of a file are relative to, ns since the epoch; 0 where it does not tell."""
    viztracer = header.get("viztracer_metadata")
    base = metadata.get(BASE_TIME_KEY, header.get(BASE_TIME_KEY))
    if base is None and isinstance(viztracer, dict):
        base = viztracer.get(BASE_TIME_KEY)
    if isinstance(base, str) and base.isascii() and base.isdecimal() and len(base) < 20:
        base = int(base)
    if isinstance(base, float) and 0 < base < 2**62:
        # A double holds it to 256 ns, and Kineto's bases are whole seconds.
        base = round(base / 1e9) * 10**9
    return base if isinstance(base, int) and not isinstance(base, bool) and 0 < base < 2**62 else 0
