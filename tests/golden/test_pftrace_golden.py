"""The merged trace in Perfetto's own format, held against the JSON of the same inputs in Perfetto's own engine."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.test_merge_golden import SINGLE
from tracekit.formats.trace_reader import UNSET, TraceReader, decode_or_none
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.perfetto import Engine, LoadedTrace

TRACKS = """
select track.id, track.name, track.parent_id, extract_arg(track.source_arg_set_id, 'trace_id'), thread.name, thread.tid,
  process.pid
from track
left join thread_track on thread_track.id = track.id left join thread using (utid)
left join process_track on process_track.id = track.id
left join process_counter_track on process_counter_track.id = track.id
left join process on process.upid = coalesce(thread.upid, process_track.upid, process_counter_track.upid)
"""
SLICES = "select id, ts, dur, coalesce(name, ''), coalesce(category, ''), track_id, arg_set_id from slice"
ARGS = "select arg_set_id, key, display_value from args"
# The JSON importer draws an arrow from a slice to itself for an end without a start.
FLOWS = "select slice_out, slice_in from flow where slice_out != slice_in"
COUNTERS = "select track_id, ts, value from counter"

# Phases that the JSON importer has no place for.
UNSEEN = "STpFPNODvVcRstfe"

Shown = dict[str, Counter[Any]]


def unescaped(text: str) -> str:
    """Return a text of a JSON trace as it was meant: the engine leaves the escapes of some as they are."""
    try:
        return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text
    except ValueError:
        return text


def shown(loaded: LoadedTrace, base_ns: int, read: Callable[[str], str] = str) -> Shown:
    """Return what a merged trace shows, in words that do not depend on its format."""
    tracks = {track: rest for track, *rest in loaded.rows(TRACKS)}

    def place(track: int) -> tuple[int, int | None, str]:
        """Return process, thread, and the name of the track."""
        name, parent, uuid, thread, tid, pid = tracks[track]
        name = read(thread or name or "")
        if tid is None and parent is not None:
            pid = tracks[parent][2] >> 32
        if tid is None and uuid is not None and uuid >= 0:
            # What the JSON has as threads of a process for each GPU are tracks in groups of the rank's process.
            pid, tid = uuid >> 32, uuid & 0xFFFFFFFF or None
            name = name if tid else ""
        # Ids that no thread of a system has are others in a native trace.
        return pid, tid if tid and tid < 2**30 else None, name or (f"thread {tid}" if tid else "")

    args: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for arg_set, key, value in loaded.rows(ARGS):
        kind, _, rest = key.partition(".")
        # The JSON importer passes over what is empty.
        if kind in ("args", "debug") and not rest.startswith("trace_event") and value not in ("[]", "{}", "null"):
            # The engine writes dots in names of arguments as underlines.
            args[arg_set].add((read(rest).replace(".", "_"), read(value or "")))
    slices = {
        number: (
            ts + base_ns,
            dur,
            "" if name == "[No name]" else read(name),
            read(category),
            place(track),
            frozenset(args[arg_set]),
        )
        for number, ts, dur, name, category, track, arg_set in loaded.rows(SLICES)
    }
    return {
        "slices": Counter(slices.values()),
        "arrows": Counter((slices[out][:5], slices[in_][:5]) for out, in_ in loaded.rows(FLOWS)),
        "counters": Counter(
            (ts + base_ns, value, read(tracks[track][0]), place(track)[0]) for track, ts, value in loaded.rows(COUNTERS)
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
        expected = shown(loaded, base_ns, unescaped)
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
