"""Options of ``tracekit run``, as the environment carries them to the processes of a run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.auto.configuration import DEFAULTS, read_options
from tracekit.auto.notes import OPTIONS_VARIABLE
from tracekit.errors import ConfigError
from tracekit.recording.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping


_SHARED: Final = ("steps", "ranks", "with_stack", "memory", "shapes", "on_demand", "handlers", "sources")


def folder_template(folder: str) -> str:
    """Return a folder of rank traces, after a check of its fields.

    Raises:
        ConfigError: It has another field than ``{run_id}``.
    """
    if "{" in folder.replace("{run_id}", ""):
        raise ConfigError(f"folder {folder}: {{run_id}} is the only field it can have")
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the recording in the processes of a run.

    Attributes:
        folder: Folder or URL of the rank traces, with the fields of a file name.
        notes: Local folder for the notes of the processes to ``tracekit run``; empty without it.
        merged: The merged trace that rank 0 writes at its end; empty where ``tracekit run`` merges.
        merge_timeout_s: Maximum time that this merge waits for the other ranks.
        log_to: The service that this merge logs the trace to.
        steps: First batch of torch.profiler, and the batch after its last one; None for no torch.profiler.
        ranks: Ranks that run torch.profiler; None for all.
        with_stack, memory, shapes: Options of torch.profiler.
        on_demand: Record when ``tracekit capture`` asks for it only.
        flight_recorder_s: Keep the last seconds in memory and write them at the end; 0 records to files.
        limit_bytes: Maximum size of the traces of a rank; the oldest segments are removed.
        handlers, sources: Names of entry points in ``tracekit.handlers`` and ``tracekit.sources``.
        profiler: Options of the `Profiler`, by name.
    """

    folder: str = DEFAULTS["folder"]
    notes: str = ""
    merged: str = ""
    merge_timeout_s: float = DEFAULTS["timeout"]
    log_to: str | None = None
    steps: tuple[int, int] | None = None
    ranks: tuple[int, ...] | None = None
    with_stack: bool = False
    memory: bool = False
    shapes: bool = False
    on_demand: bool = False
    flight_recorder_s: float = 0.0
    limit_bytes: int = DEFAULTS["limit"]
    handlers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    profiler: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the options as the value of an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> RunOptions:
        """Return the options of a recording from those of `read_options`.

        Raises:
            ConfigError: The folder has a wrong field.
        """
        settings = {name: chosen.get(name) for name in SETTINGS}
        return cls(
            folder=folder_template(chosen["folder"]),
            **{name: chosen[name] for name in _SHARED},
            flight_recorder_s=chosen["flight_recorder"],
            limit_bytes=chosen["limit"],
            profiler={name: value for name, value in settings.items() if value is not None},
        )

    @classmethod
    def from_environment(cls) -> RunOptions:
        """Return the options of this process; without ``tracekit run`` those of files and variables.

        Raises:
            ConfigError: A file or variable is wrong.
        """
        text = os.environ.get(OPTIONS_VARIABLE)
        if not text:
            chosen, _ = read_options(Path.cwd(), os.environ)
            options = cls.of(chosen)
            if not chosen["merge"]:
                return options
            merged = f"{options.folder}/merged-{{attempt}}.json.gz"
            return replace(options, merged=merged, merge_timeout_s=chosen["timeout"], log_to=chosen["log_to"])
        values = json.loads(text)
        known = {known.name for known in fields(cls)}
        return cls(**{name: _tuples(value) for name, value in values.items() if name in known})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
