"""Opens traces in Perfetto's real UI, in a headless Chromium, and returns the visible rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.perfetto.install import browser_files, engine_files

TIMEOUT_S = 270.0


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
        self._engine = engine_files()
        browser_files()  # fail now rather than at the first picture

    def screenshot(self, trace: str | os.PathLike[str], png: str | os.PathLike[str], *, expand: bool = True) -> Screen:
        """Open a trace, and all groups with ``expand``; wait until the UI has drawn it, and take a picture.

        An error dialog of the UI does not raise: see `Screen.error`.
        """
        seen = run_program(
            Path(__file__).with_name("browser.js"),
            trace,
            webRoot=str(self._engine.web_root),
            trace=str(Path(trace).resolve()),
            png=str(Path(png).resolve()),
            expand=expand,
        )
        names = [track["name"] for track in seen["tracks"]]
        groups = [track["name"] for track in seen["tracks"] if track["depth"] == 0]
        return Screen(names, groups, seen["error"], Path(png))
