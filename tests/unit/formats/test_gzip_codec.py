"""Gzip with the fast codec and without it, and its thread: everything is put away once and in order, and no error is lost."""

from __future__ import annotations

import gzip
import io
import random
import threading
import weakref
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.bad_traces import slice_
from tracekit.formats import gzip_codec
from tracekit.formats.byte_stream import PIECE_BYTES, ByteStream
from tracekit.formats.gzip_codec import Behind, GzipWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


TEXT = b"".join(slice_(number, number % 77, f"slice {number % 13}") for number in range(20_000))


@pytest.fixture(params=["as installed", "zlib"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "zlib":
        monkeypatch.setattr(gzip_codec, "_codec", zlib)
        monkeypatch.setattr("tracekit.formats.byte_stream.InflateError", zlib.error)


@pytest.mark.usefixtures("codec")
def test_packed_bytes_depend_on_the_text_alone() -> None:
    drawn = random.Random(3)
    text = b"".join(b'{"ts":%d,"name":"n%d"},\n' % (drawn.randrange(10**12), n % 50) for n in range(60_000))[:1_999_999]
    found = set()
    for behind in (False, True):
        for size in (1_000, 1 << 16, (1 << 18) + 17, len(text)):
            file = io.BytesIO()
            with GzipWriter(file, behind=behind) as writer:
                written = [writer.write(text[start : start + size]) for start in range(0, len(text), size)]
            assert sum(written) == len(text)
            found.add(file.getvalue())
    (packed,) = found
    assert gzip.decompress(packed) == text
    assert packed[3:8] == bytes(5), "neither a name nor a time"


@pytest.mark.parametrize("behind", [False, True])
def test_a_member_that_is_not_written_to_its_end_is_not_closed_and_freed(behind: bool) -> None:
    file = io.BytesIO()
    with suppress(RuntimeError), GzipWriter(file, behind=behind) as writer:
        writer.write(TEXT)
        raise RuntimeError
    with pytest.raises(EOFError):
        gzip.decompress(file.getvalue())
    freed = weakref.ref(writer)
    del writer
    assert freed() is None  # without a collection: a merge has a writer for each rank, and they are large


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize("members", [1, 3])
def test_pieces_of_a_packed_file_are_those_of_the_plain_one(tmp_path: Path, members: int) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_bytes(TEXT)
    cuts = [*sorted(random.Random(members).sample(range(len(TEXT)), members - 1)), len(TEXT)]
    # A member may be empty, and zeros may follow the last one.
    packed.write_bytes(b"".join(gzip.compress(TEXT[start:end]) for start, end in pairwise([0, 0, *cuts])) + bytes(20))
    pieces = []
    for path in (plain, packed):
        with ByteStream(str(path)) as stream:
            pieces.append(list(iter(stream.read, b"")))
            assert stream.damage is None
    assert pieces[0] == pieces[1]
    assert {len(piece) for piece in pieces[0][:-1]} == {PIECE_BYTES}


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize(
    ("share", "rest", "damage"),
    [(0.1, b"", "cut off"), (0.5, b"", "cut off"), (0.99, b"", "cut off"), (1, bytes(8), "damaged")],
    ids=["cut early", "cut in the middle", "cut late", "another checksum"],
)
def test_what_a_damaged_file_holds_is_read_and_the_damage_told(
    tmp_path: Path, share: float, rest: bytes, damage: str
) -> None:
    packed = gzip.compress(TEXT)
    path = tmp_path / "a.json.gz"
    path.write_bytes(packed[: int(len(packed) * share) - len(rest)] + rest)
    with ByteStream(str(path)) as stream:
        found = b"".join(iter(stream.read, b""))
    assert damage in (stream.damage or "")
    assert TEXT.startswith(found)
    expected = zlib.decompressobj(31).decompress(path.read_bytes()[: len(packed) - 8])
    assert len(found) >= len(expected) - (PIECE_BYTES if rest else 64)


def give_all(put: Callable[[int], object], items: Iterable[int]) -> None:
    with Behind[int](put) as behind:
        for item in items:
            behind.give(item)


def test_few_items_wait_at_a_time() -> None:
    may_go = threading.Semaphore(5)
    given: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10):
            given.append(item)
            yield item

    giver = threading.Thread(target=give_all, args=(lambda _: may_go.acquire(), items()))
    giver.start()
    giver.join(0.2)
    assert giver.is_alive()
    assert len(given) <= 9  # five are put away, three wait, and one is to be given
    may_go.release(5)
    giver.join(60)
    assert not giver.is_alive()


@pytest.mark.parametrize("count", [100, 4], ids=["of an early item", "of the last item"])
def test_an_error_comes_back_and_what_waits_is_left(count: int) -> None:
    found: list[int] = []

    def put(item: int) -> None:
        if item == 3:
            raise OSError(28, "No space left on device")
        found.append(item)

    with pytest.raises(OSError, match="No space left"):
        give_all(put, range(count))
    assert found[:3] == [0, 1, 2]
    assert len(found) < 10


@pytest.mark.parametrize("threads", [0, 2])
def test_where_no_thread_can_be_started_the_caller_puts_away(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    submit, submitted = ThreadPoolExecutor.submit, []

    def refuse(self: ThreadPoolExecutor, *args: Any) -> Any:
        submitted.append(args)
        if len(submitted) > threads:
            raise RuntimeError("can't start new thread")
        return submit(self, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    found: list[int] = []
    give_all(found.append, range(10))
    assert found == list(range(10))
    assert len(submitted) == threads + 1
