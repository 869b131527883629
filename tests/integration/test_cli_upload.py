"""``tracekit upload``: what it finds, what it says, and its exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import StorageError
from tracekit.cli import main
from tracekit.outbox import upload
from tracekit.outbox.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import fsspec

    for name, seconds in {"ANSWER_S": 5.0, "FIRST_PAUSE_S": 0.01, "MAX_PAUSE_S": 0.02}.items():
        monkeypatch.setattr(upload, name, seconds)
    memory = fsspec.filesystem("memory")
    memory.store.clear()  # it is one for all tests
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEKIT_SPOOL", str(tmp_path / "spools"))
    return tmp_path / "spools"


def leave(root: Path, rank: int, protocol: str = "memory") -> Path:
    """Make the spool of a process that was killed while it wrote its second segment."""
    url = f"{protocol}://bucket/run/rank{rank}"
    spool = Spool.create(root, {"run_id": "run", "rank": rank, "attempt": 0, "pid": 1, "index": f"{url}.index.json"})
    for part, text in enumerate(('[\n{"ph":"M"}\n]\n', '[\n{"ph":"M"},\n')):
        segment = spool.begin(f"{url}-part{part}.json")
        (spool.folder / segment.file).write_text(text)
        if not part:
            spool.finish(segment, 1, 1, 2)
    spool.close()
    return spool.folder


def test_a_spool_is_uploaded_and_a_second_time_there_is_nothing_to_do(
    root: Path, memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = leave(root, 0)
    assert main(["upload", str(folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "memory://bucket/run/rank0-part0.json: uploaded, 15 bytes",
        "memory://bucket/run/rank0-part1.json: uploaded, 14 bytes",
        f"{folder}: 2 uploaded (29 bytes)",
    ]
    objects = {name: memory.cat_file(name) for name in memory.find("/")}
    assert sorted(objects) == [
        "/bucket/run/rank0-part0.json", "/bucket/run/rank0-part1.json", "/bucket/run/rank0.index.json",
    ]  # fmt: skip
    assert main(["upload", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: 0 uploaded (0 bytes), 2 uploaded before\n"
    assert main(["upload", str(folder), "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["spools"]
    assert report["complete"] is True
    assert report["uploaded"] == []
    assert len(report["uploaded_before"]) == 2
    assert {name: memory.cat_file(name) for name in memory.find("/")} == objects


def test_without_a_name_every_spool_of_this_user_is_uploaded(
    root: Path, memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upload"]) == 0
    assert capsys.readouterr().out == "nothing is left to upload\n"
    for rank in range(3):
        leave(root, rank)
    assert main(["upload", "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert len(memory.find("/bucket/run")) == 9


def test_what_cannot_be_uploaded_is_named_and_stays(
    root: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = leave(root, 0)
    tried = []

    def put(local: str, url: str, **options: Any) -> None:
        tried.append(url)
        raise StorageError(f"{url}: cannot be written: no route")

    with monkeypatch.context() as patch:
        patch.setattr("tracekit.storage.put", put)
        assert main(["upload", "--tries", "2", str(folder)]) == 1
    assert len(tried) == 6
    out = capsys.readouterr().out
    url = "memory://bucket/run/rank0-part0.json"
    assert f"000000-rank0-part0.json: not uploaded: {url}: cannot be written: no route" in out
    assert "0 uploaded (0 bytes), 2 left" in out
    assert main(["upload", str(folder)]) == 0
    assert len(memory.find("/bucket/run")) == 3


def test_wrong_usage_is_refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upload", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["upload", "--tries", "0"]) == 2
    bad = leave(root, 0)
    (bad / "spool.jsonl").write_text("{}\n")
    assert main(["upload", str(bad)]) == 1
    assert "not one that this tracekit" in capsys.readouterr().err
