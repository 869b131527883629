"""Serves one trace to one browser on this machine, and ends when it is handed over."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tracekit.errors import StorageError
from tracekit.viewing.page import opening_page
from tracekit.viewing.ui import content_type, fragment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO

    from tracekit.viewing.ui import PerfettoUI

__all__ = ["PERFETTO_PORT", "OneFileServer", "is_same_token", "new_token"]

HOST: Final = "127.0.0.1"
PERFETTO_PORT: Final = 9001
"""The only port of this machine that the content security policy of Perfetto's UI lets it fetch from."""

_PIECE_BYTES: Final = 1 << 20
_PLAIN_BYTES: Final = "application/octet-stream"
_CLIENT_TIMEOUT_S: Final = 30
_COMMON: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def new_token() -> str:
    """Return a random token, safe in a URL."""
    return secrets.token_urlsafe(24)


def is_same_token(given: str, token: str) -> bool:
    """Compare two tokens in constant time."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets."""

    content: bytes | Path
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


class OneFileServer:
    """Serves a trace on the loopback interface, and the page that hands it to Perfetto's UI, or that UI itself.

    Whoever asks must know the token in the address. A request with another ``Host`` (a name that was made to point here) or
    from a page of another origin than the UI's, another method and another path get an empty 404, whatever they ask for.

    Serves from threads of its own between ``__enter__`` and ``__exit__``.

    Args:
        trace: The file.
        ui: Who shows it.
        port: Where to listen; None: at `PERFETTO_PORT`, else anywhere.
        title: What the trace is called in the UI; the file's name by default.

    Attributes:
        port: Where it listens.
        handed_over: Whether the UI has the trace.

    Raises:
        StorageError: The file cannot be read, or the port is in use.
    """

    def __init__(self, trace: Path, ui: PerfettoUI, *, port: int | None = None, title: str | None = None) -> None:
        self._trace = trace
        self._title = title or trace.name
        self._ui = ui
        self._token = new_token()
        self._files: dict[str, Path] = {}
        if ui.folder is not None:
            # Nothing but what is in this table is ever read, whatever a path says.
            self._files = {
                self._entry + quote(path.relative_to(ui.folder).as_posix()): path
                for path in ui.folder.rglob("*")
                if path.is_file()
            }
            self._files[self._entry] = ui.folder / "index.html"
        self.handed_over = False
        self._asked = threading.Event()
        try:
            # Looked at now, so that the error comes before a browser is opened.
            trace.open("rb").close()
        except OSError as error:
            raise StorageError(f"{trace}: cannot be read: {error.strerror or error}") from error
        self._server = self._listen(port)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="tracekit open", daemon=True
        )

    def _listen(self, port: int | None) -> ThreadingHTTPServer:
        service = self

        class Handler(_Handler):
            one_file = service

        for candidate in (PERFETTO_PORT, 0) if port is None else (port,):
            with contextlib.suppress(OSError, OverflowError):
                return _Server((HOST, candidate), Handler)
        where = f"{HOST}, at any port" if port is None else f"{HOST}:{port}"
        raise StorageError(f"cannot listen at {where}: it is in use, or not allowed; choose another --port")

    def __enter__(self) -> OneFileServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        link = "" if self._ui.folder is None else fragment(self._origin + self._trace_path)
        return self._origin + self._entry + link

    @property
    def direct_address(self) -> str | None:
        """The address with which the UI fetches the trace itself; None where its policy does not let it."""
        if self._ui.folder is not None or self.port != PERFETTO_PORT:
            return None
        return self._ui.link(self._origin + self._trace_path)

    @property
    def _origin(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def _root(self) -> str:
        return f"/{self._token}/"

    @property
    def _entry(self) -> str:
        return self._root if self._ui.folder is None else f"{self._root}ui/"

    @property
    def _done_path(self) -> str:
        return f"{self._root}done"

    @property
    def _trace_path(self) -> str:
        return f"{self._root}trace/{quote(self._trace.name, safe='', errors='replace')}"

    def wait(self, idle_s: float) -> bool:
        """Wait until the UI has the trace; return whether it has.

        A UI that is served from here goes on asking for its parts, so that this waits for as long as it does.

        Args:
            idle_s: Give up when nothing was asked for in so many seconds.
        """
        idle_s = min(idle_s, threading.TIMEOUT_MAX)
        while self._asked.wait(idle_s):
            self._asked.clear()
            if self.handed_over and self._ui.folder is None:
                break
        return self.handed_over

    # ---- the answers, given by the threads of the server ----------------------------------------------------------------

    def answer(self, path: str, headers: Message) -> Answer | None:
        """Return the answer to a GET request; None for one that must not have any."""
        path = path.partition("?")[0]
        host = headers.get("Host", "")
        if host not in (f"{HOST}:{self.port}", f"localhost:{self.port}"):
            return None
        if not is_same_token(path[: len(self._root)], self._root):
            return None
        origin = headers.get("Origin")
        if origin not in (None, f"http://{host}"):
            # Of all other pages the UI may read the trace, and nobody anything else.
            if path != self._trace_path or self._ui.folder is not None or origin != self._ui.origin:
                return None
            return Answer(self._trace, _PLAIN_BYTES, {"Access-Control-Allow-Origin": self._ui.origin})
        # A page elsewhere does not say its origin when it shows an image, a frame or a script; the browser says this instead.
        # It may lead here: the link may have been clicked in a terminal that is a web page.
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not (
            headers.get("Sec-Fetch-Dest") == "document" and path == self._entry
        ):
            return None
        if path == self._trace_path:
            return Answer(self._trace, _PLAIN_BYTES)
        if path in self._files:
            return Answer(self._files[path], content_type(self._files[path]))
        if self._ui.folder is None and path == self._entry:
            return self._page()
        return Answer(b"", "text/plain") if path == self._done_path else None

    def sent(self, path: str, answer: Answer) -> None:
        """Note that an answer has arrived whole."""
        # What the page gets it only passes on, and it says when it has; the UI is given the trace for itself.
        to_ui = answer.content is self._trace and (
            self._ui.folder is not None or "Access-Control-Allow-Origin" in answer.headers
        )
        if to_ui or path == self._done_path:
            self.handed_over = True
        self.note_request()

    def note_request(self) -> None:
        """Note that somebody is there."""
        self._asked.set()

    def _page(self) -> Answer:
        nonce = secrets.token_urlsafe(16)
        page = opening_page(
            title=self._title,
            path=str(self._trace.absolute()),
            ui=self._ui.address,
            origin=self._ui.origin,
            link=self._ui.link(),
            trace=self._trace_path,
            done=self._done_path,
            direct=self.direct_address,
            nonce=nonce,
        )
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return Answer(page, "text/html; charset=utf-8", {"Content-Security-Policy": policy})


class _Server(ThreadingHTTPServer):
    # A browser opens connections that it never uses, and must not be waited for.
    daemon_threads = True
    block_on_close = False
    # Another program that listens at the port already must be noticed.
    allow_reuse_port = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that breaks off has its reasons."""


class _Handler(BaseHTTPRequestHandler):
    """Sends the answers of a `OneFileServer`."""

    one_file: OneFileServer
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        answer = self.one_file.answer(self.path, self.headers)
        if answer is None:
            self.send_error(404)
            return
        if isinstance(answer.content, bytes):
            self._send(answer, len(answer.content))
            self.wfile.write(answer.content)
        else:
            try:
                file = answer.content.open("rb")
            except OSError:
                self.send_error(404)
                return
            with file:
                self._send_file(answer, file)
        self.one_file.sent(self.path.partition("?")[0], answer)

    def _send_file(self, answer: Answer, file: BinaryIO) -> None:
        # A trace that is still recorded may grow meanwhile.
        left = os.fstat(file.fileno()).st_size
        self._send(answer, left)
        while piece := file.read(min(left, _PIECE_BYTES)):
            self.wfile.write(piece)
            left -= len(piece)
            self.one_file.note_request()

    def _send(self, answer: Answer, length_bytes: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(length_bytes))
        for name, value in {**_COMMON, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse, in the same way whatever is wrong: whoever asks learns nothing."""
        del code, message, explain
        self.close_connection = True
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def version_string(self) -> str:
        """Return the name of the server."""
        return "tracekit"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
        """Log nothing."""
