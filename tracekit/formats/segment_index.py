"""The index of a recording on a remote storage: a small object next to its segments that lists them.

A reader can do without it, since each segment opens and merges alone; the index shows a missing one.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["INDEX_KEY", "INDEX_SUFFIX", "Segment", "index_document", "index_name", "listed_segments"]

INDEX_KEY: Final = "tracekit_index"
INDEX_SUFFIX: Final = ".index.json"
_VERSION: Final = 1
# The fields by which the segments of one recording differ, with the text that usually precedes them.
_VARYING: Final = re.compile(r"[-_.]?(?:part|dump|batch|epoch|ep|b|w|p)?\{(?:part|dump|batch|epoch)[^{}]*\}")


@dataclass(slots=True)
class Segment:
    """One file of a recording.

    Attributes:
        number: Its number in the spool, from 0.
        file: Name in the spool folder, as it is written: plain.
        url: The destination; a name that ends with ``.gz`` is packed first.
        state: "open" while it is written (or for ever, when the process was killed), "waiting", "delivered", "dropped".
        events: How many events it holds.
        start_ns: From when on, ns since the epoch; 0 if not known.
        end_ns: Until when.
        size_bytes: Its size as it was delivered.
        sha256: Of what was delivered.
    """

    number: int
    file: str
    url: str
    state: str = "open"
    events: int = 0
    start_ns: int = 0
    end_ns: int = 0
    size_bytes: int = 0
    sha256: str = ""


def index_name(template: str) -> str:
    """Return the template of the index's name, for that of the segments' names.

    Example::

        s3://bucket/{run_id}/rank{rank}-part{part:04d}.json.gz  ->  s3://bucket/{run_id}/rank{rank}.index.json
    """
    folder, slash, name = template.rpartition("/")
    stem = _VARYING.sub("", name).removesuffix(".gz").removesuffix(".json").strip("-_.")
    while _VARYING.search(folder):  # a folder for every window: the index is above them
        folder, slash, _ = folder.rpartition("/")
    return f"{folder}{slash}{stem or 'trace'}{INDEX_SUFFIX}"


def index_document(
    header: Mapping[str, Any], segments: Iterable[Segment], index_url: str, *, complete: bool
) -> dict[str, Any]:
    """Describe what a recording has written.

    Args:
        header: Whose it is; see `Spool`.
        segments: Its files.
        index_url: The destination of the index; names are relative to it.
        complete: The recording has ended, and everything that it wrote is there.
    """
    folder = index_url.rpartition("/")[0]
    finished = [segment for segment in segments if segment.state != "open"]
    dropped = [segment for segment in finished if segment.state == "dropped"]
    return {
        INDEX_KEY: _VERSION,
        **{key: header.get(key) for key in ("id", "run_id", "rank", "attempt", "pid", "tracekit_version")},
        "complete": complete and not dropped,
        "segments": [
            {
                "name": posixpath.relpath(f"/{segment.url}", f"/{folder}"),
                "state": "uploaded" if segment.state == "delivered" else segment.state,
                "events": segment.events if segment.end_ns else None,
                "start_ns": segment.start_ns,
                "end_ns": segment.end_ns,
                "bytes": segment.size_bytes,
                "sha256": segment.sha256 or None,
            }
            for segment in finished
        ],
        "dropped": {"segments": len(dropped), "events": sum(segment.events for segment in dropped)},
    }


def listed_segments(document: Any, index_url: str) -> list[tuple[str, str]] | None:
    """Return path and state of every segment that an index lists; None if it is not an index.

    Args:
        document: The index.
        index_url: Its location.
    """
    if not isinstance(document, dict) or INDEX_KEY not in document:
        return None
    folder, slash, _ = index_url.rpartition("/")
    segments = document.get("segments")
    return [
        (f"{folder}{slash}{segment['name']}", str(segment.get("state")))
        for segment in (segments if isinstance(segments, list) else [])
        # A name that leads out of the folder was not written by tracekit.
        if isinstance(segment, dict) and isinstance(segment.get("name"), str) and ".." not in segment["name"].split("/")
    ]
