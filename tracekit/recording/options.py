"""ProfilerOptions: the configuration of a `Profiler`, which ``tracekit run`` and ``[tool.tracekit]`` also fill."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tracekit.arguments import check_choice, check_seconds, check_whole
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError
from tracekit.handlers.base import COUNTS, TraceHandler
from tracekit.recording.handler_thread import ON_FULL
from tracekit.recording.source import Source
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.distributed import ProcessInfo
    from tracekit.recording.schedule import Schedule

T = TypeVar("T")


def _setting(default: Any, summary: str) -> Any:
    """Return a field that is a plain value, so that files, variables and the command line can give it."""
    return field(default=default, metadata={"summary": summary})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerOptions:
    """The options of a `Profiler`, checked; see there for their meaning.

    ``trace_handlers`` and ``sources`` accept one object or several, and are tuples afterwards.

    Raises:
        ConfigError: An option is wrong. The message begins with its name.
    """

    trace_handlers: tuple[TraceHandler, ...] = ()
    schedule: Schedule | Callable[[int], Any] | None = None
    sources: tuple[Source, ...] = ()
    timestamp: Timestamp | None = None
    counts: str = "rank"
    record_batches: bool = _setting(True, "record each batch as a slice")
    flush_interval: float = _setting(0.2, "seconds until an event is in the file; what a killed process can lose")
    max_buffered_events: int = _setting(1_000_000, "number of events that may wait in memory")
    max_buffered_bytes: int = _setting(64 << 20, "memory in bytes that they may take")
    on_full: str = _setting("drop_newest", f"what happens to events beyond that: {', '.join(ON_FULL)}")
    shutdown_timeout: float = _setting(10.0, "seconds that the end of the recording waits for the files")
    sigterm_grace: float | None = _setting(None, "seconds that SIGTERM is held back until the files are complete")
    run_id: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    node: int | None = None
    attempt: int | None = None
    process: ProcessInfo | None = None
    private: bool | None = _setting(None, "leave host names, user names and paths out of all files")
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        # object.__setattr__: the class is frozen.
        object.__setattr__(
            self, "trace_handlers", _all_of(TraceHandler, "trace_handlers", _adapted(self.trace_handlers))
        )
        object.__setattr__(self, "sources", _all_of(Source, "sources", self.sources))
        if self.schedule is not None and not callable(self.schedule):
            raise ConfigError(
                f"schedule must be a function of the Timestamp, such as cyclic_schedule(...), not {self.schedule!r}"
            )
        if self.timestamp is not None and not isinstance(self.timestamp, Timestamp):
            raise ConfigError(f"timestamp must be a Timestamp, not {self.timestamp!r}")
        check_choice("counts", self.counts, COUNTS)
        check_seconds("flush_interval", self.flush_interval)
        check_seconds("shutdown_timeout", self.shutdown_timeout)
        if self.sigterm_grace is not None:
            check_seconds("sigterm_grace", self.sigterm_grace)
        check_whole("max_buffered_events", self.max_buffered_events)
        check_whole("max_buffered_bytes", self.max_buffered_bytes)
        check_choice("on_full", self.on_full, ON_FULL)

    @property
    def identity(self) -> dict[str, Any]:
        """The options that replace what the environment says of this process; see `detect_process`."""
        names = ("run_id", "rank", "local_rank", "world_size", "node", "attempt")
        return {name: getattr(self, name) for name in names}


SETTINGS: Final = {
    found.name: (found.default, found.metadata["summary"]) for found in fields(ProfilerOptions) if found.metadata
}
"""Default and summary of the options that are plain values, by name."""


def _adapted(handlers: Any) -> Any:
    """Convert objects that define ``__trace_handler__`` to trace handlers."""
    if isinstance(handlers, list | tuple):
        return [_adapted(handler) for handler in handlers]
    make = getattr(handlers, "__trace_handler__", None)
    return handlers if make is None else make()


def _all_of(kind: Callable[..., T], name: str, value: T | Sequence[T]) -> tuple[T, ...]:
    assert isinstance(kind, type)
    values = [value] if isinstance(value, kind) else value
    values = values if isinstance(values, list | tuple) else [values]
    for item in values:
        if not isinstance(item, kind):
            raise ConfigError(f"{name} must be a {kind.__name__} or a list of them, not {value!r}{_remedy(kind, item)}")
    if len({id(item) for item in values}) < len(values):
        raise ConfigError(f"{name} names one {kind.__name__} twice")
    return tuple(values)


def _remedy(kind: type, wrong: Any) -> str:
    """Return the end of the message about something that is not of a kind, where it shows what was meant."""
    if isinstance(wrong, type) and issubclass(wrong, kind):
        return f"; call it: {wrong.__name__}(...)"
    for other, name in ((Source, "sources"), (TraceHandler, "trace_handlers")):
        if isinstance(wrong, other):
            return f"; pass it as {name}="
    is_name = kind is TraceHandler and isinstance(wrong, str | os.PathLike)
    return f"; JSONTraceHandler({os.fspath(wrong)!r}) writes a file" if is_name else ""
