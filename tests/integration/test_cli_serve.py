"""``tracekit serve`` as a program: it says where it is, and ends when it is told to, with nothing left."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.served import TOKEN, rank_trace
from tracekit.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 200


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "good"
    folder.mkdir(parents=True)
    for rank in (0, 1):
        (folder / f"rank{rank}.json").write_text(rank_trace(rank, run="good"))
    return tmp_path / "runs"


@contextlib.contextmanager
def tracekit_serve(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``tracekit serve``, and give the process and the first line that it printed."""
    command = [sys.executable, "-W", "error", "-m", "tracekit", "serve", "--port", "0", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                assert process.stderr is not None
                raise AssertionError(process.stderr.read())
            yield process, line
        finally:
            process.kill()


def ask(address: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode()


def signed_in(address: str) -> tuple[str, str]:
    """Open the printed URL; return the origin, and the cookie by which the browser is known from then on."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", f"{parts.path}?{parts.query}")
        response = connection.getresponse()
        assert (response.status, response.getheader("Location")) == (303, "/")
        cookie, *flags = response.getheader("Set-Cookie", "").split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(flags)
    return f"{parts.scheme}://{parts.netloc}", cookie


def children(pid: int) -> set[int]:
    """Return the processes that a process has started, and that are there still."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            rest = path.read_text().rpartition(")")[2].split()
            if int(rest[1]) == pid:
                found |= {int(path.parent.name)} | children(int(path.parent.name))
    return found


def runs_still(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(other, marks=pytest.mark.slow) for other in (signal.SIGINT, signal.SIGHUP))],
)
def test_it_ends_cleanly_while_it_works(runs: Path, number: int) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("the signal is ignored here, as under nohup, and so by what is started")
    # So much that the summary is under way when it ends.
    (runs / "good" / "rank0.json").write_text(rank_trace(0, run="good", steps=100_000))
    with tracekit_serve("--json", str(runs)) as (process, line):
        printed = json.loads(line)
        assert printed["root"] == str(runs)
        origin, cookie = signed_in(printed["address"])
        status, page = ask(f"{origin}/", Cookie=cookie)
        assert status == 200
        run = re.search(r'"(/runs/good-[^"]*)"', page)
        assert run is not None
        assert ask(origin + run[1], Cookie=cookie)[0] == 200
        for _ in range(PATIENCE_S * 1000):
            started = children(process.pid)
            if started:
                break
        assert started
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")
    # The process by which Python cleans up after others ends by itself, once the others have.
    for _ in range(PATIENCE_S * 100):
        left = [pid for pid in started if runs_still(pid)]
        if not left:
            break
        threading.Event().wait(0.01)
    assert left == []


def test_serve_by_default_answers_only_who_has_the_printed_url(runs: Path) -> None:
    with tracekit_serve(str(runs)) as (process, line):
        assert line == f"serving {runs}\n"
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        origin, cookie = signed_in(address)
        for path in ("/", "/static/style.css", "/runs/good-00000000"):
            status, page = ask(origin + path)
            assert status == 403
            assert "Open the URL that <code>tracekit serve</code> printed" in page
            assert "/runs/good" not in page.replace(path, "")
        assert "good" in ask(f"{origin}/", Cookie=cookie)[1]
        assert ask(f"{origin}/static/style.css", Cookie=cookie)[0] == 200


def test_serve_with_no_token_warns_that_every_user_can_read(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tracekit_serve(str(runs), "--no-token", "--json") as (process, line):
        address = json.loads(line)["address"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        assert "good" in ask(address)[1]
        assert process.stderr is not None
        assert "every user of this machine can read these runs" in process.stderr.readline()
    assert main(["serve", str(runs), "--no-token", "--host", "0.0.0.0"]) == 2
    assert "other machines can reach 0.0.0.0" in capsys.readouterr().err


def test_serve_with_a_token_file_never_prints_the_token(runs: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with tracekit_serve(str(runs), "--token-file", str(token), "--json") as (_, line):
        address = json.loads(line)["address"]
        assert TOKEN not in line
        assert ask(address)[0] == 403
        assert ask(f"{address}?token={TOKEN}")[0] == 303


def test_other_hosts_need_the_token_for_everything(runs: Path) -> None:
    with tracekit_serve(str(runs), "--host", "0.0.0.0", "--json") as (_, line):
        address = urlsplit(json.loads(line)["address"])
        assert address.query.startswith("token=")
        own = f"http://127.0.0.1:{address.port}/"
        assert ask(own)[0] == 403
        assert ask(f"{own}?{address.query}")[0] == 303
        assert ask(own, Host=f"evil.example:{address.port}") == (400, "Invalid host header")


def test_what_cannot_be_served_is_said(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = [
            ([str(runs / "good" / "rank0.json")], 2, "is a file"),
            ([str(runs), "--port", port], 1, f"cannot listen at 127.0.0.1:{port}"),
            ([str(runs), "--port", "x"], 2, "--port"),
            ([str(runs), "--host", "no-such-host.invalid"], 1, "cannot listen"),
            ([str(runs), "--token-file", str(tmp_path / "none")], 2, "cannot be read"),
            ([str(runs), "--allow-host", "http://x"], 2, "give the name of a machine"),
            ([str(runs), "--ui", "ftp://x"], 2, "--ui"),
            ([str(runs), "--cache", str(runs / "good" / "rank0.json")], 1, "cannot be made"),
            ([str(runs), "--cache-size", "0"], 2, "--cache-size"),
            (["nothing://x/y"], 1, "nothing"),
        ]
        for arguments, code, words in cases:
            assert main(["serve", *arguments]) == code, arguments
            printed = capsys.readouterr()
            assert words in printed.err
            assert printed.out == ""


def test_without_the_extra_it_says_what_to_install(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert main(["serve", str(runs)]) == 1
    assert "pip install 'tracekit-ml[serve]'" in capsys.readouterr().err
