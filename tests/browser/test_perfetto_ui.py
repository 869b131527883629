"""Perfetto's real UI shows what the tests think it shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Browser

PNG_START = b"\x89PNG\r\n"


def two_ranks(names: list[str]) -> list[dict[str, object]]:
    """Return a slice on each of two ranks, the second rank first, and the ranks' names."""
    events: list[dict[str, object]] = []
    for pid, name in sorted(enumerate(names, 1), reverse=True):
        events += [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}},
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": pid * 10, "args": {"name": "training"}},
            {"ph": "X", "name": "forward", "pid": pid, "tid": pid * 10, "ts": 100 * pid, "dur": 50},
        ]
    return events


def test_the_ui_shows_two_ranks_in_order_with_their_names(browser: Browser, tmp_path: Path) -> None:
    trace = tmp_path / "two ranks.json"
    trace.write_text(json.dumps(two_ranks(["rank 0 · GPU 0", "rank 1 · GPU 1"]), ensure_ascii=False), encoding="utf-8")

    screen = browser.screenshot(trace, tmp_path / "screen.png")

    assert screen.error is None
    assert screen.groups == ["rank 0 · GPU 0 1", "rank 1 · GPU 1 2"]
    assert "training 10" in screen.names
    assert screen.png.read_bytes().startswith(PNG_START)


@pytest.mark.slow
def test_the_ui_shows_an_error_dialog_for_a_cut_object(browser: Browser, tmp_path: Path) -> None:
    trace = tmp_path / "cut.json"
    trace.write_text('{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2},')

    screen = browser.screenshot(trace, tmp_path / "screen.png")

    assert "JSON trace file is incomplete" in (screen.error or "")
    assert screen.names == []
