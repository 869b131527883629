"""The server of ``tracekit open``: one file for one browser on this machine, and nothing for anybody else."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING

import pytest

from tests.served import Served
from tracekit.errors import StorageError
from tracekit.view.open.server import PERFETTO_PORT, OneFileServer
from tracekit.view.open.ui import PerfettoUI

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UI = PerfettoUI.at("https://perfetto.example:8443/")
CONTENT = b"[\n" + b" " * 3_000_000 + b"]\n"
ANSWERED_S = 100.0


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank 0.json"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def server(trace: Path) -> Iterator[OneFileServer]:
    with OneFileServer(trace, UI, port=0) as server:
        yield server


@pytest.fixture
def bundled(trace: Path, tmp_path: Path) -> Iterator[OneFileServer]:
    folder = tmp_path / "ui"
    (folder / "v1").mkdir(parents=True)
    (folder / "index.html").write_text("the UI")
    (folder / "v1" / "engine.wasm").write_bytes(b"\0asm")
    with OneFileServer(trace, PerfettoUI("", folder), port=0) as server:
        yield server


def ask(
    server: OneFileServer, path: str, method: str = "GET", host: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a request; headers are given with _ for -."""
    answer = Served(server.port).get(path, method, host, **headers)
    return answer.status, answer.headers, answer.body


def root(server: OneFileServer) -> str:
    """Return the path that begins with the token."""
    match = re.fullmatch(rf"http://127\.0\.0\.1:{server.port}(/[\w-]{{20,}}/).*", server.address)
    assert match is not None
    return match[1]


def trace_path(server: OneFileServer) -> str:
    return root(server) + "trace/rank%200.json"


def assert_nothing(answer: tuple[int, dict[str, str], bytes]) -> None:
    status, headers, body = answer
    assert (status, body) == (404, b"")
    assert set(headers) <= {"server", "date", "content-length"}


def test_page_may_use_its_own_script_only_and_is_not_kept(server: OneFileServer) -> None:
    status, headers, body = ask(server, root(server), Sec_Fetch_Site="none", Sec_Fetch_Dest="document")

    nonce = re.search(rb'<script nonce="([\w-]+)">', body)
    assert nonce is not None
    assert status == 200
    assert f"script-src 'nonce-{nonce[1].decode()}'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_page_gets_the_trace_and_says_when_it_is_handed_over(server: OneFileServer) -> None:
    status, headers, body = ask(server, trace_path(server), Sec_Fetch_Site="same-origin")
    assert (status, body == CONTENT, server.handed_over) == (200, True, False)
    assert "access-control-allow-origin" not in headers

    assert ask(server, root(server) + "done", Sec_Fetch_Site="same-origin")[0] == 200
    assert server.wait(ANSWERED_S)


def test_ui_gets_the_trace_and_that_is_all(server: OneFileServer) -> None:
    status, headers, body = ask(
        server, trace_path(server), Origin="https://perfetto.example:8443", Sec_Fetch_Site="cross-site"
    )

    assert (status, body == CONTENT) == (200, True)
    assert headers["access-control-allow-origin"] == "https://perfetto.example:8443"
    assert server.wait(ANSWERED_S)
    for path in (root(server), root(server) + "done"):
        assert_nothing(ask(server, path, Origin="https://perfetto.example:8443", Sec_Fetch_Site="cross-site"))


@pytest.mark.parametrize(
    "headers",
    [
        *({"Origin": origin} for origin in ("https://evil.example", "null", "https://perfetto.example", "")),
        *({"Origin": origin} for origin in ("http://perfetto.example:8443", "http://127.0.0.1:1")),
        *({"host": host} for host in ("evil.example", "127.0.0.1", "localhost", "127.0.0.1:1", "[::1]:80")),
        {"host": "evil.example:{port}"},
        *({"method": method, "Origin": UI.origin} for method in ("HEAD", "POST", "PUT", "OPTIONS", "DELETE", "X")),
    ],
    ids=str,
)
def test_other_origin_host_or_method_gets_nothing(server: OneFileServer, headers: dict[str, str]) -> None:
    for path in (root(server), trace_path(server), root(server) + "done"):
        assert_nothing(ask(server, path, **{name: value.format(port=server.port) for name, value in headers.items()}))
    assert not server.handed_over


