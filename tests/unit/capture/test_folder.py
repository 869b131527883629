"""The documents of a control folder, valid and refused ones."""

from __future__ import annotations

import dataclasses
import os
import stat
from typing import TYPE_CHECKING

import pytest

from tracekit.capture.control_folder import (
    MAX_DOCUMENT_BYTES,
    CaptureState,
    CaptureStatus,
    ControlFolder,
    RankStatus,
    Request,
)
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> ControlFolder:
    made = ControlFolder(tmp_path / "run" / "control")
    made.make()
    return made


def put(folder: ControlFolder, text: str | bytes, mode: int = 0o600) -> None:
    path = folder.path / "request.json"
    path.unlink(missing_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)


STATUS = RankStatus(
    rank=3,
    world_size=8,
    run_id="r",
    host="h",
    pid=17,
    machine="m",
    updates=2,
    batch=12,
    step_seconds=0.25,
    capture=CaptureStatus(
        id="x", state=CaptureState.DONE, first_batch=4, last_batch=8, files=("/a.json", "s3://b/c.json")
    ),
    refused=("y", "busy"),
)


def test_documents_are_read_as_they_were_written_and_again_when_they_change(folder: ControlFolder) -> None:
    request = Request(
        id="abc", ranks=(0, 3), steps=5, seconds=2.5, warmup=1, together=True, start_batch=7, expires=1.8e9
    )
    for written in (request, Request(id="b")):
        folder.write(written)
        assert folder.read_request() == written
    for status in (STATUS, dataclasses.replace(STATUS, batch=13)):
        folder.write(status)
        assert folder.statuses() == {3: status}


def test_folders_and_files_are_for_their_user_alone(folder: ControlFolder) -> None:
    folder.write(Request(id="abc"))
    folder.write(STATUS)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.parent.parent.rglob("*")}
    assert found == {"run": 0o700, "control": 0o700, "ranks": 0o700, "request.json": 0o600, "rank00003.json": 0o600}


def test_a_request_is_read_once_and_needs_no_id(folder: ControlFolder) -> None:
    assert folder.read_request() is None
    ids = []
    for text in ('{"steps": 5, "start_batch": 1000, "comment": "for Tuesday"}', '{"steps": 5, "start_batch": 1000}'):
        put(folder, text)
        request = folder.read_request()
        assert request is not None
        assert (request.steps, request.start_batch, request.has_start, request.ranks) == (5, 1000, True, None)
        assert folder.read_request() is None
        ids.append(request.id)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSON"),
        ('{"steps": 5', "half"),
        ("[" * 60_000, "JSON"),
        (b"\xff\xfe{}", "JSON"),
        ("[]", "object"),
        ('{"version": 2}', "later version"),
        ('{"id": "../../etc"}', "id must"),
        ('{"id": 5}', "id must"),
        ('{"steps": -1}', "steps"),
        ('{"steps": true}', "steps"),
        ('{"steps": 1e3}', "steps"),
        ('{"steps": 99999999999999999999}', "steps"),
        ('{"seconds": 0}', "seconds"),
        ('{"seconds": NaN}', "seconds"),
        ('{"seconds": Infinity}', "seconds"),
        ('{"seconds": 1' + "0" * 400 + "}", "seconds"),
        ('{"warmup": "1"}', "warmup"),
        ('{"ranks": []}', "ranks"),
        ('{"ranks": [0, "1"]}', "ranks"),
        ('{"ranks": 3}', "ranks"),
        ('{"stop": 1}', "stop"),
        ('{"start_time": 1795257989000}', "start_time"),
        ('{"start_time": 1795257989, "start_batch": 4}', "exclude"),
        (" " * (MAX_DOCUMENT_BYTES + 1), "larger"),
    ],
)
def test_what_is_no_request_is_refused_once(folder: ControlFolder, text: str | bytes, words: str) -> None:
    put(folder, text)
    with pytest.raises(ConfigError, match=words):
        folder.read_request()
    assert folder.read_request() is None
    put(folder, '{"steps": 5}')
    assert folder.read_request() is not None, "and does not stand in the way of the next"


def test_a_link_a_pipe_and_a_folder_are_no_requests(folder: ControlFolder, tmp_path: Path) -> None:
    path = folder.path / "request.json"
    (tmp_path / "elsewhere").write_text('{"steps": 5}')
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="link"):
        folder.read_request()
    assert folder.read_request() is None
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="not a file"):
        folder.read_request()
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="not a file"):
        folder.read_request()


@pytest.mark.parametrize("owner", [None, 12345], ids=["writable by others", "of another user"])
def test_what_others_could_have_written_is_refused(folder: ControlFolder, owner: int | None) -> None:
    path = folder.path / "request.json"
    put(folder, '{"steps": 5}', mode=0o666 if owner is None else 0o600)
    if owner is not None:
        if not hasattr(os, "geteuid") or os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(path, owner, -1)
    with pytest.raises(ConfigError, match="other users may write" if owner is None else "another user"):
        folder.read_request()
    assert ControlFolder(folder.path, trust_others=True).read_request() is not None
    if owner is None:
        path.chmod(0o600)
        assert folder.read_request() is not None, "its mode was set right"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"rank": 1}',
        b'{"rank": 9, "world_size": 2, "pid": 1}',
        b'{"rank": 0, "world_size": 1000001, "pid": 1}',
        b'{"rank": 0, "world_size": 2, "pid": 1, "capture": {"state": "flying"}}',
        b'{"rank": 0, "world_size": 2, "pid": 1, "capture": 3}',
        b"x" * (MAX_DOCUMENT_BYTES + 1),
    ],
)
def test_a_damaged_status_is_passed_over(folder: ControlFolder, damage: bytes) -> None:
    folder.write(STATUS)
    (folder.path / "ranks" / "rank00000.json").write_bytes(damage)
    os.mkfifo(folder.path / "ranks" / "rank00001.json")
    assert folder.statuses() == {3: STATUS}


@pytest.mark.parametrize(
    ("told", "taken"), [("5e-324", None), ("0", None), ("9e-7", None), ("1e-6", 1e-6), ("null", None)]
)
def test_a_batch_beyond_all_shortness_is_not_believed(told: str, taken: float | None) -> None:
    status = RankStatus.from_bytes(f'{{"rank": 0, "world_size": 1, "pid": 1, "step_seconds": {told}}}'.encode())
    assert status.step_seconds == taken
