"""Fault tests notice faults: each of these fails with a bad writer, or with another bad way to record."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import processes, test_clock_faults, test_local_disk, test_remote_storage
from tests.perfetto import EngineError
from tracekit import MergeError
from tracekit.clock import Clock
from tracekit.formats import chrome_writer

if TYPE_CHECKING:
    from tracekit.testing import FakeClock

# The fixtures of the tests of remote storage.
server, store = test_remote_storage.server, test_remote_storage.store

PATIENCE_S = 15.0


def by_the_wall_clock(fake: FakeClock) -> Clock:
    return Clock(wall_ns=lambda: fake.wall_ns, monotonic_ns=lambda: fake.wall_ns)


def any_nanosecond(records: Any, *_: object) -> Any:
    return records


BY_WRITERS: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("bad_handlers", "a_handler_that_raises", {"raiser": "in events"}, ["loses silently"]),
    ("bursts", "every_event_of_a_burst", {"on_full": "drop_newest", "seconds": 0.2}, ["loses silently"]),
    ("crash_points", "a_kill_at_exactly_each", {}, ["head later", "in pieces", "object form", "tears records"]),
    ("crash_points", "recovery_gets_every", {}, ["object at close", "tears records"]),
    (
        "data_loader_workers",
        "workers_record",
        {"method": "fork", "workers": 2, "ways": ["exception"]},
        ["never flushes", "python buffer"],
    ),
    ("elastic_restart", "every_attempt", {}, ["in pieces"]),
    ("forks", "forks_while_threads_record", {"forks": 200}, ["locks after fork", "loses silently"]),
    ("forks", "a_fork_inside_a_marker", {"records": False}, ["python buffer"]),
    ("forks", "children_of_every_end", {}, ["never flushes", "python buffer"]),
    ("hostile_arguments", "no_argument_raises", {"examples": 100}, ["loses silently", "python json"]),
    ("kills", "a_kill_at_any_time", {"rate": 20_000, "kills": 2}, ["never flushes", "object at close", "object form"]),
    ("kills", "other_sudden_ends", {"death": "os._exit"}, ["never flushes", "object at close"]),
    ("kills", "a_marker_around_a_hang", {}, ["only whole slices"]),
    ("lifetimes", "a_profiler_that_is_never_stopped", {}, ["object at close", "python buffer"]),
    ("lifetimes", "events_after_the_end", {}, ["loses silently"]),
    ("local_disk", "d1_d2_d3", {"disk": test_local_disk.LIMITED}, ["in pieces", "object at close"]),
    ("local_disk", "d5_what_is_removed", {"what": "file"}, ["in pieces"]),
    ("private_recordings", "a_link_that_somebody_planted", {"place": "live"}, ["object at close"]),
    ("reentrancy", "a_signal_handler", {"seconds": 1}, ["loses silently", "tears records"]),
    ("reentrancy", "finalisers", {}, ["loses silently"]),
    ("remote_storage", "segments_are_uploaded", {}, ["uploads at close"]),
    ("remote_storage", "r1_", {}, ["uploads at close", "uploads each flush"]),
    ("remote_storage", "r2_", {}, ["uploads each flush"]),
    ("remote_storage", "r3_", {}, ["uploads at close"]),
    ("remote_storage", "r4_a_connection_that_is_cut", {}, ["streams to object"]),
    ("remote_storage", "r5_", {}, ["streams to object", "uploads at close"]),
    ("remote_storage", "r6_", {}, ["uploads at close"]),
    ("remote_storage", "r9_two", {}, ["uploads each flush"]),
    ("soak", "what_was_flushed", {"events": 120_000}, ["loses silently", "object at close"]),
    ("tasks", "a_thousand_tasks", {}, ["loses silently", "one track"]),
    ("tasks", "generators_that_interleave", {}, ["loses silently", "one track"]),
    ("tasks", "the_slice_of_an_async_generator", {}, ["one track"]),
    (
        "termination_faults",
        "sigterm_with_grace",
        {"waits": "sleep"},
        ["object form", "only whole slices", "tears records"],
    ),
    ("termination_faults", "sigterm_without_grace", {}, ["never flushes", "object form"]),
    ("threads", "100_threads", {"rounds": 200}, ["loses silently", "one track"]),
    ("threads", "short_lived_threads", {"threads": 2000}, ["loses silently", "one track"]),
]
"""The module and the beginning of a test's name, its arguments, and the bad writers."""
IN_OTHER_WAYS: list[tuple[str, str, dict[str, Any], tuple[Any, str, Any]]] = [
    *(
        ("clock_faults", "durations_stay_true", {"name": name}, ("clock_faults", "clock_of", by_the_wall_clock))
        for name in test_clock_faults.FAULTS
    ),
    ("clock_faults", "forty_days", {}, (chrome_writer, "_exact_records", any_nanosecond)),
    ("clock_sync_faults", "a_rank_that_has_none", {}, ("clock_sync_faults", "SYNC", "barrier")),
    ("clock_sync_faults", "ranks_that_die_or_hang", {}, ("clock_sync_faults", "SYNC", "barrier")),
    ("private_recordings", "a_private", {"way": "argument"}, ("private_recordings", "PRIVATE", "{}")),
    ("termination_faults", "sigterm_ends_also", {}, ("termination_faults", "HANDLER", "python's alone")),
]
"""The module, the beginning of a name, arguments, and where a name gets a bad value."""
ROWS = [
    *((*row, (processes, "writer", bad)) for *row, all_bad in BY_WRITERS for bad in all_bad),
    *IN_OTHER_WAYS,
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "arguments", "bad"),
    ROWS,
    ids=[f"{module}-{name}-{bad[1]}-{getattr(bad[2], '__name__', bad[2])}" for module, name, _, bad in ROWS],
)
def test_a_fault_test_fails_for_a_bad_recorder(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    name: str,
    arguments: dict[str, Any],
    bad: tuple[Any, str, Any],
) -> None:
    tests = importlib.import_module(f"tests.faults.test_{module}")
    (fault,) = (value for key, value in vars(tests).items() if key.startswith(f"test_{name}"))
    where, attribute, value = bad
    if isinstance(where, str):
        where = importlib.import_module(f"tests.faults.test_{where}")
    monkeypatch.setattr(where, attribute, value)
    monkeypatch.setattr(processes, "PATIENCE_S", PATIENCE_S)  # or each would wait for minutes
    fixtures = {
        key: request.getfixturevalue(key) for key in inspect.signature(fault).parameters if key not in arguments
    }
    # Any other exception is a mistake of the test itself.
    with pytest.raises((AssertionError, EngineError, MergeError, pytest.fail.Exception)):
        fault(**fixtures, **arguments)
