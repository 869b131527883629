"""Load the corpus of commit a64288a and the results that later versions must keep.

``python -m tests.pinned_corpus`` writes the expectations again, for a change that is meant.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.real_traces import OWN
from tracekit import merge_traces, recover_trace
from tracekit.cli import main
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from tests.perfetto import Engine, LoadedTrace

__all__ = [
    "ARCHIVES",
    "CORPUS",
    "MERGES",
    "SETS",
    "checks",
    "corpus_files",
    "expected",
    "merge",
    "rows",
    "totals",
    "unpack",
]

CORPUS = OWN / "a64288a"
EXPECTED = CORPUS / "expected.json.gz"

SETS = (
    "attempts", "clocks", "crashes", "damaged", "dumps", "everything", "full", "kept", "loader", "private", "rotated",
    "sample", "spooled", "torch", "uploaded", "windows",
)  # fmt: skip
"""Folders that hold the inputs of one merge."""

MERGES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in SETS},
    "attempts, merged": ("merged/attempts.json.gz",),
    "clocks, merged": ("merged/clocks.json.gz",),
    "clocks, merged, pftrace": ("merged/clocks.pftrace",),
    "crashes, merged": ("merged/crashes.json",),
    "everything, merged": ("merged/everything.json",),
    "everything, merged, converted": ("merged/everything.pftrace.gz",),
    "everything, merged, trimmed": ("merged/everything-trimmed.json.gz",),
    "flight recorder of torch, merged": ("merged/flight.json.gz",),
    "gloo, merged": ("merged/gloo.json.gz",),
    "killed, recovered": ("merged/killed.json",),
    "loader, merged": ("merged/loader.json.gz",),
    "rotated, merged": ("merged/rotated.json.gz",),
    "torch, merged": ("merged/torch.json.gz",),
    "torch, merged, pftrace": ("merged/torch.pftrace.gz",),
    "torch, rank 1 merged": ("merged/torch-rank1.json.gz",),
    "torch, rank 1 merged before": ("merged/torch-rank1.json.gz", "torch/rank0.json", "torch/torch-rank0-1.json.gz"),
    "attempts and torch, merged before": ("merged/attempts.json.gz", "merged/torch-rank1.json.gz"),
    "attempts, merged before, and another rank": ("merged/attempts.json.gz", "kept/rank1-part03.json"),
    "killed, recovered, and cut": ("merged/killed.json", "crashes/cut-rank1.json"),
}
"""Inputs by what they are; where a set is named, all of its files."""

ARCHIVES = {"torch": "merged/torch.zip", "windows": "merged/windows.tar"}
"""Archives that a64288a made of a set."""

SLICES = """
select slice.id, slice.ts, slice.dur, slice.depth, coalesce(slice.name, ''), coalesce(slice.category, ''),
       coalesce(process.name, other.name, ''), coalesce(nullif(track.name, ''), thread.name, '')
from slice join track on track.id = slice.track_id
left join thread_track on thread_track.id = slice.track_id left join thread using (utid)
left join process on process.upid = thread.upid
left join process_track on process_track.id = slice.track_id left join process other on other.upid = process_track.upid
"""
COUNTERS = """
select counter.ts, track.name, counter.value, coalesce(process.name, '')
from counter join counter_track track on track.id = counter.track_id
left join process_counter_track on process_counter_track.id = counter.track_id left join process using (upid)
"""
FLOWS = "select slice_out, slice_in from flow"

_RANK = re.compile(r"rank (\d+)")
_PART_OF_RANK = re.compile(r"(?:attempt|worker) \d+")
_NUMBERED_THREAD = re.compile(r"thread \d+ \((.*?)\)")


def unpack(folder: Path) -> Path:
    """Unpack the corpus into a folder, and return it."""
    for archive in CORPUS.glob("*.tar.gz"):
        with tarfile.open(archive) as files:
            files.extractall(folder, **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    return folder


def corpus_files(folder: Path) -> list[Path]:
    """Return every trace of the unpacked corpus."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".jsonl")


def merge(corpus: Path, name: str, output: Path) -> int:
    """Merge one entry of `MERGES`; return the base time of the output."""
    inputs = [str(corpus / each) for each in MERGES[name]]
    flows = name == "torch" and output.suffix == ".json"
    return merge_traces(str(output), inputs, collective_flows=flows, overwrite=True).base_time_ns


