"""The merged trace in Perfetto's own format, held against the JSON of the same inputs in Perfetto's own engine."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.test_merge_golden import SINGLE
from tracekit.formats.trace_reader import UNSET, TraceReader, decode_or_none
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine, LoadedTrace

PROCESSES = "select upid, name, pid from process"
TRACKS = """
select track.id, track.name, track.parent_id, thread.name, thread.tid,
  coalesce(thread.upid, process_track.upid, process_counter_track.upid)
from track
left join thread_track on thread_track.id = track.id left join thread using (utid)
left join process_track on process_track.id = track.id
left join process_counter_track on process_counter_track.id = track.id
"""
SLICES = "select id, ts, dur, coalesce(name, ''), coalesce(category, ''), track_id, arg_set_id from slice"
ARGS = "select arg_set_id, key, display_value from args"
FLOWS = "select slice_out, slice_in from flow"
COUNTERS = "select track_id, ts, value from counter"

ESCAPE = re.compile(r"\\u([0-9a-f]{4})")

# Phases that the JSON importer has no place for.
UNSEEN = "STpFPNODvVcRstfe"

Shown = dict[str, Counter[Any]]


def shown(loaded: LoadedTrace, base_ns: int) -> Shown:
    """Return what a merged trace shows, in words that do not depend on its format."""
    names = {upid: (name or "", pid) for upid, name, pid in loaded.rows(PROCESSES)}
    tracks = {track: rest for track, *rest in loaded.rows(TRACKS)}
    groups = {parent for _, parent, *_ in tracks.values()}

    def place(track: int) -> tuple[str, str, str]:
        """Rank, process or group, and thread or track."""
        name, parent, thread, tid, upid = tracks[track]
        rank, _, process = names.get(upid, ("", 0))[0].partition(" · ")
        if tid is not None:
            return rank, process or rank, thread or f"thread {tid}"
        if track in groups:
            return rank, name, ""
        if parent is not None:
            process = tracks[parent][0]
        return rank, process or rank, name or ""

    args: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for arg_set, key, value in loaded.rows(ARGS):
        kind, _, rest = key.partition(".")
        # The JSON importer passes over what is empty.
        if kind in ("args", "debug") and not rest.startswith("trace_event") and value not in ("[]", "{}", "null"):
            # The engine writes dots in names of arguments as underlines, and leaves some escapes of JSON as they are.
            args[arg_set].add((rest.replace(".", "_"), ESCAPE.sub(lambda match: chr(int(match[1], 16)), value or "")))
    slices = {
        number: (
            ts + base_ns,
            dur,
            "" if name == "[No name]" else name,
            category,
            place(track),
            frozenset(args[arg_set]),
        )
        for number, ts, dur, name, category, track, arg_set in loaded.rows(SLICES)
    }
    return {
        "slices": Counter(slices.values()),
        "arrows": Counter((slices[out][:5], slices[in_][:5]) for out, in_ in loaded.rows(FLOWS)),
        "counters": Counter(
            (ts + base_ns, value, tracks[track][0], place(track)[:2]) for track, ts, value in loaded.rows(COUNTERS)
        ),
    }


def both(engine: Engine, tmp_path: Path, *inputs: Path) -> tuple[Shown, Shown]:
    """Merge inputs into both formats; return what JSON shows, and what the native trace shows."""
    merged = tmp_path / "merged.json"
    native = tmp_path / "merged.pftrace"
    for output in (merged, native):
        merge_traces(str(output), [str(path) for path in inputs])
    base_ns = json.loads(merged.read_bytes()).get("baseTimeNanoseconds", 0)
    with engine.load(merged) as loaded:
        expected = shown(loaded, base_ns)
    with engine.load(native) as loaded:
        assert loaded.errors() == []
        return expected, shown(loaded, 0)


def unseen(*inputs: Path) -> set[str]:
    """Return the names of events that the JSON importer passes over, or shows on no track of their process."""
    return {
        _text(event.name)
        for path in inputs
        for run in TraceReader(str(path)).runs()
        for event in run
        if event.ph is not UNSET and str(event.ph) in UNSEEN
    }


def _text(raw: Any) -> str:
    return str(decode_or_none(raw) or "")


def assert_same(expected: Shown, found: Shown, extra: set[str]) -> None:
    for what, rows in expected.items():
        missing, added = rows - found[what], found[what] - rows
        if what == "slices":
            missing = Counter({row: count for row, count in missing.items() if row[2] not in extra})
            added = Counter({row: count for row, count in added.items() if row[2] not in extra})
        if what == "arrows":
            added = Counter({row: count for row, count in added.items() if row[1][2] not in extra})
        assert (list(missing)[:2], list(added)[:2]) == ([], []), (what, missing.total(), added.total(), rows.total())


@pytest.mark.parametrize("name", SINGLE)
def test_a_native_trace_shows_what_the_json_shows(engine: Engine, traces: Path, tmp_path: Path, name: str) -> None:
    assert_same(*both(engine, tmp_path, traces / name), unseen(traces / name))


@pytest.mark.parametrize("pattern", ["dlrm_8gpu/*", "torch_2.13_gloo/full_*", "torch_2.13_gloo/vm_*"])
def test_a_native_trace_of_several_ranks_shows_what_the_json_shows(
    engine: Engine, traces: Path, tmp_path: Path, pattern: str
) -> None:
    assert_same(*both(engine, tmp_path, *sorted(traces.glob(pattern))), set())
