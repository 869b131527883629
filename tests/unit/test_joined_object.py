"""Objects that are joined out of others, by S3 itself and by hand, at the limits that S3 has."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tests.faults.object_store import BUCKET, ObjectStore
from tracekit.errors import StorageError
from tracekit.joined_object import end_uploads, joined_write, joins_by_itself
from tracekit.storage import filesystem_of, remove_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIN = 5 << 20
DATA = random.Random(1).randbytes(21 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    server = ObjectStore()
    yield server
    server.stop()


@pytest.fixture(params=["s3", "memory"])
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place on a storage; nothing may be left there that a test has not asked for."""
    if request.param == "memory":
        yield "memory://joined"
        remove_all("memory://joined")
        return
    server: ObjectStore = request.getfixturevalue("server")
    options = {"endpoint_url": f"http://127.0.0.1:{server.port}", "key": "user", "secret": "word"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    yield f"s3://{BUCKET}/joined"
    assert server.unfinished() == []
    server.forget()


def names(root: str) -> list[str]:
    filesystem, inner = filesystem_of(root)
    filesystem.invalidate_cache()
    return [str(name).rpartition("/")[2] for name in filesystem.find(inner)]


def content(url: str) -> bytes:
    filesystem, inner = filesystem_of(url)
    return bytes(filesystem.cat_file(inner))


def join(root: str, *pieces: int, **options: Any) -> bytes:
    """Join pieces of these sizes, the negative ones by writing them; return what should come of it."""
    filesystem, _ = filesystem_of(root)
    filesystem.makedirs(filesystem_of(root)[1], exist_ok=True)
    expected = b""
    with joined_write(f"{root}/out", f"{root}/scratch", **options) as joined:
        for number, size in enumerate(pieces):
            piece = DATA[: abs(size)] if number % 2 else DATA[-abs(size) :]
            expected += piece
            if size < 0:
                joined.write(piece)
            else:
                filesystem.pipe_file(filesystem_of(f"{root}/part-{number}")[1], piece)
                joined.append(f"{root}/part-{number}", size)
    return expected


@pytest.mark.parametrize(
    "pieces",
    [
        [-10],
        [10, 20, 30],
        [-300, MIN, -2],
        [-300, 2 * MIN - 301, -2],
        [-300, 2 * MIN - 300, -2],
        [-300, 2 * MIN - 299, -2],
        [MIN - 1, MIN, 7],
        [7, MIN + 7, MIN - 1, 2 * MIN, 1, 1],
        [-(4 * MIN), 21 << 20, 1],
        [MIN, MIN],
    ],
)
def test_pieces_of_any_size_are_joined(root: str, pieces: list[int]) -> None:
    expected = join(root, *pieces)
    assert content(f"{root}/out") == expected
    assert names(root) == sorted(["out", *(f"part-{number}" for number, size in enumerate(pieces) if size > 0)])


def test_long_objects_are_copied_in_ranges(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.joined_object._COPY_BYTES", 6 << 20)
    expected = join(root, -5, 21 << 20, -5)
    assert content(f"{root}/out") == expected


def test_s3_joins_without_sending_the_bytes(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"endpoint_url": f"http://127.0.0.1:{server.port}", "key": "user", "secret": "word"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    root = f"s3://{BUCKET}/joined"
    filesystem, _ = filesystem_of(root)
    fetched: list[int] = []
    cat_file: Callable[..., bytes] = filesystem.cat_file

    def counted(*args: Any, **options: Any) -> bytes:
        found = cat_file(*args, **options)
        fetched.append(len(found))
        return found

    monkeypatch.setattr(filesystem, "cat_file", counted)
    join(root, -100, 20 << 20, 21 << 20, 20 << 20, -100)
    assert fetched == [MIN - 100]
    server.forget()


def test_an_error_leaves_nothing(root: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(root)
    assert names(root) == ["part"]


def _interrupted(root: str) -> None:
    filesystem, _ = filesystem_of(root)
    filesystem.pipe_file(filesystem_of(f"{root}/part")[1], DATA)
    with joined_write(f"{root}/out", f"{root}/scratch") as joined:
        joined.append(f"{root}/part", len(DATA))
        joined.write(DATA)
        raise KeyboardInterrupt


def test_a_piece_that_is_missing_is_an_error_that_names_the_object(root: str) -> None:
    for size in (10, len(DATA)):
        with (
            pytest.raises(StorageError, match=r"joined/out: cannot be written"),
            joined_write(f"{root}/out", f"{root}/scratch") as joined,
        ):
            joined.append(f"{root}/missing", size)
    assert names(root) == []


def test_what_is_there_is_replaced_only_on_demand(root: str) -> None:
    join(root, -10)
    with pytest.raises(StorageError, match="already exists"):
        join(root, -20, overwrite=False)
    assert len(content(f"{root}/out")) == 10
    assert names(root) == ["out"]
    join(root, -20)
    assert len(content(f"{root}/out")) == 20


def test_unfinished_uploads_of_others_are_ended(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"endpoint_url": f"http://127.0.0.1:{server.port}", "key": "user", "secret": "word"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    for key in ("scratch/a", "scratch/b", "scratched"):
        server.client.create_multipart_upload(Bucket=BUCKET, Key=key)
    end_uploads(f"s3://{BUCKET}/scratch/")
    (left,) = server.unfinished()
    assert left["Key"] == "scratched"
    end_uploads(f"s3://{BUCKET}/scratched/")
    server.client.abort_multipart_upload(Bucket=BUCKET, Key="scratched", UploadId=left["UploadId"])


def test_only_s3_joins() -> None:
    assert joins_by_itself(f"s3://{BUCKET}/x")
    assert not joins_by_itself("memory://x")
    end_uploads("memory://x/")
