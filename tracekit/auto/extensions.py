"""Trace handlers and sources of other packages, by the names of their entry points."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError
from tracekit.recording.options import ProfilerOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.handlers.base import TraceHandler
    from tracekit.recording.source import Source

logger = logging.getLogger("tracekit")


def load_handlers(names: Iterable[str]) -> list[TraceHandler]:
    """Return the trace handlers of entry points in the group ``tracekit.handlers``, each made by a call without arguments.

    One that fails is left out with a line in the log.
    """
    return _load("tracekit.handlers", "trace_handlers", names)


def load_sources(names: Iterable[str]) -> list[Source]:
    """Return the sources of entry points in the group ``tracekit.sources``; see `load_handlers`."""
    return _load("tracekit.sources", "sources", names)


def _load(group: str, option: str, names: Iterable[str]) -> list[Any]:
    made: list[Any] = []
    for name in names:
        try:
            checked: dict[str, Any] = {option: [_entry_point(group, name).load()()]}
            made += getattr(ProfilerOptions(**checked), option)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - code of others; training goes on without it
            logger.warning("tracekit: %r of %s is left out: %s: %s", name, group, type(error).__name__, error)
    return made


def _entry_point(group: str, name: str) -> importlib.metadata.EntryPoint:
    known = {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}
    if name not in known:
        raise ConfigError(f"no installed package has it; there are: {', '.join(sorted(known)) or 'none'}")
    return known[name]
