"""The encoder: every value is JSON that strict readers and Perfetto take, and times are exact."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from tracekit.events import INSTANT, EventBatch, Label, Timestamps, Track
from tracekit.formats.chrome_writer import ChromeEncoder, encode_value
from tracekit.formats.decimal_time import exact_time
from tracekit.timestamp import Timestamp


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())  # with surrogates
    | st.binary()
    | st.builds(Hostile)
    | st.just(Decimal("1.5"))
)
hostile = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(hostile)
def test_whatever_the_value_the_bytes_are_json_for_strict_readers(value: Any) -> None:
    encoded = encode_value(value)
    orjson.loads(encoded)  # refuses NaN, lone surrogates, invalid UTF-8

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(encoded, parse_constant=refuse)
    assert b"\\ud" not in encoded.lower(), "escaped surrogates make Perfetto refuse the file"
    assert b"\n" not in encoded


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.text(st.characters(codec="utf-8"), max_size=99),
        st.lists,
        max_leaves=5,
    )
)
def test_ordinary_values_come_back_as_they_were(value: Any) -> None:
    assert json.loads(encode_value(value)) == value


def test_what_json_has_no_form_for_becomes_text() -> None:
    assert json.loads(encode_value([math.nan, math.inf, -math.inf, 1 << 64])) == ["nan", "inf", "-inf", str(1 << 64)]
    assert json.loads(encode_value("a\ud800b")) == "a\ufffdb"
    assert json.loads(encode_value("\ud83d\ude00")) == "😀"
    assert json.loads(encode_value(Hostile())) == "<Hostile: RuntimeError>"


@given(st.text(st.sampled_from(["\\", '"', "u", "a", "\n", "é"])))
def test_no_text_ends_with_a_backslash_that_perfetto_would_take_for_the_quote_s(text: str) -> None:
    encoded = encode_value({text: [text]})
    assert json.loads(encoded) == orjson.loads(encoded) == {text: [text]}
    inside = False
    for position, byte in enumerate(encoded):
        if byte == ord('"') and encoded[position - 1 : position] != b"\\":  # as Perfetto v52 looks for quotes
            inside = not inside
    assert not inside


def test_deep_and_long_values_are_cut() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert len(encode_value(deep)) < 200
    assert len(encode_value([math.nan, "x" * 1_000_000])) < 10_000


@given(st.integers(0, 7_889_238 * 10**9), st.integers(0, 10**15), st.integers(0, 10**15))
def test_times_survive_as_exact_nanoseconds_even_as_doubles(
    since_base_ns: int, start_ns: int, duration_ns: int
) -> None:
    base_ns = 227 * 7_889_238 * 10**9
    records = [0, start_ns, start_ns + duration_ns, 1, 0, start_ns, INSTANT, 1]
    labels, tracks = [Label('a "b" \\ é\n', ("c",), {})], [Track(0, ""), Track(7, "t")]
    batch = EventBatch(records, labels, tracks, Timestamps(Timestamp()), base_ns + since_base_ns)
    lines = ChromeEncoder(pid=1, base_ns=base_ns).encode(batch).splitlines()
    text, instant_text = (
        next(line.removesuffix(b",") for line in lines if phase in line) for phase in (b'"X"', b'"i"')
    )
    whole, instant = json.loads(text), json.loads(instant_text)
    shown_ns = int(Decimal(text.split(b'"ts":')[1].split(b",")[0].decode()) * 1000)
    begin_ns, end_ns = since_base_ns + start_ns, since_base_ns + start_ns + duration_ns
    # Before 2**42 µs from the base a double holds every nanosecond as Perfetto reads it; later ones may be moved a little.
    assert shown_ns in ({begin_ns} if end_ns < 2**42 * 1000 else {begin_ns, exact_time(begin_ns)})
    assert begin_ns - 10 <= shown_ns <= begin_ns
    assert round(whole["ts"] * 1000) == shown_ns == round(instant["ts"] * 1000)
    if duration_ns < 2**42 * 1000:
        assert shown_ns + round(whole["dur"] * 1000) in {end_ns, exact_time(end_ns)}
    assert whole["name"] == 'a "b" \\ é\n'
