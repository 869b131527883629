"""The index of a recording on a remote storage: a small object next to its segments, with a list of them.

Readers do not need it, because each segment can be opened and merged alone. The index shows missing segments.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INDEX_KEY: Final = "tracekit_index"
INDEX_SUFFIX: Final = ".index.json"
_VERSION: Final = 1
# The fields that differ between the segments of one recording, with the text that usually precedes them.
_VARYING: Final = re.compile(r"[-_.]?(?:part|dump|batch|epoch|ep|b|w|p)?\{(?:part|dump|batch|epoch)[^{}]*\}")


@dataclass(slots=True)
class Segment:
    """One file of a recording.

    Attributes:
        number: Its number in the spool, from 0.
        file: Name of the uncompressed file in the spool folder.
        url: The destination. If the name ends with ``.gz``, the segment is compressed first.
        state: "open" while it is written (it stays "open" if the process is killed), "waiting", "delivered" or
            "dropped".
        start_ns: Start in ns since the epoch; 0 if unknown.
        end_ns: End in ns since the epoch; 0 if unknown.
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
    """Return the name template of the index for the name template of the segments.

    Example::

        s3://bucket/{run_id}/rank{rank}-part{part:04d}.json.gz  ->  s3://bucket/{run_id}/rank{rank}.index.json
    """
    folder, slash, name = template.rpartition("/")
    stem = _VARYING.sub("", name).removesuffix(".gz").removesuffix(".json").strip("-_.")
    while _VARYING.search(folder):  # one folder per window: put the index above them
        folder, slash, _ = folder.rpartition("/")
    return f"{folder}{slash}{stem or 'trace'}{INDEX_SUFFIX}"


def index_document(
    header: Mapping[str, Any], segments: Iterable[Segment], index_url: str, *, complete: bool
) -> dict[str, Any]:
    """Return the index of a recording.

    Args:
        header: Identity of the recording; see `Spool`.
        segments: The files of the recording.
        index_url: Destination of the index. Names are relative to it.
        complete: True if the recording has ended and all its segments were delivered.
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
    """Return path and state of every segment in an index, or None if the document is not an index."""
    if not isinstance(document, dict) or INDEX_KEY not in document:
        return None
    folder, slash, _ = index_url.rpartition("/")
    segments = document.get("segments")
    return [
        (f"{folder}{slash}{segment['name']}", str(segment.get("state")))
        for segment in (segments if isinstance(segments, list) else [])
        # tracekit writes no names that lead out of the folder.
        if isinstance(segment, dict) and isinstance(segment.get("name"), str) and ".." not in segment["name"].split("/")
    ]
