"""Count the samples and tokens of a batch of any framework.

Only shapes and lengths are read, never values: counting costs a few microseconds and no device has to finish its work
first. So tokens of padding count. An unknown count is 0, and nothing here raises.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

# The first of these that a mapping holds is taken for its tokens, one for every element
TOKEN_NAMES: Final = ("input_ids", "token_ids", "tokens")
_LOOK_AT: Final = 32  # of a long list only so many elements are looked at to learn what it is


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch; 0 if unknown.

    An array (torch, numpy, JAX, anything with a ``shape``) has as many as its first dimension says. The columns of a
    mapping, a dataclass, a tuple or a list have to agree: ``([image] * 4, [target] * 4)`` holds 4 samples, whatever
    shape the images have. Where they do not agree, the first decides. A list of mappings is a list of samples, and so
    is a list of plain values or of rows of different lengths; a single value or text is one sample.
    """
    try:
        if batch is None:
            return 0
        if _is_value(batch) or _shape(batch) == ():
            return 1
        return next(iter(_sizes(batch)), 0)
    except Exception:  # noqa: BLE001 - objects of other packages may raise anything, and no count is worth a run
        return 0


def tokens_in(batch: Any) -> int:
    """Return the number of tokens in a batch, padding included; 0 for a batch without tokens.

    Tokens are the elements of ``input_ids``, ``token_ids`` or ``tokens`` in a mapping (a dict, a ``BatchEncoding``) or
    a dataclass, at the top or within tuples and lists; those of a list of mappings are added up. An array without such
    a name is not a text: pass the number yourself.
    """
    try:
        return _tokens(batch)
    except Exception:  # noqa: BLE001 - see samples_in
        return 0


class Counts:
    """Samples and tokens of the batches that were read since the last step."""

    samples = tokens = 0

    def add(self, batch: Any) -> None:
        """Count a batch."""
        self.samples += samples_in(batch)
        self.tokens += tokens_in(batch)

    def take(self) -> tuple[int, int]:
        """Return samples and tokens, and begin anew."""
        taken = self.samples, self.tokens
        self.samples = self.tokens = 0
        return taken


def _sizes(part: Any) -> list[int]:
    """Return the possible numbers of samples in a part of a batch, the likeliest first."""
    if part is None or _is_value(part):
        return []
    shape = _shape(part)
    if shape is not None:
        return [int(shape[0])] if shape else []
    graphs = getattr(part, "num_graphs", None)
    if isinstance(graphs, int):  # PyTorch Geometric's len() counts something else
        return [graphs]
    columns = _columns(part)
    if columns is not None:
        return _agreed([_sizes(column) for column in columns])
    if isinstance(part, Sequence):
        return _sizes_of_sequence(part)
    return [len(part)] if hasattr(part, "__len__") else []


def _sizes_of_sequence(part: Sequence[Any]) -> list[int]:
    look = part[:_LOOK_AT]
    found = [sizes for sizes in map(_sizes, look) if sizes]
    of_samples = isinstance(part, list) and all(_columns(element) is not None for element in look)
    rows = len(found) == len(look) and not _common(found) and not isinstance(part, tuple)
    if not found or of_samples or rows:
        return [len(part), *_agreed(found)]
    return [*_agreed(found), len(part)]


def _agreed(columns: list[list[int]]) -> list[int]:
    """Return the numbers that fit all columns, or, without any, those that fit the first."""
    found = [sizes for sizes in columns if sizes]
    return (_common(found) or found[0]) if found else []


def _common(columns: list[list[int]]) -> list[int]:
    return [size for size in columns[0] if all(size in sizes for sizes in columns)] if columns else []


def _columns(part: Any) -> list[Any] | None:
    if isinstance(part, Mapping):
        return list(part.values())
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return [getattr(part, field.name) for field in dataclasses.fields(part)]
    return None


def _tokens(batch: Any) -> int:
    for name in TOKEN_NAMES:
        if isinstance(batch, Mapping) and name in batch:
            return _elements(batch[name])
        if dataclasses.is_dataclass(batch) and hasattr(batch, name):
            return _elements(getattr(batch, name))
    columns = _columns(batch)
    if columns is not None:
        return next((tokens for tokens in map(_tokens, columns) if tokens), 0)
    if not isinstance(batch, list | tuple):
        return 0
    if isinstance(batch, list) and all(_columns(element) is not None for element in batch):
        return sum(map(_tokens, batch))
    return next((tokens for tokens in map(_tokens, batch) if tokens), 0)


def _elements(part: Any) -> int:
    if callable(numel := getattr(part, "numel", None)):  # of torch, which knows it of ragged tensors too
        return int(numel())
    shape = _shape(part)
    if shape is not None:
        return math.prod(int(size) for size in shape)
    if isinstance(part, list | tuple):
        return sum(map(_elements, part))
    return 1


def _shape(part: Any) -> Sequence[Any] | None:
    shape = getattr(part, "shape", None)
    return shape if isinstance(shape, tuple) else None


def _is_value(part: Any) -> bool:
    return isinstance(part, int | float | complex | str | bytes)
