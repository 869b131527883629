"""Packed inputs: zstd in frames, cut and damaged; zip archives with one trace, with several, and broken ones."""

from __future__ import annotations

import gzip
import io
import random
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.errors import MissingExtraError, StorageError, TraceFormatError
from tracekit.formats.byte_stream import PIECE_BYTES, ByteStream
from tracekit.formats.json.salvage import SalvageStream
from tracekit.formats.trace_stream import open_trace
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

TEXT = b"".join(b'{"n":%d}\n' % number for number in random.Random(2).choices(range(10**9), k=100_000))
# pzstd puts a skippable frame before each other one.
SKIPPABLE = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"


def read(path: Path, limit_bytes: int | None = None) -> tuple[bytes, str | None]:
    with ByteStream(str(path), limit_bytes) as stream:
        pieces = list(iter(stream.read, b""))
        assert all(len(piece) == PIECE_BYTES for piece in pieces[:-1])
        return b"".join(pieces), stream.damage


def zipped(method: int = zipfile.ZIP_DEFLATED, /, **members: bytes | str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def frame() -> Any:
    """Pack bytes into one frame of zstd."""
    return pytest.importorskip("zstandard").compress


@pytest.mark.parametrize("before", [b"", SKIPPABLE], ids=["", "pzstd"])
def test_zstd_with_several_frames_is_read_like_the_plain_file(tmp_path: Path, frame: Any, before: bytes) -> None:
    path = tmp_path / "t.zst"
    path.write_bytes(before + frame(TEXT[:500_000]) + before + frame(b"") + frame(TEXT[500_000:]))
    assert read(path) == (TEXT, None)
    with ByteStream(str(path)) as stream:
        assert (stream.packing, stream.compressed) == ("zstd", True)


@pytest.mark.parametrize("whole_frames", [0, 1])
def test_cut_zstd_yields_all_before_the_cut_and_reports_it(tmp_path: Path, frame: Any, whole_frames: int) -> None:
    last = frame(TEXT)
    path = tmp_path / "t.zst"
    path.write_bytes(whole_frames * frame(TEXT) + last[: len(last) // 2])
    text, damage = read(path)
    assert (whole_frames * TEXT + TEXT).startswith(text)
    assert len(text) > whole_frames * len(TEXT) + len(TEXT) // 4
    assert damage == "the zstd data is damaged (it is cut off)"
    with SalvageStream(str(path)) as salvage:
        found = b"".join(iter(salvage.read, b""))
    assert (found, salvage.damages) == (text, [damage])


def test_damaged_zstd_ends_with_a_report(tmp_path: Path, frame: Any) -> None:
    path, packed = tmp_path / "t.zst", frame(TEXT)
    for data, expected in ((packed + b"something else", TEXT), (packed[:20] + bytes(20) + packed[40:], b"")):
        path.write_bytes(data)
        text, damage = read(path)
        assert text == expected
        assert (damage or "").startswith("the zstd data is damaged (")


def test_zstd_without_a_module_that_unpacks_it_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "compression", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "t.json.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(MissingExtraError, match=r"needs the package zstandard: pip install 'tracekit-ml\[zstd\]'"):
        merge_traces(str(tmp_path / "m.json"), [str(tmp_path / "t.json.zst")])


def test_zstd_of_zeros_is_unpacked_in_bounded_pieces(tmp_path: Path, frame: Any) -> None:
    (tmp_path / "t.zst").write_bytes(frame(bytes(100 << 20)))
    with ByteStream(str(tmp_path / "t.zst")) as stream:
        assert len(stream.read()) == PIECE_BYTES
        assert sum(map(len, iter(stream.read, b""))) == (100 << 20) - PIECE_BYTES


@pytest.mark.parametrize("limit", [0, 3, 4, 5, 1000])
def test_limit_counts_bytes_of_a_plain_file(tmp_path: Path, limit: int) -> None:
    (tmp_path / "plain").write_bytes(TEXT)
    stream = open_trace(str(tmp_path / "plain"), limit)
    assert b"".join(iter(stream.read, b"")) == TEXT[:limit]
    stream.close()


def test_limit_counts_bytes_of_the_packed_file(tmp_path: Path, frame: Any) -> None:
    path, packed = tmp_path / "t.zst", frame(TEXT)
    path.write_bytes(packed + b"added later")
    assert read(path, len(packed)) == (TEXT, None)
    assert len(read(path, len(packed) // 2)[0]) > len(packed) // 2


@pytest.mark.parametrize(
    "members",
    [
        {"rank0.json": TEXT},
        {"run/rank0.json": TEXT, "run/notes.txt": b"no trace", "run/": b""},
        {"rank0.json.gz": gzip.compress(TEXT)},
        {"perfetto_manifest.json": b"{}", "rank0.json": TEXT},
        {"__MACOSX/._rank0.json": b"\0", ".hidden.json": b"{}", "rank0.json": TEXT},
        {"whatever": TEXT},
    ],
    ids=" ".join,
)
def test_zip_with_one_trace_is_read_as_that_trace(tmp_path: Path, members: dict[str, bytes]) -> None:
    (tmp_path / "t.zip").write_bytes(zipped(**members))
    assert read(tmp_path / "t.zip") == (TEXT, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zipped(**{"a.json": "", "b.json": ""}), r"holds 2 files \(a.json, b.json\); unpack it, and name the folder"),
        (zipped(**{f"{name}.json": "" for name in "abcdefg"}), r"holds 7 files \(a.json, .*, e.json \.\.\.\)"),
        (zipped(**{"perfetto_manifest.json": "{}"}), "is empty"),
        (zipped(**{"a.json": TEXT})[:-30], "cannot be read: File is not a zip file"),
        (zipped(**{"ü.json": TEXT}).replace("ü".encode(), b"\xff\xff"), "cannot be read: 'utf-8' codec"),
        (zipped(**{"a.json": TEXT})[9:], "cannot be read: "),
    ],
    ids=["two", "seven", "none", "cut", "a name that is no text", "an offset before the file"],
)
def test_zip_without_exactly_one_trace_is_refused_with_the_names(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "t.zip").write_bytes(content if content.startswith(b"PK") else b"PK\3\4" + content[4:])
    with pytest.raises(TraceFormatError, match=reason):
        ByteStream(str(tmp_path / "t.zip"))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_zip_yields_all_before_the_damage_and_reports_it(tmp_path: Path, method: int) -> None:
    content = bytearray(zipped(method, **{"a.json": TEXT}))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "t.zip").write_bytes(content)
    text, damage = read(tmp_path / "t.zip")
    assert TEXT.startswith(text[: len(text) // 2])
    assert (damage or "").startswith("the zip data is damaged (")


@pytest.mark.parametrize("stream", [ByteStream, SalvageStream])
def test_error_of_the_storage_names_the_file_also_at_its_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("no route to host")

    monkeypatch.setattr("tracekit.formats.byte_stream.open_read", lambda path: Broken())
    with pytest.raises(StorageError, match=r"t\.json: cannot be read: no route to host"):
        stream(str(tmp_path / "t.json"))
