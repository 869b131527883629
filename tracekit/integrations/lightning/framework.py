"""Lightning itself, under either of its names: the only module that imports it."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.profilers import Profiler as LightningProfiler

__all__ = ["Callback", "LightningModule", "LightningProfiler", "Trainer", "device_waits", "gathered", "profiler_of"]


def _lightning() -> Any:
    """Return the package that the user's Trainer comes from: the one that is imported, else the one that is installed."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        return sys.modules["pytorch_lightning"]
    with suppress(ImportError):
        return importlib.import_module("lightning.pytorch")
    with suppress(ImportError):
        return importlib.import_module("pytorch_lightning")
    raise ConfigError("tracekit.integrations.lightning needs Lightning: pip install lightning (or pytorch-lightning)")


if not TYPE_CHECKING:
    # Both packages call the same hooks and ask for no base class, so that objects made here serve the Trainer of either.
    _package = _lightning()
    Callback = _package.Callback
    LightningModule = _package.LightningModule
    Trainer = _package.Trainer
    LightningProfiler = _package.profilers.Profiler


def profiler_of(trainer: Trainer) -> LightningProfiler:
    """Return the profiler of a Trainer, which has always one."""
    found: LightningProfiler = trainer.profiler  # type: ignore[attr-defined]  # set where type checkers do not look
    return found


def device_waits(device: Any) -> Callable[[], None] | None:
    """Return a function that waits until a ``torch.device`` has done all of its work, or None if there is none."""
    import torch

    module = getattr(torch, device.type, None)
    wait: Callable[..., None] | None = getattr(module, "synchronize", None)
    return wait if wait is None or device.type == "mps" else partial(wait, device)  # a process has one MPS device


def gathered(module: LightningModule, row: list[int]) -> list[list[int]]:
    """Return the rows of all ranks, of whole numbers. Collective: every rank calls it, with a row of the same length."""
    import torch

    rows = module.all_gather(torch.tensor(row, dtype=torch.int64, device=module.device))
    assert isinstance(rows, torch.Tensor)
    gathered_rows: list[list[int]] = rows.reshape(-1, len(row)).tolist()
    return gathered_rows
