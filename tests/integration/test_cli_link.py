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


class Driver(fsspec.AbstractFileSystem):
    """The driver of a storage."""

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(CONTENT), "type": "file"}


def signed(_: Driver, path: str, expiration: int) -> str:
    return f"?path={path}&life={expiration}"  # as that of Google Cloud Storage


def unsigned(_: Driver, path: str, expiration: int) -> str:
    raise AttributeError("you need a private key to sign credentials")


def unable(_: Driver, path: str, expiration: int) -> str:
    raise NotImplementedError  # as that of Hugging Face: its addresses do not expire


@pytest.mark.parametrize(
    ("sign", "url", "allowed", "code", "words"),
    [
        (signed, None, "*", 0, "?path=bucket/merged.json&life=60"),
        (unable, lambda _, path: f"?path={path}", "*", 0, "?path=bucket/merged.json"),
        (signed, None, None, 3, "Allow it: gcloud storage buckets update gs://bucket --cors-file=FILE"),
        (unsigned, None, "*", 1, "cannot be signed: you need a private key to sign credentials"),
        (
            unable,
            lambda _, path: f"file:///{path}",
            "*",
            1,
            "the driver of this storage gives no address that a browser",
        ),
    ],
    ids=["signed", "public", "not allowed", "no key", "local"],
)
def test_other_storages_link_by_their_drivers_or_say_what_is_missing(
    sign: Any, url: Any, allowed: str | None, code: int, words: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with serving(allowed) as address:

        def absolute(method: Any) -> Any:
            def call(self: Driver, path: str, **options: Any) -> str:
                found = str(method(self, path, **options))
                return address + found if found.startswith("?") else found

            return call

        methods = {name: absolute(method) for name, method in (("sign", sign), ("url", url)) if method is not None}
        kind = type("OfTest", (Driver,), {**methods, "protocol": "gs", "cachable": False})
        monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, "gs", kind)
        assert main(["link", "--seconds", "60", "gs://bucket/merged.json"]) == code
    out, err = capsys.readouterr()
    if code:
        assert words in err
    else:
        assert parse_qs(out.partition("?")[2])["url"] == [address + words]


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_storage_without_its_driver_names_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["link", "gs://bucket/merged.json"]) == 1
    assert "gcsfs" in capsys.readouterr().err
