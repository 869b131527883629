"""JaxProfilerConfig: when JAX traces are recorded, and where they go."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit import storage
from tracekit.arguments import check_path, check_whole
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from tracekit.integrations.jax.profiler import JaxProfiler


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxProfilerConfig:
    """When JAX traces are recorded, and where they go. Names and defaults are those of xLSTM-JAX's ``JaxProfilerConfig``.

    Attributes:
        every_n_epochs: Traces begin in epochs with a multiple of this number; -1 is every epoch.
        every_n_steps: A further trace begins this number of steps after ``profile_first_step``, and so on; -1 is none.
        main_process_only: Only process 0 records traces.
        profile_every_n_minutes: A trace begins when that much time has passed since the last one, or since the training
            started; negative is never, 0 is one after the other. With several recording processes, process 0 decides.
        profile_first_step: A trace begins after this step, counted from 1; in a run that is resumed beyond it, after the
            first step there is.
        profile_n_steps: Number of steps in a trace.
        profile_log_dir: Folder of the traces, below the log path; an absolute path or URL replaces that. A ``Path`` is kept as
            text.
        callback_class: The class that `create` makes.

    Raises:
        ConfigError: A value is out of range.
    """

    every_n_epochs: int = -1
    every_n_steps: int = -1
    main_process_only: bool = True
    profile_every_n_minutes: float = 60
    profile_first_step: int = 10
    profile_n_steps: int = 5
    profile_log_dir: str = "tensorboard"
    # The class JaxProfiler, set in its module, which imports this one. OmegaConf resolves every annotation when it runs.
    callback_class: ClassVar[Any]

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

    def create(self, trainer: Any = None, data_module: Any = None) -> JaxProfiler:
        """Return a `JaxProfiler` of this configuration, for trainers that make their callbacks by it.

        Args:
            trainer: The trainer.
            data_module: Not used.

        Raises:
            ConfigError: As `JaxProfiler` says.
        """
        made: JaxProfiler = self.callback_class(self, trainer, data_module)
        return made

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field, or the default if the name is unknown."""
        return self.to_dict().get(key, default)

    def to_dict(self) -> dict[str, int | float | bool | str]:
        """Return the fields and their values."""
        return asdict(self)


def log_dir(config: JaxProfilerConfig, trainer: Any, log_path: str | os.PathLike[str] | None) -> str:
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