def test_page_elsewhere_that_shows_no_origin_may_only_lead_here(server: OneFileServer) -> None:
    for kind in ("image", "script", "iframe", "empty", "document"):
        for path in (trace_path(server), root(server) + "done"):
            assert_nothing(ask(server, path, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest=kind))
    assert_nothing(ask(server, root(server), Sec_Fetch_Site="same-site", Sec_Fetch_Dest="iframe"))
    assert ask(server, root(server), Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 200


def test_other_name_of_this_machine_works(server: OneFileServer) -> None:
    host = f"localhost:{server.port}"
    assert ask(server, trace_path(server), host=host, Origin=f"http://{host}")[0] == 200


def test_who_does_not_know_the_token_gets_nothing(server: OneFileServer) -> None:
    token = root(server).strip("/")
    other = "A" * len(token)
    for path in (
        "/",
        "/status",
        "/trace/rank%200.json",
        f"/{other}/",
        f"/{other}/trace/rank%200.json",
        f"/{token}",
        "*",
    ):
        assert_nothing(ask(server, path))


def test_other_paths_get_nothing(server: OneFileServer) -> None:
    for path in ("trace/", "trace/../rank%200.json", "trace/other.json", "ui/", "../", "%2e%2e/", "trace/rank 0.json"):
        # http.client refuses what is not a path; a socket does not.
        with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWERED_S) as connection:
            connection.sendall(f"GET {root(server)}{path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            assert b" 404 " in connection.makefile("rb").read().splitlines()[0]


def test_wait_ends_when_nobody_comes_or_the_trace_is_handed_over(server: OneFileServer) -> None:
    assert not server.wait(0.01)
    ask(server, root(server) + "done", Sec_Fetch_Site="same-origin")
    assert server.wait(1e300)  # as long as anybody says


def test_connection_that_is_never_used_keeps_nobody_waiting(server: OneFileServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, root(server))[0] == 200


def test_bundled_ui_is_served_with_the_trace_and_nothing_beside_it(bundled: OneFileServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    assert ask(bundled, root(bundled) + "ui/")[2] == b"the UI"
    assert ask(bundled, root(bundled) + "ui/?testing=1")[2] == b"the UI"
    status, headers, body = ask(bundled, root(bundled) + "ui/v1/engine.wasm")
    assert (status, headers["content-type"], body) == (200, "application/wasm", b"\0asm")
    for path in ("ui/../secret", "ui/%2e%2e/secret", "ui/v1", "ui/v1/../../secret", "", "done2"):
        assert_nothing(ask(bundled, root(bundled) + path))
    assert_nothing(ask(bundled, trace_path(bundled), Origin="https://ui.perfetto.dev"))
    assert ask(bundled, trace_path(bundled), Sec_Fetch_Site="same-origin")[2] == CONTENT
    while not bundled.wait(0.01):  # with a UI from here, it waits until nobody asks for so long
        pass
    assert bundled.handed_over


class Requests:
    """In place of the event that says that somebody has asked: how often somebody will."""

    def __init__(self, count: int) -> None:
        self.left = count

    def wait(self, idle_s: float) -> bool:
        self.left -= 1
        return self.left >= 0

    def clear(self) -> None:
        pass


def test_bundled_ui_is_served_until_nobody_asks_any_more(
    bundled: OneFileServer, server: OneFileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for waiting, left in ((bundled, -1), (server, 2)):
        requests = Requests(3)
        monkeypatch.setattr(waiting, "_asked", requests)
        monkeypatch.setattr(waiting, "handed_over", True)
        assert waiting.wait(ANSWERED_S)
        assert requests.left == left


def test_port_of_perfetto_is_taken_where_it_is_free(trace: Path) -> None:
    with OneFileServer(trace, UI) as first, OneFileServer(trace, UI) as second:
        assert second.port != first.port
        if first.port == PERFETTO_PORT:  # it may be another process's, and that may end in between
            assert second.direct_address is None
            assert first.direct_address is not None
            assert first.direct_address.startswith(
                "https://perfetto.example:8443/#!/?url=http%3A%2F%2F127.0.0.1%3A9001%2F"
            )


def test_port_in_use_and_missing_trace_are_refused(server: OneFileServer, trace: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"127.0.0.1:{server.port}.*another --port"):
        OneFileServer(trace, UI, port=server.port)
    with pytest.raises(StorageError, match=r"nothing\.json: cannot be read: No such file"):
        OneFileServer(tmp_path / "nothing.json", UI, port=0)


def test_name_that_is_no_text_is_served_too(tmp_path: Path) -> None:
    trace = tmp_path / "rank\udcff.json"
    try:
        trace.write_bytes(CONTENT)
    except OSError:
        pytest.skip("this file system takes no such names")
    with OneFileServer(trace, UI, port=0) as server:
        page = ask(server, root(server))[2].decode()
        given = json.loads(page.partition('id="given">')[2].partition("</script>")[0])
        assert ask(server, given["trace"])[2] == CONTENT


def test_trace_that_goes_meanwhile_gives_nothing(server: OneFileServer, trace: Path) -> None:
    trace.unlink()
    assert_nothing(ask(server, trace_path(server)))
