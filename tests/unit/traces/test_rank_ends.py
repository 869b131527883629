"""Waiting for the end of a run: a rank ends with its end record, independent of the size and age of its files."""

from __future__ import annotations

import gzip
import json
from functools import partial
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
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 100.0
END = {"ph": "M", "name": "tracekit_summary", "args": {}}


def companion(name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "tracekit_companion", "args": {"file": name.rpartition("/")[2], "path": name}}


def trace(rank: int, *events: dict[str, Any], closed: bool = True, **own: Any) -> bytes:
    """Return a rank trace: one event in each line, as `RankTrace` writes it."""
    head = {"ph": "M", "name": "tracekit_metadata", "args": {"rank": rank, "run_id": "RUN", "pid": rank, **own}}
    text = "[\n" + ",\n".join(json.dumps(event, separators=(",", ":")) for event in (head, *events))
    return f"{text}\n]\n".encode() if closed else f"{text},\n".encode()


def look(folder: Path | str, ranks: int = 2, timeout_s: float = 0, **options: Any) -> RankEnds:
    return wait_for_ranks([f"{folder}/rank*.json", f"{folder}/rank*.json.gz"], ranks, timeout_s, **options)


def names(ends: RankEnds) -> list[str]:
    return [path.rpartition("/")[2] for path in ends.traces]


def test_a_rank_has_ended_with_its_end_record_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(trace(0, END))
    (tmp_path / "rank1.json").write_bytes(trace(1, *[{"ph": "i", "name": "tracekit_summary?"}] * 5000, closed=False))
    ends = look(tmp_path, 3)
    assert (ends.without_trace, ends.without_end, ends.complete) == ([2], [1], False)
    assert names(ends) == ["rank0.json", "rank1.json"]
    assert ends.missing() == ["rank 2 has no rank trace", "rank 1 has no end record in the rank trace"]
    (tmp_path / "rank1.json").write_bytes(trace(1, END, closed=False))
    assert look(tmp_path).complete, "killed after its end record"


def test_a_rank_that_is_cut_within_its_end_record_has_not_ended(tmp_path: Path) -> None:
    whole = trace(0, END, closed=False).rstrip(b",\n")
    for cut in range(1, len(json.dumps(END, separators=(",", ":")))):
        (tmp_path / "rank0.json").write_bytes(whole[:-cut])
        assert look(tmp_path, 1).without_end == [0], cut


def grows(path: Path, *pieces: bytes) -> None:
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)


@pytest.mark.parametrize("what", ["end", "file", "packed", "companion", "segment"])
def test_what_comes_while_it_waits_is_seen(tmp_path: Path, what: str) -> None:
    (tmp_path / "rank0.json").write_bytes(trace(0, END))
    one = tmp_path / "rank1.json"
    before, come = {
        "end": (
            trace(1, closed=False),
            partial(grows, one, json.dumps(END, separators=(",", ":")).encode() + b"\n]\n"),
        ),
        "file": (b"", partial(grows, one, trace(1, END))),
        "packed": (b"", partial(grows, tmp_path / "rank1.json.gz", gzip.compress(trace(1, END)))),
        "companion": (trace(1, companion("t.json"), END), partial(grows, tmp_path / "t.json", b"{}")),
        "segment": (trace(1), partial(grows, tmp_path / "rank1-2.json", trace(1, END))),
    }[what]
    if before:
        one.write_bytes(before)
    reported: list[list[str]] = []

    def report(ends: RankEnds) -> None:
        reported.append(ends.missing())
        come()

    assert look(tmp_path, timeout_s=PATIENCE_S, report=report).complete
    assert len(reported) == 1


def test_traces_that_rank_traces_name_are_found_from_their_folder(tmp_path: Path) -> None:
    for folder, name in (("torch", "of0.json"), ("run", "beside.json")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("{}")
    named = [
        companion("../torch/of0.json"),
        companion("beside.json"),
        companion("gone/x.json"),
        companion("s3://b/x.json"),
    ]
    (tmp_path / "run" / "rank0.json").write_bytes(trace(0, *named, END))
    (tmp_path / "run" / "rank1.json").write_bytes(trace(1, companion("../torch/of0.json"), closed=False))
    ends = look(tmp_path / "run")
    assert names(ends) == ["rank0.json", "rank1.json", "of0.json", "beside.json", "of0.json"]
    assert ends.without_companion == [(0, str(tmp_path / "run" / "gone" / "x.json"))], "a local trace names no URL"


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
    (tmp_path / "rank0.json").write_bytes(trace(0, END, attempt=1))
    (tmp_path / "rank1-try0.json").write_bytes(trace(1, END, attempt=0))
    (tmp_path / "rank1-worker.json").write_bytes(trace(1, END, attempt=1, parent_pid=1))
    (tmp_path / "rank1-dump.json").write_bytes(
        trace(1, {"ph": "M", "name": "tracekit_dump", "args": {}}, END, attempt=1)
    )
    (tmp_path / "rank1.index.json").write_text('{"tracekit_index": 1, "run_id": "RUN", "rank": 1}')
    ends = look(tmp_path)
    assert ends.without_trace == [1]
    assert names(ends) == ["rank0.json", "rank1-try0.json", "rank1-worker.json"]


def test_files_of_another_run_are_left_out_or_refused(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(trace(0, END))
    (tmp_path / "rank1.json").write_bytes(trace(1, END, run_id="OTHER"))
    assert names(look(tmp_path, run_id="RUN")) == ["rank0.json"]
    assert look(tmp_path, run_id="RUN").without_trace == [1]
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
    (tmp_path / "rank0.json").write_bytes(trace(0, END))
    (tmp_path / "rank1.json.gz").write_bytes(data)
    ends = look(tmp_path)
    assert ends.complete == data.endswith(b"rest")  # the end record is there; what follows is the merge's to report


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="matches no file"):
        look(tmp_path)


@pytest.fixture
def bucket() -> Callable[[str, bytes], None]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    return lambda name, data: filesystem.pipe_file(f"/bucket/{name}", data)


def test_objects_are_read_once_and_name_objects(
    bucket: Callable[[str, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket("RUN/rank0-part0000.json", trace(0, companion("../torch/t.json")))
    bucket("RUN/rank0-part0001.json", trace(0, END))
    bucket("RUN/rank1-part0000.json.gz", gzip.compress(trace(1)))
    bucket("torch/t.json", b"{}")
    opened: list[str] = []
    for module in (rank_ends, byte_stream):
        monkeypatch.setattr(module, "open_read", lambda path: opened.append(path) or open_read(path))
    come = partial(bucket, "RUN/rank1-part0001.json.gz", gzip.compress(trace(1, END)))
    ends = look("memory://bucket/RUN", timeout_s=PATIENCE_S, report=lambda _: come())
    assert ends.complete
    assert names(ends)[-1] == "t.json"
    assert sorted(opened) == sorted(ends.traces[:-1] * 2), "once for the head and once for the rest"
