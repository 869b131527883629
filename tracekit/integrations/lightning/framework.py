"""Lightning itself, under either of its names: the only module that imports it."""

from __future__ import annotations

import importlib
import sys
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
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if name in sys.modules:
            return sys.modules[name]
    try:
        return importlib.import_module("lightning.pytorch")
    except ImportError:
        pass
    try:
        return importlib.import_module("pytorch_lightning")
    except ImportError:
        raise ConfigError(
            "tracekit.integrations.lightning needs Lightning: pip install lightning (or pytorch-lightning)"
        ) from None


if not TYPE_CHECKING:
    # Both packages call the same hooks and ask for no base class, so that objects made here serve the Trainer of either.
    _package = _lightning()
    Callback = _package.Callback
    LightningModule = _package.LightningModule
    Trainer = _package.Trainer
    LightningProfiler = _package.profilers.Profiler


def profiler_of(trainer: Trainer) -> LightningProfiler:
    """Return what the Trainer was given as ``profiler=``; it has one always."""
    found: LightningProfiler = trainer.profiler  # type: ignore[attr-defined]  # set where type checkers do not look
    return found


def device_waits(device: Any) -> Callable[[], None]:
    """Return what waits until a device has done all of its work; for the CPU it returns at once.

    Args:
        device: A ``torch.device``.
    """
    import torch

    module = getattr(torch, device.type, None)
    wait: Callable[..., None] | None = getattr(module, "synchronize", None)
    if wait is None:
        return lambda: None
    return wait if device.type == "mps" else partial(wait, device)  # a process has one


def gathered(module: LightningModule, row: list[int]) -> list[list[int]]:
    """Return the rows of all ranks. Collective: every rank calls it, with a row of the same length.

    Args:
        module: The module that is trained.
        row: Whole numbers of 64 bits.
    """
    import torch

    rows = module.all_gather(torch.tensor(row, dtype=torch.int64, device=module.device))
    assert isinstance(rows, torch.Tensor)
    return [[int(value) for value in values] for values in rows.reshape(-1, len(row)).tolist()]
