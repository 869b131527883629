"""``tracekit serve`` within a test: a real server on the loopback interface, and requests to it byte by byte."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tracekit.view.open.ui import PerfettoUI
from tracekit.view.serve.app import make_application
from tracekit.view.serve.security import Access
from tracekit.view.serve.server import listen, make_server, serve
from tracekit.view.serve.service import Service
from tracekit.view.serve.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["TOKEN", "Answer", "Served", "rank_trace", "served", "write_run"]

TOKEN = "a-token-for-the-tests"
PATIENCE_S = 200.0


@dataclass(frozen=True)
class Answer:
    """What came back; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def link(self, pattern: str) -> str:
        """Return the first address in the page that matches."""
        match = re.search(rf'(?:href|action)="({pattern})"', self.text)
        assert match is not None, self.text
        return match[1]


class Served:
    """A server, and who asks it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.origin = f"http://{self.host}"
        self.address = f"{self.origin}/?token={TOKEN}"
        self.cookie: str | None = None

    def get(self, path: str, method: str = "GET", host: str | None = None, **headers: str) -> Answer:
        """Send a request; names of headers have _ for -."""
        return self._send(method, path, host, {name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, **fields: str) -> Answer:
        """Send a form of one of the server's own pages."""
        body = urlencode(fields).encode()
        headers = {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"}
        return self._send("POST", path, None, headers, body)

    def sign_in(self) -> None:
        """Keep the cookie that the token gives."""
        answer = self.post("/sign-in", token=TOKEN)
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def wait_for(self, path: str, fits: Callable[[Answer], bool]) -> Answer:
        """Ask for a page until it is as it should be in the end."""
        for _ in range(round(PATIENCE_S * 20)):
            answer = self.get(path)
            if fits(answer):
                return answer
            threading.Event().wait(0.05)
        raise AssertionError(answer.text)

    def _send(
        self, method: str, path: str, host: str | None, headers: dict[str, str], body: bytes | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", host if host is not None else self.host)
            if self.cookie is not None:
                connection.putheader("Cookie", self.cookie)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None and "Content-Length" not in headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())


@contextlib.contextmanager
def served(
    root: str,
    cache: Path,
    *,
    may_capture: bool = False,
    token_to_read: bool = True,
    signed_in: bool = True,
    ui: PerfettoUI | None = None,
    cache_bytes: int = 1_000_000_000,
) -> Iterator[Served]:
    """Serve a folder or URL of runs, by default to a browser that has opened the URL with the token."""
    access = Access("127.0.0.1", TOKEN, token_to_read=token_to_read)
    service = Service(root, Store(cache, cache_bytes), ui or PerfettoUI(), may_capture=may_capture)
    listener = listen("127.0.0.1", 0)
    server = Served(listener.getsockname()[1])
    serving = make_server(make_application(service, access))
    thread = threading.Thread(target=serve, args=(serving, listener), name="tracekit serve test")
    thread.start()
    try:
        if token_to_read and signed_in:
            server.sign_in()
        yield server
    finally:
        serving.should_exit = True
        thread.join()
        service.close()


def write_run(folder: Path, *ranks: int, **options: Any) -> None:
    """Write the traces of some ranks; see `rank_trace`."""
    folder.mkdir(parents=True)
    for rank in ranks:
        (folder / f"rank{rank}.json").write_text(rank_trace(rank, **options))


def rank_trace(rank: int, *, run: str = "run", steps: int = 20, name: str = "forward", ended: bool = True) -> str:
    """Return the rank trace of one of two ranks; the second one is slower."""
    pid, loop, begin_us = 4_000_000 + rank, 1 << 30, 1_000.0
    own = {
        "rank": rank,
        "world_size": 2,
        "pid": pid,
        "host": "host-a",
        "boot_id": "b",
        "run_id": run,
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
    }
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": own},
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": loop, "args": {"name": "training loop"}},
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": pid, "args": {"name": "training"}},
    ]
    for step in range(steps):
        length_us = 10_000 + 2_000 * rank + step % 3
        rest = {"pid": pid, "args": {"batch": step}}
        events += [
            {"ph": "X", "name": name, "tid": pid, "ts": begin_us + 10, "dur": length_us - 4_000, **rest},
            {"ph": "X", "name": "backward", "tid": pid, "ts": begin_us + length_us - 3_900, "dur": 3_500, **rest},
            {"ph": "X", "name": "batch", "cat": "training loop", "tid": loop, "ts": begin_us, "dur": length_us, **rest},
        ]
        begin_us += length_us + 5
    if ended:
        events.append({"ph": "M", "name": "tracekit_summary", "pid": pid, "tid": pid, "args": {"dropped": {}}})
    text = "[\n" + ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return text + ("\n]\n" if ended else ",\n")
