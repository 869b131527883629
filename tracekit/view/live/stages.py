"""The stages of a step, from the slices of a thread: the rule of the live view."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from tracekit.formats.kineto import COLLECTIVE_NAMES, GPU_CATEGORIES, LOADING_NAMES

_MAX_LABELS: Final = 10_000
_MAX_CHARACTERS: Final = 500
_COLLECTIVE: Final = re.compile(COLLECTIVE_NAMES, re.IGNORECASE)
_LOADING: Final = re.compile(LOADING_NAMES, re.IGNORECASE)
_STEP: Final = re.compile(r"ProfilerStep#\d{1,18}", re.ASCII)
_FRAMES: Final = frozenset({"training loop", "python_function", "Trace"})
_NO_STAGES: Final = _FRAMES | {category.strip(b'"').decode() for category in GPU_CATEGORIES}


class Label(NamedTuple):
    """A name with its category."""

    name: str  # the name
    is_stage: bool  # false for frames, which enclose stages, and for slices of devices
    waits: bool  # true for a collective


class Labels(dict[tuple[bytes, "bytes | None"], Label]):
    """The labels of names and categories, at most 10,000; those beyond the limit do not count as stages.

    The slices inside the markers with one of the names ``inside`` are stages, and these markers are none.
    """

    def __init__(self, inside: Collection[str] = ()) -> None:
        super().__init__()
        self._inside = frozenset(inside)
        self.refused = 0  # slices beyond the limit

    def __missing__(self, key: tuple[bytes, bytes | None]) -> Label:
        """Return a new label."""
        if len(self) >= _MAX_LABELS:
            self.refused += 1
            return Label("", is_stage=False, waits=False)
        name, category = key[0].decode("utf-8", "replace"), (key[1] or b"").decode("utf-8", "replace")
        if len(name) > _MAX_CHARACTERS:
            name = name[: _MAX_CHARACTERS - 1] + "…"
        is_frame = category in _NO_STAGES or name in self._inside or _STEP.fullmatch(name) is not None
        waits = _COLLECTIVE.search(name) is not None and _LOADING.search(name) is None
        label = self[key] = Label(name, is_stage=not is_frame, waits=waits)
        return label

    @property
    def note(self) -> str:
        """A sentence about names beyond the limit, or an empty string."""
        return f"there are more than {_MAX_LABELS:,} names; the others are no stages" if self.refused else ""


Slice = tuple[int, int, Label]
"""Start, negative end and label of a slice: sorted by the first two, those that enclose others come first."""


def step_stages(slices: list[Slice], begin_ns: int, end_ns: int) -> dict[tuple[str, bool], int]:
    """Return the time of each stage that begins in a step.

    A stage is a slice that no other stage encloses, and that encloses no whole step. A collective inside a stage counts as
    another stage, since work and waiting are different things. If stages cross, the time that both share counts for the one
    that ends first. ``slices`` are those of a thread that overlap the step, and all that those of the step enclose, in the
    order of their ends. The keys are names, with True for collectives.
    """
    found: dict[tuple[str, bool], int] = {}

    def add(name: str, waits: bool, time_ns: int) -> None:
        key = (name, waits)
        if key not in found and len(found) >= 64:
            key = ("(all other stages)", False)
        found[key] = found.get(key, 0) + time_ns

    def close() -> None:
        if stage is None or not begin_ns <= began < end_ns:
            return
        own = until - own_from
        for name, time_ns in inner.items():
            add(f"{stage.name} > {name}", True, min(time_ns, own))
            own -= min(time_ns, own)
        add(stage.name, stage.waits, own)

    stage: Label | None = None
    inner: dict[str, int] = {}
    began = own_from = until = inner_until = -(1 << 62)
    for start, minus_end, label in sorted(slices, key=lambda slice_: slice_[:2]):
        end = -minus_end
        if start < until and end <= until:  # inside the stage
            if label.waits and start >= inner_until and stage is not None and not stage.waits:
                inner[label.name] = inner.get(label.name, 0) + end - start
                inner_until = end
            continue
        if start >= end_ns and start >= until:
            break
        close()
        stage, inner = label, {}
        began, own_from, until, inner_until = start, max(start, until), end, start
    close()
    return found
