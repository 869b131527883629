"""How many samples and tokens a batch holds."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest

from tracekit.integrations.batches import samples_in, tokens_in


class Array:
    """Looks like an array of any framework, and refuses that its values are read."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __len__(self) -> int:
        raise AssertionError("only shapes are read")

    __getitem__ = __iter__ = __bool__ = __array__ = None


class Encoding(collections.UserDict[str, Any]):
    """A mapping that is no dict, as BatchEncoding of transformers is."""


class Hostile:
    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape today")

    def __len__(self) -> int:
        raise RuntimeError("nor a length")


class Graphs:
    num_graphs = 5

    def __len__(self) -> int:
        return 3  # attributes


Pair = collections.namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Texts:
    mask: Array
    tokens: Array


itself: list[Any] = []
itself.append(itself)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (Array(8, 3), 8),
        (Array(8), 8),
        (Array(), 1),
        (Array(0, 3), 0),
        (None, 0),
        (7, 1),
        ("text", 1),
        (object(), 0),
        ({"x": Array(8, 3), "y": Array(8)}, 8),
        ({"epoch": 3, "name": "train", "scale": Array(), "x": Array(8, 3)}, 8),
        ({"inputs": {"ids": Array(8, 16)}, "labels": Array(8)}, 8),
        ({}, 0),
        (Encoding(input_ids=Array(4, 128)), 4),
        ((Array(8, 3), Array(8)), 8),
        ([Array(8, 3), Array(8)], 8),
        (Pair(Array(8, 3), Array(8)), 8),
        (Texts(Array(6, 9), Array(6, 9)), 6),
        ([[Array(8, 3), Array(8, 5)], Array(8)], 8),
        (([Array(3, 64, 64)] * 4, [{"boxes": Array(2, 4)}] * 4), 4),
        ((["a", "b"], [0, 1]), 2),
        ((Array(8, 3), Array(10)), 8),
        ([Array(5), Array(7), Array(3), Array(4)], 4),
        ([[1, 2, 3], [4, 5]], 2),
        ([{"image": Array(3, 64, 64)}] * 6, 6),
        ([1, 2, 3], 3),
        (["a", "b"], 2),
        (range(10_000_000), 10_000_000),
        ([], 0),
        ((), 0),
        ({"a", "b"}, 2),
        (Graphs(), 5),
        (Hostile(), 0),
        ((Hostile(), 1), 0),
        (itself, 0),
    ],
)
def test_samples(batch: Any, samples: int) -> None:
    assert samples_in(batch) == samples


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": Array(4, 128), "attention_mask": Array(4, 128), "labels": Array(4)}, 512),
        (Encoding(input_ids=Array(4, 128)), 512),
        (Encoding(input_ids=[[1, 2, 3], [4, 5]]), 5),
        ({"token_ids": Array(4, 10)}, 40),
        (({"input_ids": Array(4, 128)}, Array(4)), 512),
        ({"inputs": {"input_ids": Array(4, 128)}, "labels": Array(4)}, 512),
        ([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}], 4),
        (Texts(Array(6, 9), Array(6, 9)), 54),
        ((Array(8, 3), Array(8)), 0),
        (Array(8, 3), 0),
        ("text", 0),
        (None, 0),
        ([], 0),
        ({"input_ids": Hostile()}, 0),
        (itself, 0),
    ],
)
def test_tokens(batch: Any, tokens: int) -> None:
    assert tokens_in(batch) == tokens


def test_the_arrays_of_the_libraries_are_counted() -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for ids in (numpy.zeros((4, 16), dtype=int), torch.zeros((4, 16), dtype=torch.long)):
        encoding = transformers.BatchEncoding({"input_ids": ids})
        for batch in (ids, (ids, ids[:, 0]), {"input_ids": ids}, encoding):
            assert samples_in(batch) == 4
        assert tokens_in(encoding) == tokens_in({"input_ids": ids}) == 64
    ragged = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(5)], layout=torch.jagged)
    assert (samples_in(ragged), tokens_in({"input_ids": ragged})) == (2, 8)
