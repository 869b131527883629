"""The names of actions that Lightning passes to ``Trainer(profiler=...)``, parsed once each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

DATA_LOADING: Final = "data loading"
TRANSFER: Final = "transfer"
CALLBACKS: Final = "callbacks"
LOGGING: Final = "logging"
CHECKPOINTING: Final = "checkpointing"
OTHER: Final = "other"
PARTS: Final = (DATA_LOADING, TRANSFER, CALLBACKS, LOGGING, CHECKPOINTING, OTHER)  # parts of the downtime
# "[LightningModule]Net.training_step", "[_TrainingEpochLoop].train_dataloader_next", "run_training_batch"
_NAME: Final = re.compile(r"(?:\[(?P<owner>\w+)\])?(?P<rest>.*)", re.DOTALL)
_STATE: Final = re.compile(r"\{.*\}", re.DOTALL)  # "ModelCheckpoint{'monitor': None, ...}.on_train_batch_end"

_OF_DATA: Final = ("_dataloader", "prepare_data")
_OF_TRANSFER: Final = (
    "on_before_batch_transfer",
    "batch_to_device",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
)
# Prefix of the state keys of tracekit's callbacks, by which Lightning names their hooks
OWN_PREFIX: Final = "tracekit."


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of action of Lightning.

    Attributes:
        name: Name of its slices: without the owner's kind, and without the arguments of a callback.
        title: Lightning's name without the arguments of a callback; for tables.
        hook: The last part of the name: "training_step", "save_checkpoint" ...
        part: Its part of the downtime; None if it runs a stage or a batch.
        own: True for a hook of tracekit, which gets no slice.
    """

    name: str
    title: str
    categories: tuple[str, ...]
    hook: str
    part: str | None
    own: bool


@lru_cache(maxsize=4096)
def action_of(text: str) -> Action:
    """Parse a name that Lightning passes to its profiler; any other is an action of the user."""
    match = _NAME.fullmatch(text)
    assert match is not None, "everything matches"
    owner = match["owner"] or ""
    name = _STATE.sub("", match["rest"]).lstrip(".") or text
    hook = name.rpartition(".")[2]
    own = owner == "Callback" and name.startswith(OWN_PREFIX)
    return Action(name, _STATE.sub("", text), _categories(owner), hook, _part(owner, hook), own)


def logger_action(logger: object, method: str) -> str:
    """Return the name for a method of a logger, in the form of Lightning's own names."""
    return f"[Logger]{type(logger).__name__}.{method}"


def _categories(owner: str) -> tuple[str, ...]:
    kind = owner.strip("_").removeprefix("Lightning").lower()
    return ("lightning", kind) if kind else ("lightning",)


def _part(owner: str, hook: str) -> str | None:
    if owner == "Logger":
        return LOGGING
    if hook == "save_checkpoint":
        return CHECKPOINTING
    if owner.startswith("_") and hook.endswith("_next"):
        return DATA_LOADING
    if owner.startswith("Lightning") and hook.endswith(_OF_DATA):
        return DATA_LOADING
    if hook in _OF_TRANSFER:
        return TRANSFER
    return CALLBACKS if owner in ("Callback", "LightningModule", "LightningDataModule") else None
