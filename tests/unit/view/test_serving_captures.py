"""Captures asked for on a page: what is read of one is of one moment, whatever its thread does meanwhile."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from tracekit.capture.control_folder import CaptureState, CaptureStatus, ControlFolder, RankStatus
from tracekit.capture.coordinator import CaptureCoordinator
from tracekit.errors import TracekitError
from tracekit.view.serve.captures import ENDED, RUNNING, Capture, Captures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 200


def status(capture: CaptureStatus | None = None, updates: int = 1) -> RankStatus:
    return RankStatus(
        rank=0, world_size=1, run_id="live", host="h", pid=os.getpid(), updates=updates, batch=7, capture=capture
    )


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """The control folder of a rank that listens: this process."""
    folder = ControlFolder(tmp_path / "control")
    folder.make()
    folder.write(status())
    return tmp_path / "control"


@pytest.fixture
def captures() -> Iterator[Captures]:
    captures = Captures()
    yield captures
    captures.close()


def ended(captures: Captures) -> Capture:
    for _ in range(PATIENCE_S * 100):
        (capture,) = captures.of("live")
        if capture.state == ENDED:
            return capture
        threading.Event().wait(0.01)
    raise AssertionError("the capture has not ended")


def test_what_was_read_of_a_capture_stays_what_it_was(control: Path, captures: Captures) -> None:
    captures.start("live", control, steps=5, ranks=None)
    (before,) = captures.of("live")
    done = CaptureStatus(id=before.id, state=CaptureState.DONE, first_batch=8, last_batch=12, files=("a.json",))
    ControlFolder(control).write(status(done, updates=2))
    after = ended(captures)
    assert (after.id, after.error) == (before.id, "")
    assert (after.lines, after.files) == (("rank 0: batches 8 to 12",), ("a.json",))
    assert (before.state, before.lines, before.files) == (RUNNING, (), ())


def test_run_is_asked_for_one_capture_at_a_time(control: Path, captures: Captures) -> None:
    captures.start("live", control, steps=5, ranks=None)
    with pytest.raises(TracekitError, match="under way already"):
        captures.start("live", control, steps=5, ranks=None)
    assert len(captures.of("live")) == 1
    assert captures.of("other") == []


def test_capture_that_is_followed_no_more_says_so(control: Path, captures: Captures) -> None:
    captures.start("live", control, steps=5, ranks=None)
    captures.close()
    assert ended(captures).error == "it was not followed to its end; the ranks have gone on"
    with pytest.raises(TracekitError, match="too many captures"):
        captures.start("another", control, steps=5, ranks=None)


def test_capture_that_breaks_down_is_over_and_says_so(
    control: Path, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(coordinator: CaptureCoordinator) -> None:
        raise OverflowError("one by zero")

    monkeypatch.setattr(CaptureCoordinator, "poll", break_down)
    captures.start("live", control, steps=5, ranks=None)
    assert "OverflowError: one by zero" in ended(captures).error
    captures.start("live", control, steps=5, ranks=None)  # the next one may begin
