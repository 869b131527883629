"""Archives of a merge: inputs as they are where that is possible, a manifest that places them, the same bytes every time."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.check.schemas import MERGE_REPORT, PERFETTO_MANIFEST, compile_schema
from tracekit.check.validation.archive import manifest_problems
from tracekit.errors import MergeError, StorageError
from tracekit.formats import archive_file
from tracekit.formats.archive_file import write_tar, write_zip
from tracekit.merge import Selection, merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.merge import MergeReport

BASE_NS = 1_790_857_026_000_000_000


def event(ph: str, name: str, pid: int | str, ts: float = 5, **more: Any) -> dict[str, Any]:
    found = {"ph": ph, "name": name, "pid": pid, "tid": 7, "ts": ts, **more}
    return {**found, "dur": 2} if ph == "X" else found


def rank_trace(rank: int, *events: dict[str, Any], pid: int | None = None, base_ns: int = BASE_NS, **own: Any) -> bytes:
    pid = 100 + rank if pid is None else pid
    args = {"rank": rank, "pid": pid, "host": "h", "baseTimeNanoseconds": base_ns, **own}
    lines = [event("M", "tracekit_metadata", pid, args=args), *(events or [event("X", f"on {rank}", pid)])]
    return b"[\n" + b",\n".join(json.dumps(line).encode() for line in lines) + b"\n]\n"


def torch_trace(rank: int, *events: dict[str, Any], base_ns: int = BASE_NS) -> bytes:
    head = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "baseTimeNanoseconds": base_ns}
    return json.dumps({**head, "traceEvents": events}).encode()


def members(path: Path) -> dict[str, bytes]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as opened:
            return {name: opened.read(name) for name in opened.namelist()}
    with tarfile.open(path) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


class Archived:
    """An archive and the report of its merge."""

    def __init__(self, path: Path, report: MergeReport) -> None:
        self.report = report
        self.members = members(path)
        assert next(iter(self.members)) == "perfetto_manifest.json"
        text = self.members.pop("perfetto_manifest.json")
        assert text.startswith(b'{"perfetto_manifest"')
        self.manifest = json.loads(text)["perfetto_manifest"]
        assert compile_schema(PERFETTO_MANIFEST)(json.loads(text)) is None
        assert manifest_problems(json.loads(text), self.members) == []
        assert compile_schema(MERGE_REPORT)(json.loads(json.dumps(report.to_json()))) is None

    @property
    def rewritten(self) -> dict[str, str]:
        assert self.report.rewritten is not None
        return {path.rpartition("/")[2]: why for path, why in self.report.rewritten.items()}

    @property
    def machines(self) -> dict[str, str]:
        return {entry["path"]: entry["machine"]["name"] for entry in self.manifest["files"]}

    @property
    def offsets(self) -> dict[str, int | None]:
        return {entry["path"]: entry.get("clocks", {}).get("offset_ns") for entry in self.manifest["files"]}

    def pids(self, name: str) -> set[int | str]:
        document = json.loads(self.members[name])
        events = document["traceEvents"] if isinstance(document, dict) else document
        return {found["pid"] for found in events}


@pytest.fixture(params=["tar", "zip"])
def merge(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    def _merge(files: dict[str, bytes], **options: Any) -> Archived:
        folder = tmp_path / "run"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        output = tmp_path / f"merged.{request.param}"
        report = merge_traces(str(output), [str(folder / name) for name in files], overwrite=True, **options)
        return Archived(output, report)

    return _merge


def test_inputs_that_can_stand_together_are_copied_and_unpacked(merge: Any) -> None:
    files = {"rank0.json": rank_trace(0), "rank1.json.gz": rank_trace(1)}
    found = merge(files)
    assert found.members == {"rank0.json": files["rank0.json"], "rank1.json": files["rank1.json.gz"]}
    assert found.machines == {"rank0.json": "rank 0", "rank1.json": "rank 1"}
    assert found.offsets == {"rank0.json": None, "rank1.json": 0}
    assert found.rewritten == {}
    assert found.report.complete
    assert found.report.events_out == found.report.events_in
    assert "archive: 2 inputs as they are, 0 rewritten" in found.report.lines()
    assert found.manifest["attributes"]["tracekit.base_time_ns"] == BASE_NS


def test_the_manifest_moves_a_file_of_another_base_later(merge: Any) -> None:
    found = merge({"rank0.json": rank_trace(0, base_ns=BASE_NS + 10**9), "rank1.json": rank_trace(1)})
    assert found.manifest["files"][0]["clocks"] == {"sync_to": {"file": "rank1.json"}, "offset_ns": 10**9}
    assert found.offsets == {"rank0.json": 10**9, "rank1.json": None}
    assert found.rewritten == {}


def test_epoch_times_are_the_reference_for_relative_ones(merge: Any) -> None:
    files = {
        "rank0.json": rank_trace(0),
        "rank1.json": torch_trace(1, event("X", "a", 4711, BASE_NS // 1000), base_ns=0),
    }
    found = merge(files)
    assert found.offsets == {"rank0.json": BASE_NS, "rank1.json": None}
    assert found.manifest["attributes"]["tracekit.base_time_ns"] == 0


@pytest.mark.parametrize(
    "files",
    [
        {"a.json": torch_trace(0, event("X", "a", 0)), "b.json": torch_trace(1, event("X", "b", 0))},
        {"a.json": torch_trace(0, event("X", "a", "Spans")), "b.json": torch_trace(1, event("X", "b", "Spans"))},
        {"a.json": rank_trace(0, pid=7, host="g"), "b.json": rank_trace(1, pid=7)},
        # A pid that no process can have is 0 for Perfetto.
        {"a.json": torch_trace(0, event("X", "a", -1)), "b.json": torch_trace(1, event("X", "b", 0))},
        # A name for what another rank uses.
        {
            "a.json": torch_trace(0, event("X", "a", 3)),
            "b.json": torch_trace(1, event("X", "b", 4), event("M", "process_name", 3, args={"name": "gpu"})),
        },
    ],
    ids=["number", "text", "hosts", "negative", "declared"],
)
def test_what_older_viewers_would_take_for_one_process_is_rewritten(merge: Any, files: dict[str, bytes]) -> None:
    found = merge(files)
    assert found.rewritten == dict.fromkeys(files, "another process has its pid")
    assert found.pids("a.json").isdisjoint(found.pids("b.json"))
    assert found.machines == {"a.json": "rank 0", "b.json": "rank 1"}


def test_a_process_is_not_split_when_only_one_of_its_files_must_be_rewritten(merge: Any) -> None:
    files = {
        "own0.json": rank_trace(0, pid=500),
        "torch0.json": torch_trace(0, event("X", "op", 500), event("X", "kernel", 0)),
        "torch1.json": torch_trace(1, event("X", "op", 600), event("X", "kernel", 0)),
        # Its pid is what a process of rank 1 is called once that is rewritten.
        "own2.json": rank_trace(2, pid=100_001),
        "own3.json": rank_trace(3, pid=503),
    }
    found = merge(files)
    assert found.rewritten == {
        "own0.json": "a process of it is in another input that is rewritten",
        "torch0.json": "another process has its pid",
        "torch1.json": "another process has its pid",
        "own2.json": "another process has its pid",
    }
    assert found.pids("own0.json") < found.pids("torch0.json")
    assert found.machines["own0.json"] == found.machines["torch0.json"] == "rank 0"
    assert found.members["own3.json"] == files["own3.json"]


@pytest.mark.parametrize(
    ("data", "copied"),
    [
        (rank_trace(0)[:-3], True),
        (rank_trace(0)[:-6], True),
        (rank_trace(0)[:-3] + b",\n", True),
        (rank_trace(0).replace(b'"on 0"', b'"on "0""'), False),
        (rank_trace(0).replace(b'"on 0"', b'"\xff"'), False),
        (torch_trace(0, event("X", "a", 5))[:-1], False),
        (torch_trace(0), False),
        (b"\xef\xbb\xbf" + rank_trace(0), False),
        (json.dumps([event("X", "a", 5), {}]).encode(), True),
        (json.dumps([event("X", "a", 5), event("C", "c", 5, args={"v": True})]).encode(), True),
        (json.dumps([event("X", "a", 5), event("C", "c", 5, args={"v": "x", "w": 1})]).encode(), False),
        (json.dumps([event("X", "a", 5), event("X", "b", 5) | {"dur": None}]).encode(), False),
    ],
)
def test_what_perfetto_would_refuse_is_repaired(merge: Any, data: bytes, copied: bool) -> None:
    found = merge({"trace.json": data})
    assert found.rewritten == ({} if copied else {"trace.json": "it needs repair"})
    if copied:
        assert found.members["trace.json"] == data
    else:
        json.loads(found.members["trace.json"])


def test_a_selection_is_rewritten_and_counted(merge: Any) -> None:
    files = {
        "rank0.json": rank_trace(0, event("X", "a", 100), event("X", "b", 100, cat="x")),
        "rank1.json": rank_trace(1),
    }
    found = merge(files, select=Selection(ranks={0}, categories=["x"]))
    assert list(found.members) == ["rank0.json"]
    assert found.rewritten == {"rank0.json": "something is selected"}
    assert b'"b"' in found.members["rank0.json"]
    assert b'"a"' not in found.members["rank0.json"]
    assert [(item.reason, item.count) for item in found.report.left_out] == [("rank", None), ("category", 1)]
    assert merge(files, select=Selection(ranks={0})).members == {"rank0.json": files["rank0.json"]}


def test_names_are_what_every_reader_takes_and_each_is_there_once(merge: Any) -> None:
    files = {
        "a/trace.json": rank_trace(0),
        "b/trace.json.gz": rank_trace(1),
        "c/rank0-trace.json": rank_trace(2),
        "d/perfetto_manifest.json": rank_trace(3),
        ".hidden ütf.json.tmp": rank_trace(4),
        f"{'x' * 150}.json": rank_trace(5),
        f"{'y' * 150}.json": rank_trace(6),
        f"y{'y' * 150}.json": rank_trace(7),
        "noending": rank_trace(8),
        "x/twice.json": rank_trace(9),
        "y/twice.json": rank_trace(9, event("X", "later", 109, ts=9)),
    }
    found = merge(files)
    assert list(found.members) == [
        "rank0-trace.json",
        "rank1-trace.json",
        "rank2-rank0-trace.json",
        "rank3-perfetto_manifest.json",
        "hidden_tf.json",
        f"{'x' * 75}.json",
        f"rank6-{'y' * 75}.json",
        f"rank7-{'y' * 75}.json",
        "noending.json",
        "rank9-twice.json",
        "10-rank9-twice.json",
    ]
    assert max(map(len, found.members)) < 100


@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_the_same_inputs_give_the_same_bytes_whatever_their_order_and_age(tmp_path: Path, ending: str) -> None:
    paths = []
    for rank in range(3):
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_bytes(rank_trace(rank, pid=100 + rank // 2))
    first, second = tmp_path / f"first.{ending}", tmp_path / f"second.{ending}"
    merge_traces(str(first), [str(path) for path in paths])
    for path in paths:
        os.utime(path, (1, 1))
    merge_traces(str(second), [str(path) for path in reversed(paths)])
    assert first.read_bytes() == second.read_bytes()


def test_a_merged_file_of_several_ranks_is_a_machine_of_its_own(merge: Any, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(rank_trace(rank))
    merge_traces(str(tmp_path / "m.json"), [str(tmp_path / "rank0.json"), str(tmp_path / "rank1.json")])
    found = merge({"merged.json": (tmp_path / "m.json").read_bytes(), "rank2.json": rank_trace(2)})
    assert found.machines == {"merged.json": "ranks 0-1", "rank2.json": "rank 2"}
    assert found.rewritten == {}


def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = tmp_path / "rank0.json", tmp_path / "merged.tar"
    path.write_bytes(rank_trace(0))

    def cut(file: Any, members: Any) -> None:
        path.write_bytes(rank_trace(0)[:20])
        write_tar(file, members)

    with monkeypatch.context() as patch:
        patch.setattr("tracekit.merge.write.archive.write_tar", cut)
        with pytest.raises(MergeError, match="changed while it was merged"):
            merge_traces(str(output), [str(path)])
    assert [found.name for found in tmp_path.iterdir()] == ["rank0.json"]
    path.write_bytes(rank_trace(0))
    output.write_bytes(b"mine")
    with pytest.raises(StorageError, match="already exists"):
        merge_traces(str(output), [str(path)])
    assert output.read_bytes() == b"mine"


def test_a_file_that_grows_is_in_the_archive_as_it_was_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = tmp_path / "rank0.json", tmp_path / "merged.tar"
    live = rank_trace(0)[:-3] + b",\n"
    path.write_bytes(live)

    def grow(file: Any, members: Any) -> None:
        path.write_bytes(live * 2)
        write_tar(file, members)

    monkeypatch.setattr("tracekit.merge.write.archive.write_tar", grow)
    merge_traces(str(output), [str(path)])
    assert members(output)["rank0.json"] == live


@pytest.mark.parametrize(("write", "limit"), [(write_tar, "_TAR_LIMIT_BYTES"), (write_zip, "_ZIP_LIMIT_BYTES")])
def test_what_is_too_large_for_the_form_is_refused(monkeypatch: pytest.MonkeyPatch, write: Any, limit: str) -> None:
    monkeypatch.setattr(archive_file, limit, 1000)
    write(io.BytesIO(), [("fits.json", [b"x" * 400, b"x" * 500])])
    with pytest.raises(MergeError, match=r"large\.json"):
        write(io.BytesIO(), [("large.json", [b"x" * 1001])])
