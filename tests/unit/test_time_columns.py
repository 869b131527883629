"""Columns of times are read and written as one time is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.formats.decimal_time import format_us, parse_us
from tracekit.formats.time_columns import format_all_us, parse_all_us, parse_column_us
from tracekit.formats.trace_event import decode_raw_list

TIMES_NS = st.one_of(st.integers(0, 2_000_000), st.integers(10**15, 10**16), st.integers(0, 2**63 - 1))


def written(ns: int, decimals: int | None) -> str:
    """A time as some writer writes it; None: as few decimals as it takes."""
    if decimals == 0:
        return str(ns // 1000)
    text = format_us(ns).decode()
    return text if decimals == 3 else text.rstrip("0").rstrip(".")


@given(st.lists(TIMES_NS, min_size=1, max_size=20), st.sampled_from([0, 3, None]))
def test_a_column_is_read_as_each_of_its_numbers(times: list[int], decimals: int | None) -> None:
    texts = [written(time, decimals) for time in times]
    column = f"[{','.join(texts)}]".encode()
    expected = [parse_us(text.encode()) for text in texts]
    assert parse_all_us(decode_raw_list(column)) == expected
    assert parse_column_us(column) in (None, expected)


@given(st.integers(10**11, 10**12 - 1), st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_the_usual_columns_take_the_fast_way(base: int, steps: list[int]) -> None:
    times = [base * 1000 + step for step in steps]
    for decimals in (0, 3):
        column = f"[{','.join(written(time, decimals) for time in times)}]".encode()
        assert parse_column_us(column) == [time if decimals else time // 1000 * 1000 for time in times]


@pytest.mark.parametrize(
    "odd", ["-1.000", "1e3", '"5.000"', "1.0005", "1.23456", "null", "99999999999999999.000", "1" + 400 * "0"]
)
@pytest.mark.parametrize("others", [[], ["7.250"], ["123.456", "223.456"]])
def test_what_is_unusual_is_left_to_the_careful_way(odd: str, others: list[str]) -> None:
    texts = [*others, odd, *others]
    column = f"[{','.join(texts)}]".encode()
    assert parse_column_us(column) is None
    assert parse_all_us(decode_raw_list(column)) == [parse_us(text.encode()) for text in texts]


@given(st.lists(st.one_of(TIMES_NS, st.integers(-5000, 5000)), max_size=20))
def test_a_column_is_written_as_each_of_its_numbers(times: list[int]) -> None:
    assert format_all_us(times) == b"[%b]" % b",".join(map(format_us, times))


@given(st.integers(4, 18), st.data())
def test_times_of_one_length_are_written_in_columns(digits: int, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(10 ** (digits - 1), 10**digits - 1), min_size=1, max_size=20))
    assert format_all_us(times) == b"[%b]" % b",".join(map(format_us, times))
