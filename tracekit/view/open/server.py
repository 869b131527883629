"""Serve one trace to one browser on this machine, until it is handed over to Perfetto's UI."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from tracekit.errors import StorageError
from tracekit.view.open.ui import PerfettoUI, content_type, fragment

if TYPE_CHECKING:
    from email.message import Message

HOST: Final = "127.0.0.1"
PERFETTO_PORT: Final = 9001
"""The only port of this machine that the content security policy of Perfetto's UI lets it fetch from."""
STATIC_FOLDER: Final = Path(__file__).parents[1] / "static"
"""The scripts and styles of all pages."""

_PIECE_BYTES: Final = 1 << 20
_BINARY: Final = "application/octet-stream"
_TIMEOUT_S: Final = 30
_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
_OTHER_WAY: Final = """<a href="%s" rel="noreferrer">let Perfetto fetch the trace</a>
(the browser asks whether it may reach this machine), or """


def new_token() -> str:
    """Return a random token, safe in a URL."""
    return secrets.token_urlsafe(24)


def is_same_token(given: str, token: str) -> bool:
    """Compare two tokens in constant time."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


class Answer(NamedTuple):
    """The answer to a request: bytes or a file, and its headers."""

    content: bytes | Path
    content_type: str
    headers: Mapping[str, str] = {}


class OneFileServer:
    """Serves a trace on the loopback interface, and the page that hands it to Perfetto's UI, or that UI itself.

    Every address needs the token in it. A request with a foreign ``Host`` (DNS rebinding), from a page of another origin
    than the UI's, with another method or path gets an empty 404. Serves between ``__enter__`` and ``__exit__``. The port is by
    default `PERFETTO_PORT`, or any where that is in use. Raises StorageError if the file cannot be read, or the port is in use.
    """

    def __init__(self, trace: Path, ui: PerfettoUI, *, port: int | None = None) -> None:
        self._trace = trace
        self._ui = ui
        self._root = f"/{new_token()}/"
        self._entry = self._root if ui.folder is None else f"{self._root}ui/"
        self._done_path = f"{self._root}done"
        self._trace_path = f"{self._root}trace/{quote(trace.name, safe='', errors='replace')}"
        self._files: dict[str, Path] = {}
        if ui.folder is not None:
            # No path in a request is ever used as one: only these files are served.
            for path in filter(Path.is_file, ui.folder.rglob("*")):
                self._files[self._entry + quote(path.relative_to(ui.folder).as_posix())] = path
            self._files[self._entry] = ui.folder / "index.html"
        self.handed_over = False  # true once the UI has the trace
        self._asked = threading.Event()
        try:
            trace.open("rb").close()  # before a browser is opened
        except OSError as error:
            raise StorageError(f"{trace}: cannot be read: {error.strerror or error}") from error
        self._server = self._listen(port)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="tracekit open", daemon=True
        )

    def _listen(self, port: int | None) -> ThreadingHTTPServer:
        handler = type("Handler", (_Handler,), {"one_file": self})
        for candidate in (PERFETTO_PORT, 0) if port is None else (port,):
            with contextlib.suppress(OSError, OverflowError):
                return _Server((HOST, candidate), handler)
        where = f"{HOST}, at any port" if port is None else f"{HOST}:{port}"
        raise StorageError(f"cannot listen at {where}: it is in use, or not allowed; choose another --port")

    def __enter__(self) -> OneFileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return (
            self._origin + self._entry + ("" if self._ui.folder is None else fragment(self._origin + self._trace_path))
        )

    @property
    def direct_address(self) -> str | None:
        """The address that lets the UI fetch the trace itself; None where its policy forbids that."""
        if self._ui.folder is not None or self.port != PERFETTO_PORT:
            return None
        return self._ui.link(self._origin + self._trace_path)

    @property
    def _origin(self) -> str:
        return f"http://{HOST}:{self.port}"

    def wait(self, idle_s: float) -> bool:
        """Wait until the UI has the trace, or for some time without a request; return whether the UI has it.

        A UI that is served from here asks for its parts later on, so that this waits until it is idle.
        """
        idle_s = min(idle_s, threading.TIMEOUT_MAX)
        while self._asked.wait(idle_s):
            self._asked.clear()
            if self.handed_over and self._ui.folder is None:
                break
        return self.handed_over

    # ---- answers, in the threads of the server --------------------------------------------------------------------------

    def answer(self, path: str, headers: Message) -> Answer | None:
        """Return the answer to a GET request; None to refuse it."""
        path = path.partition("?")[0]
        host = headers.get("Host", "")
        if host not in (f"{HOST}:{self.port}", f"localhost:{self.port}"):
            return None
        if not is_same_token(path[: len(self._root)], self._root):
            return None
        origin = headers.get("Origin")
        if origin not in (None, f"http://{host}"):
            # The UI may read the trace; no other page may read anything.
            if path != self._trace_path or self._ui.folder is not None or origin != self._ui.origin:
                return None
            return Answer(self._trace, _BINARY, {"Access-Control-Allow-Origin": self._ui.origin})
        # Images, frames and scripts of a page elsewhere come without an origin. A link may lead here, as in a web terminal.
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not (
            headers.get("Sec-Fetch-Dest") == "document" and path == self._entry
        ):
            return None
        if path == self._trace_path:
            return Answer(self._trace, _BINARY)
        if path in self._files:
            return Answer(self._files[path], content_type(self._files[path]))
        if self._ui.folder is None and path == self._entry:
            return self._page()
        return Answer(b"", "text/plain") if path == self._done_path else None

    def sent(self, path: str, answer: Answer) -> None:
        """Record that an answer has arrived whole."""
        # The page passes the trace on, and reports it; the UI has it at once.
        to_ui = self._ui.folder is not None or "Access-Control-Allow-Origin" in answer.headers
        if path == self._done_path or (to_ui and answer.content is self._trace):
            self.handed_over = True
        self.note_request()

    def note_request(self) -> None:
        """Record that a browser is there."""
        self._asked.set()

    def _page(self) -> Answer:
        nonce = secrets.token_urlsafe(16)
        given = {
            "title": self._trace.name,
            "origin": self._ui.origin,
            "link": self._ui.link(),
            "trace": self._trace_path,
            "done": self._done_path,
            "gone": "tracekit no longer serves the trace. Run tracekit open again.",
        }
        page = Path(__file__).with_name("page.html").read_text("utf-8") % {
            "title": html.escape(self._trace.name),
            "path": html.escape(str(self._trace.absolute())),
            "ui": html.escape(self._ui.address),
            # Inside of a script element only the end tag and comments are not plain text.
            "given": json.dumps(given).replace("<", "\\u003c"),
            "other": "" if self.direct_address is None else _OTHER_WAY % html.escape(self.direct_address),
            "handover": (STATIC_FOLDER / "handover.js").read_text("utf-8"),
            "style": (STATIC_FOLDER / "style.css").read_text("utf-8"),
            "nonce": nonce,
        }
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        content = page.encode("utf-8", "replace")
        return Answer(content, "text/html; charset=utf-8", {"Content-Security-Policy": policy})


class _Server(ThreadingHTTPServer):
    # A browser opens connections that it never uses, and must not be waited for.
    daemon_threads = True
    block_on_close = False
    # Another program that listens at the port must be noticed.
    allow_reuse_port = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser may break off."""


class _Handler(BaseHTTPRequestHandler):
    """Sends the answers of a `OneFileServer`."""

    one_file: OneFileServer
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        answer = self.one_file.answer(self.path, self.headers)
        if answer is None:
            self.send_error(404)
            return
        try:
            file = io.BytesIO(answer.content) if isinstance(answer.content, bytes) else answer.content.open("rb")
        except OSError:
            self.send_error(404)
            return
        with file:
            # A trace that is still recorded may grow meanwhile.
            left = len(answer.content) if isinstance(answer.content, bytes) else os.fstat(file.fileno()).st_size
            self.send_response(200)
            own = {"Content-Type": answer.content_type, "Content-Length": str(left)}
            for name, value in {**own, **_HEADERS, **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            while piece := file.read(min(left, _PIECE_BYTES)):
                self.wfile.write(piece)
                left -= len(piece)
                self.one_file.note_request()
        self.one_file.sent(self.path.partition("?")[0], answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in the same way for all reasons."""
        del code, message, explain
        self.close_connection = True
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def version_string(self) -> str:
        """Return the name of the server."""
        return "tracekit"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""
