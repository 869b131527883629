"""H3: hostile arguments. Nothing raises into user code, every record is JSON for strict readers, and the file opens."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import orjson
import pytest
from hypothesis import strategies as st

from tests.faults import in_process_writer, opened
from tracekit import Profiler
from tracekit.formats.chrome_writer import encode_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.perfetto import Engine

MAX_RECORD_BYTES = 64 << 10
ESCAPED_SURROGATE = re.compile(rb"(?<!\\)(\\\\)*\\u[dD][89a-fA-F]")


def raises(*_: object) -> Any:
    raise RuntimeError("hostile")


@dataclass(frozen=True)
class Hostile:
    """Says what `build` makes: hypothesis compares, hashes and prints what it draws, and hostile values forbid that."""

    kind: str
    value: Any = None


def build(drawn: Any) -> Any:
    """Make the values that were drawn."""
    if isinstance(drawn, Hostile):
        return MAKERS[drawn.kind](drawn.value)
    if isinstance(drawn, list):
        return [build(item) for item in drawn]
    if isinstance(drawn, tuple):
        return tuple(build(item) for item in drawn)
    if isinstance(drawn, dict):
        return {build(key): build(value) for key, value in drawn.items()}
    return drawn


def subclass(base: type, *methods: str) -> Callable[[Any], Any]:
    """Return a maker of values of a subclass whose methods raise."""
    made = type(f"Hostile{base.__name__.title()}", (base,), dict.fromkeys(methods, raises))
    return lambda value: made() if base is object else made(build(value))


_CONVERSIONS = ("__int__", "__index__", "__float__", "__abs__", "__lt__", "__gt__", "__sub__", "__repr__")
MAKERS: dict[str, Callable[[Any], Any]] = {
    "str that cannot be printed": subclass(str, "__str__", "__repr__", "__format__"),
    "str that cannot be compared": subclass(str, "__eq__", "__lt__"),
    "str that cannot be hashed": subclass(str, "__hash__"),
    "int that cannot be converted": subclass(int, *_CONVERSIONS),
    "float that cannot be converted": subclass(float, *_CONVERSIONS),
    "object": subclass(object, "__str__", "__repr__", "__eq__", "__hash__", "__iter__", "__bool__", "__len__"),
    "mapping": lambda _: subclass(dict, "__iter__", "__len__", "keys", "items", "__getitem__")({"a": 1}),
    "numpy float": np.float32,
    "numpy int": np.int64,
    "numpy array": np.array,
    "function": lambda _: raises,
    "long text": lambda character: character * 100_000,
}

texts = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),  # halves of surrogate pairs as well
    st.sampled_from(["", "\0", "\n,\n", '"', "\\", "\\ud800", "%d %b %%", "\ud83d\ude00", "😀"]),
    st.builds(Hostile, st.just("long text"), st.sampled_from(["x", "é", '"', "\ud800"])),
)
numbers = st.one_of(st.integers(-(1 << 70), 1 << 70), st.floats(), st.booleans())
odd_numbers = st.one_of(
    st.fractions(),
    st.decimals(),
    st.complex_numbers(),
    st.builds(Hostile, st.sampled_from(["numpy float", "numpy int", "numpy array"]), st.integers(-9, 9)),
    st.builds(Hostile, st.sampled_from([kind for kind in MAKERS if "converted" in kind]), st.integers(-9, 9)),
)
hostile_texts = st.builds(Hostile, st.sampled_from([kind for kind in MAKERS if kind.startswith("str")]), texts)
keys = st.one_of(texts, st.none(), st.builds(Hostile, st.just("str that cannot be printed"), texts))
leaves = st.one_of(
    texts,
    hostile_texts,
    numbers,
    odd_numbers,
    st.none(),
    st.binary(max_size=9),
    st.builds(Hostile, st.sampled_from(["object", "mapping", "function"])),
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=8,
)


def strictly(line: bytes) -> Any:
    """Parse as a strict reader does."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {line[:200]!r}")

    assert not ESCAPED_SURROGATE.search(line), line[:200]
    assert orjson.loads(line) is not ...
    return json.loads(line.decode("utf-8"), parse_constant=refuse)


@pytest.mark.parametrize("examples", [100, pytest.param(1_500, marks=pytest.mark.slow)])
def test_no_argument_raises_or_spoils_the_file(tmp_path: Path, engine: Engine, examples: int) -> None:
    path = tmp_path / "t.json"
    emitted = offered = 0
    with Profiler(in_process_writer(path), rank=0, record_batches=False, flush_interval=0.05) as profiler:

        @hypothesis.settings(max_examples=examples, database=None)
        @hypothesis.given(
            name=anything,
            categories=anything | st.lists(anything, max_size=3),
            values=anything | st.dictionaries(keys, numbers | odd_numbers | anything, max_size=4),
        )
        def record(name: Any, categories: Any, values: Any) -> None:
            nonlocal emitted, offered
            name, categories, values = build(name), build(categories), build(values)
            with profiler.marker(name, categories):
                emitted += 1
            profiler.marker("c").counter(values)
            offered += len(values) if type(values) is dict else 1

        record()
    data = path.read_bytes()
    for line in data.removeprefix(b"[\n").removesuffix(b"\n]\n").split(b"\n"):
        assert len(line) <= MAX_RECORD_BYTES
        if line:  # the last one of a file that is not closed has none
            strictly(line.removesuffix(b","))
    remains = opened(engine, path)
    assert remains.count("XE") == emitted
    assert remains.summary["failures"] == {}
    recorded = sum(len(event["args"]) for event in remains.of("C"))
    assert recorded + sum(remains.summary["dropped"].values()) == offered
    assert all(math.isfinite(value) for event in remains.of("C") for value in event["args"].values())


@hypothesis.given(value=anything)
def test_every_value_is_encoded_for_strict_readers(value: Any) -> None:
    strictly(encode_value(build(value)))


def test_deep_cyclic_and_huge_values_are_encoded_for_strict_readers() -> None:
    deep: Any = []
    for _ in range(1_000_000):
        deep = [deep]
    cycle: Any = {}
    cycle["me"] = [cycle]
    huge = {str(number): number for number in range(100_000)}
    for value in (deep, cycle, "x" * 10_000_000, ["x" * 10_000] * 1000, huge):
        strictly(encode_value(value))
    while deep:
        deep = deep[0]  # freed one by one: a million levels at once would end the interpreter
