"""``tracekit link`` prints a link that Perfetto can follow, and explains what keeps it from that."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

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


@pytest.mark.parametrize("allowed", ["*", "https://ui.perfetto.dev"])
def test_an_address_that_any_page_may_read_is_linked_as_it_is(allowed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(allowed) as url:
        assert main(["link", url]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"https://ui.perfetto.dev/#!/?url={quote(url, safe='')}&")
    assert err == ""


@pytest.mark.parametrize("allowed", [None, "https://other.example"])
def test_an_address_that_perfetto_may_not_read_is_linked_with_the_remedy(
    allowed: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(allowed) as url:
        assert main(["link", "--json", url]) == 3
    document = orjson.loads(capsys.readouterr().out)
    assert "the storage does not let https://ui.perfetto.dev fetch it" in document["problem"]
    assert "Access-Control-Allow-Origin: https://ui.perfetto.dev" in document["problem"]


def test_an_address_without_a_trace_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("*", 404) as url:
        assert main(["link", url]) == 3
    assert "HTTP Error 404" in capsys.readouterr().err
    assert main(["link", "memory://none.json"]) == 1
    assert capsys.readouterr().err == (
        "tracekit: memory://none.json: no such object; give the URL of a trace in an object store\n"
    )
    assert main(["link", "merged.json"]) == 1


def test_an_object_gets_a_signed_address_that_reads_it() -> None:
    pytest.importorskip("moto", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    store = ObjectStore()
    try:
        store.client.put_object(Bucket=BUCKET, Key="run/merged.json", Body=CONTENT)
        command = [sys.executable, "-m", "tracekit", "link", "--seconds", "60", f"s3://{BUCKET}/run/merged.json"]
        environment = {**os.environ, **store.environment()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 3), done.stderr
        (signed,) = parse_qs(done.stdout.partition("?")[2])["url"]
        assert "word" not in signed  # the secret key
        with urllib.request.urlopen(signed) as answer:
            assert answer.read() == CONTENT
        assert ("aws s3api put-bucket-cors --bucket bucket" in done.stderr) == (done.returncode == 3)
    finally:
        store.stop()