def rows(trace: LoadedTrace, base_ns: int = 0) -> dict[str, Any]:
    """Return what Perfetto shows of a merged trace: no pids, no tids, times from the first slice or counter on.

    The instants by which a merge shows the clock of each rank are left out.
    """
    slices = [row for row in trace.rows(SLICES) if not (row[5] == "clock" and row[4].startswith("clock: "))]
    counters = trace.rows(COUNTERS)
    first_ns = min([row[1] for row in slices] + [row[0] for row in counters], default=0)
    shown = {
        number: [*_place(process), _thread(thread), name, category, ts - first_ns, duration, depth]
        for number, ts, duration, depth, name, category, process, thread in slices
    }
    return {
        "first_ns": base_ns + first_ns,
        "slices": sorted(shown.values()),
        "counters": sorted([*_place(process), name, ts - first_ns, value] for ts, name, value, process in counters),
        "flows": sorted([shown[source], shown[target]] for source, target in trace.rows(FLOWS)),
        "errors": sorted([name, value] for name, _, _, value in trace.errors()),
    }


def _place(process: str) -> tuple[int, str]:
    """Return the rank of a process, and which of its attempts or workers it is."""
    rank = _RANK.match(process)
    part = _PART_OF_RANK.search(process)
    return int(rank[1]) if rank else -1, part[0] if part else ""


def _thread(name: str) -> str:
    """Return the name of a thread without its id."""
    return _NUMBERED_THREAD.sub(r"\1", name)


def checks(corpus: Path, path: Path, output: Path) -> dict[str, Any]:
    """Return what ``tracekit validate`` and `recover_trace` say of a file, as counts by kind."""
    reports = _printed("validate", str(path))
    found: dict[str, Any] = {
        "validate": [[report[key] for key in ("kind", "form", "events", "counts")] for report in reports["files"]]
        or "refused"
    }
    if path.suffix in {".json", ".gz"} and ".pftrace" not in path.name:
        try:
            recovery = recover_trace(path, output, overwrite=True)
        except TracekitError:
            return {**found, "recover": "refused"}
        kept = ("form", "compressed", "events", "lost_parts", "lost_events", "lost_bytes", "closed", "repairs", "whole")
        found["recover"] = {
            **{name: getattr(recovery, name) for name in kept},
            "tail": None if recovery.tail is None else recovery.tail.length_bytes,
            "damages": len(recovery.damages),
            "open": sorted([slice_.name, slice_.thread, slice_.open_ns] for slice_ in recovery.open_slices),
        }
    return found


def totals(corpus: Path, name: str) -> dict[str, Any]:
    """Return the totals that a summary of a set states."""
    report = _printed("summary", *(str(corpus / each) for each in MERGES[name]))
    return {
        "files": len(report["files"]),
        "windows": [
            int(count) for note in report["notes"] for count in re.findall(r"of each of (\d+) recording windows", note)
        ],
        "ranks": [
            [rank["rank"], rank["span_ns"], rank["steps"] and [rank["steps"]["count"], rank["steps"]["total_ns"]]]
            for rank in report["ranks"]
        ],
        "markers": sorted(
            [row["rank"], row["name"], row["category"], row["count"], row["total_ns"], row["self_ns"]]
            for row in report["markers"]
        ),
    }


def _printed(verb: str, *inputs: str) -> dict[str, Any]:
    """Return the JSON document that a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        main([verb, "--json", *inputs])
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def expected() -> dict[str, Any]:
    """Return the expectations for each merge, file and summary."""
    with gzip.open(EXPECTED, "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _find_all(engine: Engine) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        corpus, output = unpack(Path(scratch) / "corpus"), Path(scratch) / "out.json"
        merges, packed, recovered = {}, {}, {}
        for name in SETS:
            merge(corpus, name, output.with_suffix(".pftrace"))
            with engine.load(output.with_suffix(".pftrace")) as trace:
                packed[name] = rows(trace)
        for name in MERGES:
            base_ns = merge(corpus, name, output)
            with engine.load(output) as trace:
                merges[name] = rows(trace, base_ns)
        files = {}
        for path in corpus_files(corpus):
            output.unlink(missing_ok=True)
            key = path.relative_to(corpus).as_posix()
            files[key] = checks(corpus, path, output)
            if output.exists():
                with engine.load(output) as trace:
                    recovered[key] = rows(trace)
        summaries = {name: totals(corpus, name) for name in SETS}
    return {"merges": merges, "pftrace": packed, "files": files, "recovered": recovered, "summaries": summaries}


def _main() -> None:
    from tests.perfetto import Engine

    engine = Engine()
    text = json.dumps(_find_all(engine), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    engine.close()
    EXPECTED.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    _main()
