"""``tracekit serve`` as a program: it says where it is, and ends when it is told to, with nothing left."""

from __future__ import annotations

import contextlib
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

from tests.served import TOKEN, Served, rank_trace, write_run
from tracekit.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 200


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "good", 0, 1, run="good")
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
        port, token = re.findall(r":(\d+)/(\?token=.*)", printed["address"])[0]
        server = Served(int(port))
        server.cookie = server.get(f"/{token}").headers["set-cookie"].partition(";")[0]
        assert server.get(server.get("/").link('/runs/good-[^"]*')).status == 200
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


WITH_TOKEN = r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}"
WITHOUT = r"http://127\.0\.0\.1:\d+/"


@pytest.mark.parametrize(
    ("arguments", "printed", "status", "words"),
    [
        ([], WITH_TOKEN, 403, ""),
        (["--no-token"], WITHOUT, 200, "every user of this machine can read these runs"),
        (["--token-file", "{token}"], WITHOUT, 403, ""),
        (["--host", "0.0.0.0"], r"http://[\w.-]+:\d+/\?token=[\w-]{32}", 403, ""),
    ],
    ids=["default", "no token", "token file", "all hosts"],
)
def test_only_who_has_the_token_is_answered_unless_none_is_asked_for(
    runs: Path, tmp_path: Path, arguments: list[str], printed: str, status: int, words: str
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with tracekit_serve(str(runs), *(argument.format(token=token) for argument in arguments)) as (process, line):
        assert line == f"serving {runs}\n"
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(printed, address)
        parts = urlsplit(address)
        assert parts.port is not None
        server = Served(parts.port)
        answer = server.get("/")
        assert (answer.status, "/runs/good" in answer.text) == (status, status == 200)
        assert words in (process.stderr.readline() if words else "")
        entered = server.get(f"/?{parts.query or f'token={TOKEN}'}")
        if status == 403:
            server.cookie = entered.headers["set-cookie"].partition(";")[0]
            assert (entered.status, entered.headers["location"]) == (303, "/")
            assert "good" in server.get("/").text
        assert server.get("/", host=f"evil.example:{parts.port}").status == 400


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
            ([str(runs), "--no-token", "--host", "0.0.0.0"], 2, "other machines can reach 0.0.0.0"),
        ]
        for arguments, code, words in cases:
            assert main(["serve", *arguments]) == code, arguments
            printed = capsys.readouterr()
            assert words in printed.err
            assert printed.out == ""
