"""Options of ``tracekit run``, as the environment carries them to the processes of a run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from tracekit.auto.notes import OPTIONS_VARIABLE

_DEFAULT_FOLDER: Final = "traces/{run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the recording in the processes of a run.

    Attributes:
        folder: Folder or URL of the rank traces, with the fields of a file name.
        notes: Local folder for the notes of the processes to ``tracekit run``; empty without it.
        merged: The merged trace that rank 0 writes at its end; empty where ``tracekit run`` merges.
        steps: First batch of torch.profiler, and the batch after its last one; None for no torch.profiler.
        ranks: Ranks that run torch.profiler; None for all.
        with_stack, memory, shapes: Options of torch.profiler.
        on_demand: Record when ``tracekit capture`` asks for it only.
        flight_recorder_s: Keep the last seconds in memory and write them at the end; 0 records to files.
        limit_bytes: Maximum size of the traces of a rank; the oldest segments are removed.
        handlers, sources: Names of entry points in ``tracekit.handlers`` and ``tracekit.sources``.
        profiler: Options of the `Profiler`, by name.
    """

    folder: str = _DEFAULT_FOLDER
    notes: str = ""
    merged: str = ""
    steps: tuple[int, int] | None = None
    ranks: tuple[int, ...] | None = None
    with_stack: bool = False
    memory: bool = False
    shapes: bool = False
    on_demand: bool = False
    flight_recorder_s: float = 0.0
    limit_bytes: int = 2_000_000_000
    handlers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    profiler: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the options as the value of an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> RunOptions:
        """Return the options of this process; without ``tracekit run`` those of ``TRACEKIT_AUTO=1``."""
        text = os.environ.get(OPTIONS_VARIABLE)
        if not text:
            return cls(merged=f"{_DEFAULT_FOLDER}/merged-{{attempt}}.json.gz")
        values = json.loads(text)
        known = {known.name for known in fields(cls)}
        return cls(**{name: _tuples(value) for name, value in values.items() if name in known})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
