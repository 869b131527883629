"""The options of ``tracekit run``: how each is read, and the values that the processes of a run get."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import parse_ranks, parse_steps, read_log_service, read_seconds, resolve_path
from tracekit.errors import ConfigError
from tracekit.recording.options import SETTINGS, ProfilerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SIZE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(MB|GB|TB)")
_UNIT_BYTES: Final = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
_MIN_BYTES: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the recording in the processes of a run, and their defaults.

    Attributes:
        folder: Folder or URL of the rank traces, with the fields of a file name.
        merge: Merge the ranks at the end.
        log_to: The service that the merged trace is logged to.
        timeout: Seconds that the merge waits for the other ranks.
        limit: Maximum size of the traces of a rank in bytes; the oldest segments are removed.
        steps: First batch of torch.profiler, and the batch after its last one; None for no torch.profiler.
        ranks: Ranks that run torch.profiler; None for all.
        with_stack, memory, shapes: Options of torch.profiler.
        on_demand: Record when ``tracekit capture`` asks for it only.
        flight_recorder: Keep the last seconds in memory and write them at the end; 0 records to files.
        handlers, sources: Names of entry points in ``tracekit.handlers`` and ``tracekit.sources``.
        profiler: Options of the `Profiler`, by name.
        notes: Local folder for the notes of the processes to ``tracekit run``; empty without it.
        merged: The merged trace that rank 0 writes at its end; empty where ``tracekit run`` merges.
    """

    folder: str = "traces/{run_id}"
    merge: bool = True
    log_to: str | None = None
    timeout: float = 60.0
    limit: int = 2 * 10**9
    steps: tuple[int, int] | None = None
    ranks: tuple[int, ...] | None = None
    with_stack: bool = False
    memory: bool = False
    shapes: bool = False
    on_demand: bool = False
    flight_recorder: float = 0.0
    handlers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    profiler: dict[str, Any] = field(default_factory=dict)
    notes: str = ""
    merged: str = ""

    @classmethod
    def of(cls, chosen: Mapping[str, Any], **more: str) -> RunOptions:
        """Return the options of a recording from those of `read_options`.

        Raises:
            ConfigError: The folder has a wrong field.
        """
        check_folder(chosen["folder"])
        profiler = {name: chosen[name] for name in SETTINGS if chosen.get(name) is not None}
        return cls(**{**{name: chosen[name] for name in DEFAULTS}, "profiler": profiler, **more})

    def to_json(self) -> str:
        """Return the options as the value of an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        """Return the options of `to_json`, which another version may have written."""
        values: dict[str, Any] = json.loads(text)
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**{name: values[name] for name in cls.__slots__ if name in values})


def check_folder(folder: str) -> None:
    """Raise ConfigError for a folder of rank traces that has another field than ``{run_id}``."""
    if "{" in folder.replace("{run_id}", ""):
        raise ConfigError(f"folder {folder}: {{run_id}} is the only field it can have")


DEFAULTS: Final[Mapping[str, Any]] = {
    option.name: option.default for option in fields(RunOptions) if option.name not in ("profiler", "notes", "merged")
}
"""Values of the options that nobody gives. Those of the `Profiler` have their own."""

OPTIONS: Final = (*DEFAULTS, *SETTINGS)


def read_size(text: str) -> int:
    """Return the bytes of a size such as ``500MB``."""
    match = _SIZE.fullmatch(text)
    size = round(float(match[1]) * _UNIT_BYTES[match[2]]) if match else 0
    if size < _MIN_BYTES:
        raise ConfigError(f"{text!r} is not a size from 1MB on, such as 500MB or 2GB")
    return size


def read_steps(text: str) -> tuple[int, int]:
    """Return the first step, and the one after the last, of a text such as ``20:25``."""
    try:
        first, end = parse_steps("--steps", text)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("--steps ")) from None
    if end is None:
        raise ConfigError(f"{text}: name the first step and the end, such as 20:25")
    if (first or 0) >= end:
        raise ConfigError(f"{text}: the end must be after the begin, such as 20:25")
    return first or 0, end


def read_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a list such as ``0,8-15``."""
    try:
        return parse_ranks("--ranks", text)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("--ranks ")) from None


def read_names(text: str) -> tuple[str, ...]:
    """Return the names of a list such as ``a,b``."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ConfigError(f"{text!r} is not a list of names, such as a,b")
    return names


def read_setting(name: str, text: str) -> Any:
    """Return a plain option of a `Profiler`."""
    value: Any = text
    for kind in (float, int):
        with contextlib.suppress(ValueError):
            value = kind(text)
    ProfilerOptions(**{name: value})
    return value


FLAGS: Final = ("merge", "with_stack", "memory", "shapes", "on_demand", "private", "record_batches")
"""Options that are true or false."""

READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "folder": resolve_path,
    "log_to": read_log_service,
    "timeout": read_seconds,
    "limit": read_size,
    "steps": read_steps,
    "ranks": read_ranks,
    "flight_recorder": read_seconds,
    "handlers": read_names,
    "sources": read_names,
    **{name: functools.partial(read_setting, name) for name in SETTINGS if name not in FLAGS},
}
"""The function that reads the text of each other option. It raises ConfigError for a wrong one."""
