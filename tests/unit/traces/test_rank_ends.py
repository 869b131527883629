"""Waiting for the end of a run: a rank ends with its end record, independent of the size and age of its files."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tracekit import JSONTraceHandler, Profiler
from tracekit.errors import ConfigError, StorageError
from tracekit.formats import byte_stream
from tracekit.storage import open_read
from tracekit.traces import rank_ends
from tracekit.traces.rank_ends import RankEnds, wait_for_ranks

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 100.0
END = {"ph": "M", "name": "tracekit_summary", "args": {}}
DUMP = {"ph": "M", "name": "tracekit_dump", "args": {}}
END_LINE = json.dumps(END, separators=(",", ":")).encode()


def companion(name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "tracekit_companion", "args": {"file": name.rpartition("/")[2], "path": name}}


def trace(rank: int, *events: dict[str, Any], closed: bool = True, **own: Any) -> bytes:
    """Return a rank trace: one event in each line, as `RankTrace` writes it."""
    head = {"ph": "M", "name": "tracekit_metadata", "args": {"rank": rank, "run_id": "RUN", "pid": rank, **own}}
    text = "[\n" + ",\n".join(json.dumps(event, separators=(",", ":")) for event in (head, *events))
    return f"{text}\n]\n".encode() if closed else f"{text},\n".encode()


def write(folder: Path, **files: bytes) -> None:
    for name, data in files.items():
        (folder / f"{name}.json").write_bytes(data)


def look(folder: Path | str, ranks: int = 2, timeout_s: float = 0, **options: Any) -> RankEnds:
    return wait_for_ranks([f"{folder}/rank*.json", f"{folder}/rank*.json.gz"], ranks, timeout_s, **options)


def names(ends: RankEnds) -> list[str]:
    return [path.rpartition("/")[2] for path in ends.traces]


def test_a_rank_has_ended_with_its_end_record_and_not_before(tmp_path: Path) -> None:
    longer = [{"ph": "i", "name": "tracekit_summary?"}] * 5000
    write(tmp_path, rank0=trace(0, END), rank1=trace(1, *longer, closed=False))
    ends = look(tmp_path, 3)
    assert (ends.without_trace, ends.without_end, ends.complete) == ([2], [1], False)
    assert names(ends) == ["rank0.json", "rank1.json"]
    assert ends.missing() == ["rank 2 has no rank trace", "rank 1 has no end record in the rank trace"]
    write(tmp_path, rank1=trace(1, END, closed=False))
    assert look(tmp_path).complete, "killed after its end record"


def test_a_rank_that_is_cut_within_its_end_record_has_not_ended(tmp_path: Path) -> None:
    whole = trace(0, END, closed=False).rstrip(b",\n")
    for cut in range(1, len(END_LINE)):
        write(tmp_path, rank0=whole[:-cut])
        assert look(tmp_path, 1).without_end == [0], cut


@pytest.mark.parametrize(
    ("before", "name", "comes"),
    [
        (trace(1, closed=False), "rank1.json", trace(1, closed=False) + END_LINE + b"\n]\n"),
        (b"", "rank1.json", trace(1, END)),
        (b"", "rank1.json.gz", gzip.compress(trace(1, END))),
        (trace(1, companion("t.json"), END), "t.json", b"{}"),
        (trace(1), "rank1-2.json", trace(1, END)),
    ],
    ids=["end", "file", "packed", "companion", "segment"],
)
def test_what_comes_while_it_waits_is_seen(tmp_path: Path, before: bytes, name: str, comes: bytes) -> None:
    write(tmp_path, rank0=trace(0, END), **({"rank1": before} if before else {}))
    reported: list[list[str]] = []

    def report(ends: RankEnds) -> None:
        reported.append(ends.missing())
        (tmp_path / name).write_bytes(comes)

    assert look(tmp_path, timeout_s=PATIENCE_S, report=report).complete
    assert len(reported) == 1


def test_traces_that_rank_traces_name_are_found_from_their_folder(tmp_path: Path) -> None:
    run, torch = tmp_path / "run", tmp_path / "torch"
    run.mkdir()
    torch.mkdir()
    named = [companion(name) for name in ("../torch/of0.json", "beside.json", "gone/x.json", "s3://b/x.json")]
    write(torch, of0=b"{}")
    write(run, beside=b"{}", rank0=trace(0, *named, END), rank1=trace(1, named[0], closed=False))
    ends = look(run)
    assert names(ends) == ["rank0.json", "rank1.json", "of0.json", "beside.json", "of0.json"]
    assert ends.without_companion == [(0, str(run / "gone" / "x.json"))], "a local trace names no URL"


def test_handlers_write_where_their_companions_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("torch/a b/x.json", "run/beside.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    for private in (False, True):
        with Profiler(JSONTraceHandler(f"run/{private}-rank{{rank}}.json"), run_id="RUN", private=private) as profiler:
            profiler.record_chrome_json_trace_file("torch/a b/x.json")
            profiler.record_chrome_json_trace_file(str(tmp_path / "run" / "beside.json"))
    ends = wait_for_ranks(["run/False-rank0.json"], 1, 0)
    assert ends.complete
    assert names(ends) == ["False-rank0.json", "x.json", "beside.json"]
    assert b"torch/" not in (tmp_path / "run" / "True-rank0.json").read_bytes()


def test_files_of_children_earlier_attempts_and_recorders_end_no_rank(tmp_path: Path) -> None:
    files = {
        "rank0": trace(0, END, attempt=1),
        "rank1-try0": trace(1, END, attempt=0),
        "rank1-worker": trace(1, END, attempt=1, parent_pid=1),
        "rank1-dump": trace(1, DUMP, END, attempt=1),
        "rank1.index": b'{"tracekit_index": 1, "run_id": "RUN", "rank": 1}',
    }
    write(tmp_path, **files)
    ends = look(tmp_path)
    assert ends.without_trace == [1]
    assert names(ends) == ["rank0.json", "rank1-try0.json", "rank1-worker.json"]


def test_a_run_of_flight_recorders_ends_with_their_dumps(tmp_path: Path) -> None:
    write(tmp_path, **{f"rank{rank}-0": trace(rank, DUMP, closed=rank == 0) for rank in range(2)})
    ends = look(tmp_path)
    assert (names(ends), ends.without_end) == (["rank0-0.json", "rank1-0.json"], [1])


def test_files_of_another_run_are_left_out_or_refused(tmp_path: Path) -> None:
    write(tmp_path, rank0=trace(0, END), rank1=trace(1, END, run_id="OTHER"))
    ends = look(tmp_path, run_id="RUN")
    assert (names(ends), ends.without_trace) == (["rank0.json"], [1])
    with pytest.raises(ConfigError, match=r"several runs; name one with --run: OTHER, RUN"):
        look(tmp_path)


def test_a_window_ends_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(trace(0))
    (tmp_path / "rank1.json").write_bytes(trace(1, closed=False))
    assert look(tmp_path, window=True).without_end == [1]
    assert look(tmp_path, window=False).without_end == [0, 1]
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(trace(1)))
    ends = look(tmp_path, window=True)
    assert ends.complete
    assert names(ends) == ["rank0.json", "rank1.json.gz"], "a plain file is about to be replaced by its packed copy"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", gzip.compress(trace(1, END))[:-30], gzip.compress(trace(1, END)) + b"rest"],
    ids=["empty", "magic only", "cut", "data behind"],
)
def test_packed_files_that_cannot_be_read_to_their_end_have_not_ended(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, rank0=trace(0, END))
    (tmp_path / "rank1.json.gz").write_bytes(data)
    # The last one has its end record; the merge reports the data behind it.
    assert look(tmp_path).complete == data.endswith(b"rest")


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="matches no file"):
        look(tmp_path)


def test_objects_are_read_once_and_name_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name, data in {
        "RUN/rank0-part0000.json": trace(0, companion("../torch/t.json")),
        "RUN/rank0-part0001.json": trace(0, END),
        "RUN/rank1-part0000.json.gz": gzip.compress(trace(1)),
        "torch/t.json": b"{}",
    }.items():
        filesystem.pipe_file(f"/bucket/{name}", data)
    opened: list[str] = []
    for module in (rank_ends, byte_stream):
        monkeypatch.setattr(module, "open_read", lambda path: opened.append(path) or open_read(path))
    last = "/bucket/RUN/rank1-part0001.json.gz", gzip.compress(trace(1, END))
    ends = look("memory://bucket/RUN", timeout_s=PATIENCE_S, report=lambda _: filesystem.pipe_file(*last))
    assert ends.complete
    assert names(ends)[-1] == "t.json"
    assert sorted(opened) == sorted(ends.traces[:-1] * 2), "once for the head and once for the rest"
