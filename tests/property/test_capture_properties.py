"""Whatever lies in a control folder: it is a request, or it is refused; and whatever is asked, the windows are whole."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracekit.capture.control_folder import ControlFolder, RankStatus, Request
from tracekit.capture.state_machine import RankCapture
from tracekit.errors import ConfigError
from tracekit.recording.schedule import ProfilerAction

NAMES = [
    *(field.name for field in fields(Request)),
    *["version", "capture", "rank", "world_size", "pid", "state", "files"],
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)
DOCUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8).map(lambda value: json.dumps(value).encode())
ACTIONS = st.sampled_from(list(ProfilerAction))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    start = draw(st.sampled_from(["now", "batch", "time"]))
    return Request(
        id=draw(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)),
        stop=draw(st.booleans()),
        ranks=draw(st.none() | st.sets(st.integers(0, 1000), min_size=1).map(sorted).map(tuple)),
        steps=draw(st.none() | st.integers(0, 1_000_000_000)),
        seconds=draw(st.none() | st.floats(0.001, 1e6)),
        warmup=draw(st.none() | st.integers(0, 1000)),
        together=draw(st.booleans()),
        start_batch=draw(st.integers(0, 2**62)) if start == "batch" else None,
        start_time=draw(st.floats(0, 3e9)) if start == "time" else None,
        expires=draw(st.none() | st.floats(0, 3e9)),
    )


@given(requests())
def test_a_request_is_read_as_it_was_written(request: Request) -> None:
    assert Request.from_bytes(request.to_bytes()) == request


@given(st.binary(max_size=200) | DOCUMENTS)
def test_anything_is_a_request_or_refused(content: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = ControlFolder(Path(name))
        folder.make()
        (folder.path / "request.json").write_bytes(content)
        (folder.path / "request.json").chmod(0o600)
        (folder.path / "ranks" / "rank00000.json").write_bytes(content)
        try:
            request = folder.read_request()
        except ConfigError:
            assert folder.read_request() is None, "refused once"
        else:
            assert request is not None
            assert request.ranks is None or all(rank >= 0 for rank in request.ranks)
        assert all(isinstance(status, RankStatus) for status in folder.statuses().values())


@given(
    st.lists(ACTIONS, min_size=30, max_size=30),
    st.integers(0, 4),
    st.integers(0, 3),
    st.none() | st.integers(0, 12),
    st.none() | st.integers(0, 25),
    st.integers(0, 5),
)
def test_a_window_is_whole_and_of_its_own_whatever_the_base_schedule_does(
    base: list[ProfilerAction], steps: int, warmup: int, start: int | None, stopped_at: int | None, asked_at: int
) -> None:
    """Played as the profiler plays it: a window ends after ACTIVE_AND_SAVE, or before a batch that is not active."""
    request = Request(id="x", start_batch=start)
    window = RankCapture(request, steps=steps or None, seconds=600, warmup=warmup)
    previous, windows, current = ProfilerAction.SKIP, list[list[int]](), list[int]()
    for batch, wanted in enumerate([*base, ProfilerAction.SKIP, ProfilerAction.SKIP]):
        if batch == stopped_at:
            window.stop("enough")
        action = wanted if batch < asked_at else window.action(batch, 0, 0, wanted, previous)
        if action not in (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE) and current:
            windows.append(current)
            current = []
        if action in (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE):
            current.append(batch)
        if action is ProfilerAction.ACTIVE_AND_SAVE:
            windows.append(current)
            current = []
        previous = action
    windows.append(current)
    status: Any = window.status
    if status.last_batch is not None:
        batches = list(range(status.first_batch, status.last_batch + 1))
        assert batches in windows, "the batches of the capture are one window, and nothing else is in it"
        assert not steps or len(batches) <= steps
        if stopped_at is None and steps:
            assert len(batches) == steps
