"""TraceConfig: when JAX traces are recorded, and where they go."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracekit import storage
from tracekit.arguments import check_path, check_whole
from tracekit.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """The checked fields of `JaxProfilerConfig`, without the class that they configure."""

    every_n_epochs: int = -1
    every_n_steps: int = -1
    main_process_only: bool = True
    profile_every_n_minutes: float = 60
    profile_first_step: int = 10
    profile_n_steps: int = 5
    profile_log_dir: str = "tensorboard"

    def __post_init__(self) -> None:
        if isinstance(self.profile_log_dir, os.PathLike):
            object.__setattr__(self, "profile_log_dir", os.fspath(self.profile_log_dir))
        for name in ("every_n_epochs", "every_n_steps"):
            if getattr(self, name) != -1:
                check_whole(f"JaxProfilerConfig: {name} (-1 is off)", getattr(self, name))
        check_whole("JaxProfilerConfig: profile_first_step", self.profile_first_step, 0)
        check_whole("JaxProfilerConfig: profile_n_steps", self.profile_n_steps)
        minutes = self.profile_every_n_minutes
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not math.isfinite(minutes):
            raise ConfigError(
                f"JaxProfilerConfig: profile_every_n_minutes must be a number of minutes, not {minutes!r}"
            )
        if not isinstance(self.profile_log_dir, str) or not self.profile_log_dir:
            raise ConfigError(
                f"JaxProfilerConfig: profile_log_dir must be a path or URL that is not empty, not {self.profile_log_dir!r}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if the name is unknown."""
        return self.to_dict().get(key, default)

    def to_dict(self) -> dict[str, int | float | bool | str]:
        """Return the fields and their values."""
        return asdict(self)


def log_dir(config: TraceConfig, trainer: Any, log_path: str | os.PathLike[str] | None) -> str:
    """Return the folder of the traces, and make it.

    Raises:
        ConfigError: The trainer does not say where, or the folder cannot be made.
    """
    if trainer is not None and log_path is None:
        log_path = getattr(trainer, "log_path", None)
        if log_path is None:
            raise ConfigError("JaxProfiler: the trainer has no log_path; give it one, or pass log_path=")
    base = check_path("JaxProfiler: log_path", "." if log_path is None else log_path)
    below = check_path("JaxProfilerConfig: profile_log_dir", config.profile_log_dir)
    if storage.is_remote(below) or (not storage.is_remote(base) and Path(below).is_absolute()):
        base, below = below, ""
    folder = f"{base.rstrip('/')}/{below}".rstrip("/") or "/"
    if not storage.is_remote(folder):
        try:
            storage.make_folders(Path(folder))
        except OSError as error:
            raise ConfigError(f"JaxProfiler: the log directory {folder} cannot be made: {error.strerror}") from error
    return folder
