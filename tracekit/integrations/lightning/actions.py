"""What Lightning calls the things that it does: the names that it gives to ``Trainer(profiler=...)``, read once each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tracekit.integrations.lightning.ledger import CALLBACKS, CHECKPOINTING, DATA_LOADING, LOGGING, TRANSFER

__all__ = ["OWN_PREFIX", "Action", "action_of", "logger_action"]

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
OWN_PREFIX: Final = "tracekit."
"""How the state keys of tracekit's callbacks begin, by which Lightning names their hooks."""


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of thing that Lightning does.

    Attributes:
        name: What its slices are called: without the owner's kind, and without the arguments of a callback.
        title: Lightning's name without the arguments of a callback; for tables.
        categories: Of its slices.
        hook: The last part of the name: "training_step", "save_checkpoint" ...
        part: To which part of the downtime it belongs; None for what runs a stage or a batch.
        own: Whether it is a hook of tracekit's own, which only begins and ends slices and gets none.
    """

    name: str
    title: str
    categories: tuple[str, ...]
    hook: str
    part: str | None
    own: bool


@lru_cache(maxsize=4096)
def action_of(text: str) -> Action:
    """Read a name that Lightning gives to its profiler; any other is an action of the user's own."""
    match = _NAME.fullmatch(text)
    assert match is not None, "everything matches"
    owner = match["owner"] or ""
    name = _STATE.sub("", match["rest"]).lstrip(".") or text
    hook = name.rpartition(".")[2]
    own = owner == "Callback" and name.startswith(OWN_PREFIX)
    return Action(name, _STATE.sub("", text), _categories(owner), hook, _part(owner, hook), own)


def logger_action(logger: object, method: str) -> str:
    """Return the name of what a logger does, in Lightning's form, which has none of its own for it."""
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
