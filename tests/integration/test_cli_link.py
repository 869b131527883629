"""``tracekit link`` prints a link that Perfetto can follow, and explains what keeps it from that."""

from __future__ import annotations

import http.server
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

import fsspec
import orjson
import pytest

from tests.faults.object_store import BUCKET, ObjectStore
from tracekit.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = b'[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]'


@contextmanager
def serving(allowed: str | None, status: int = 200) -> Iterator[str]:
    """A server of one trace, with or without the header that lets other pages read it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if allowed is not None:
                self.send_header("Access-Control-Allow-Origin", allowed)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/merged.json"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("allowed", "status", "problem"),
    [
        ("*", 200, None),
        ("https://ui.perfetto.dev", 200, None),
        (None, 200, "the storage does not let https://ui.perfetto.dev fetch it"),
        ("https://other.example", 200, "Access-Control-Allow-Origin: https://ui.perfetto.dev"),
        ("*", 404, "HTTP Error 404"),
    ],
)
def test_link_holds_the_address_and_says_what_keeps_perfetto_from_it(
    allowed: str | None, status: int, problem: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(allowed, status) as url:
        assert main(["link", url]) == (0 if problem is None else 3)
        out, err = capsys.readouterr()
        assert out.startswith(f"https://ui.perfetto.dev/#!/?url={quote(url, safe='')}&")
        assert err == "" if problem is None else problem in err
        main(["link", "--json", url])
    document = orjson.loads(capsys.readouterr().out)
    assert document["link"] == out.strip()
    assert document["problem"] is None if problem is None else problem in document["problem"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [("http://127.0.0.1:1/a b.json", "URL can't contain control characters"), ("http://[::1/x", "Invalid IPv6 URL")],
)
def test_link_to_a_malformed_url_names_the_fault(url: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["link", url]) == 3
    assert f"tracekit: {url}: cannot be fetched from here: {problem}" in capsys.readouterr().err


def test_what_is_no_object_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["link", "memory://none.json"]) == 1
    assert "memory://none.json: no such object; give the URL of a trace in an object store" in capsys.readouterr().err
    assert main(["link", "merged.json"]) == 1


def test_object_gets_a_signed_address_that_reads_it() -> None:
    pytest.importorskip("moto", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    store = ObjectStore()
    try:
        store.client.put_object(Bucket=BUCKET, Key="run/merged.json", Body=CONTENT)
        command = [sys.executable, "-m", "tracekit", "link", "--seconds", "60", f"s3://{BUCKET}/run/merged.json"]
        environment = {**os.environ, **store.environment()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode in (0, 3), done.stderr
        (signed,) = parse_qs(done.stdout.partition("?")[2])["url"]
        assert "word" not in signed  # the secret key
        with urllib.request.urlopen(signed) as answer:
            assert answer.read() == CONTENT
        assert ("aws s3api put-bucket-cors --bucket bucket" in done.stderr) == (done.returncode == 3)
    finally:
        store.stop()


class Signed(fsspec.AbstractFileSystem):
    """A driver that signs, as that of Google Cloud Storage."""

    protocol = "gs"
    address = ""

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(CONTENT), "type": "file"}

    def sign(self, path: str, expiration: int = 100, **_: Any) -> str:
        return f"{self.address}?path={path}&life={expiration}"


class Public(Signed):
    """A driver with addresses that do not expire, as that of Hugging Face."""

    protocol = "hf"

    def sign(self, path: str, expiration: int = 100, **_: Any) -> str:
        raise NotImplementedError

    def url(self, path: str) -> str:
        return f"{self.address}?path={path}"


class Unsigned(Signed):
    """A driver without the key that a signature needs."""

    def sign(self, path: str, expiration: int = 100, **_: Any) -> str:
        raise AttributeError("you need a private key to sign credentials")


class Local(Public):
    """A driver with addresses that no browser reads."""

    def url(self, path: str) -> str:
        return f"file:///{path}"


@contextmanager
def driver(protocol: str, kind: type[Signed], monkeypatch: pytest.MonkeyPatch, allowed: str | None) -> Iterator[None]:
    monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, protocol, kind)
    with serving(allowed) as address:
        monkeypatch.setattr(kind, "address", address)
        yield


@pytest.mark.parametrize(
    ("kind", "url", "end"),
    [(Signed, "gs://bucket/merged.json", "&life=60"), (Public, "hf://datasets/team/runs/merged.json", "")],
)
def test_other_storages_link_by_their_drivers(
    kind: type[Signed], url: str, end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol, _, inner = url.partition("://")
    with driver(protocol, kind, monkeypatch, "*"):
        assert main(["link", "--seconds", "60", url]) == 0
    (address,) = parse_qs(capsys.readouterr().out.partition("?")[2])["url"]
    assert address.endswith(f"/merged.json?path={inner}{end}")


@pytest.mark.parametrize(
    ("kind", "allowed", "code", "words"),
    [
        (Signed, None, 3, "Allow it: gcloud storage buckets update gs://bucket --cors-file=FILE"),
        (Unsigned, "*", 1, "cannot be signed: you need a private key to sign credentials"),
        (Local, "*", 1, "the driver of this storage gives no address that a browser can read"),
    ],
)
def test_what_is_missing_for_a_link_is_said(
    kind: type[Signed],
    allowed: str | None,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with driver("gs", kind, monkeypatch, allowed):
        assert main(["link", "gs://bucket/merged.json"]) == code
    assert words in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_storage_without_its_driver_names_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["link", "gs://bucket/merged.json"]) == 1
    assert "gcsfs" in capsys.readouterr().err
