"""Plots as SVG: values land where they should, whatever is drawn stays bounded, and a name is never markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.resources import files
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracekit.explain.counters import CounterTime
from tracekit.explain.step_times import StepPoint, StepSeries, reduced_steps, step_grid, step_points
from tracekit.view.report.axes import BYTES, NUMBERS, PERCENTS, TIMES, axis, words
from tracekit.view.report.drawing import CATEGORIES
from tracekit.view.report.heat_map import DIVERGING_LEVELS, LEVELS, heat_map
from tracekit.view.report.plots import Bar, line_plot, stacked_bars, step_time_plot

STYLE = files("tracekit.view").joinpath("static/plots.css").read_text(encoding="utf-8")
NS = "{http://www.w3.org/2000/svg}"
EVIL = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil",
    "a\x00\x1b[2Jb",
    "\ud800x",
    "&amp;",
    "x" * 10**6,
]
MOST_BYTES = 400_000


def parsed(svg: str) -> ET.Element:
    """Return the plot, read by a strict XML parser; it holds known elements only."""
    svg.encode()
    root = ET.fromstring(svg)
    tags = {element.tag.removeprefix(NS) for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "text", "rect", "line", "path"}
    names = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in names if name.startswith("on") or name in {"style", "href"}]
    assert (root.get("role"), root[0].tag, root[1].tag) == ("img", f"{NS}title", f"{NS}desc")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x1b]", svg)
    return root


def texts(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{NS}text")]


def path(root: ET.Element, kind: str) -> list[tuple[float, float]]:
    (found,) = [one for one in root.iter(f"{NS}path") if one.get("class") == kind]
    numbers = re.findall(r"(-?[\d.]+) (-?[\d.]+)", found.get("d") or "")
    return [(float(x), float(y)) for x, y in numbers]


def heat(values: list[list[float | None]], **options: Any) -> str:
    """Draw a map of ranks and steps that are called by their numbers."""
    rows, columns = (list(map(str, range(count))) for count in (len(values), len(values[0])))
    names = {"rows": rows, "columns": columns, "row_name": "rank", "column_name": "step", "title": "t", "about": ""}
    return heat_map(values, **{**names, **options})


def point(number: int, *times_ms: float) -> StepPoint:
    ordered = sorted(round(time * 1e6) for time in times_ms)
    return StepPoint(number, number, ordered[0], ordered[len(ordered) // 2], ordered[-1], 1, number)


def test_step_times_stand_where_they_belong() -> None:
    root = parsed(step_time_plot([point(0, 10, 20, 30), point(1, 20, 30, 40)], ranks=3))
    # 40 ms is the top of the scale, 220 pixels high; two steps have half of the width each.
    assert path(root, "tk-line") == [(250, 110), (750, 55)]
    assert path(root, "tk-line tk-second") == [(250, 55), (750, 0)]
    assert path(root, "tk-band") == [(250, 55), (750, 0), (750, 110), (250, 165)]
    assert {"0", "10\xa0ms", "20\xa0ms", "40\xa0ms", "median of the ranks", "slowest rank", "1"} <= set(texts(root))
    assert "step 1 on rank 1 with 40.0 ms" in (root[1].text or "")


def test_peak_among_many_steps_is_drawn_and_told() -> None:
    points = [point(number, 10, 11) for number in range(9000)]
    points[4321] = point(4321, 10, 55)
    root = parsed(step_time_plot(points, ranks=2))
    assert len(path(root, "tk-line")) <= 300
    assert min(y for _, y in path(root, "tk-line tk-second")) == pytest.approx(220 * (1 - 55 / 60), abs=0.01)
    assert "step 4,321, rank 1: 55.0 ms" in texts(root)
    assert "each point: 30 steps" in texts(root)


def test_times_far_apart_get_a_logarithmic_scale_and_the_plot_says_so() -> None:
    root = parsed(step_time_plot([point(0, 9000), *(point(number, 10) for number in range(1, 20))], ranks=1))
    assert "the scale of time is logarithmic" in texts(root)
    assert {"10\xa0ms", "10\xa0s"} <= set(texts(root))
    ys = [y for _, y in path(root, "tk-line")]
    assert (ys[0], ys[1]) == (pytest.approx(3.4, abs=0.2), 220)


def test_between_windows_of_recording_no_line_is_drawn() -> None:
    points = [point(number, 10, 20) for number in (*range(10, 14), *range(1010, 1014))]
    svg = step_time_plot(points, ranks=2)
    (line,) = [one.get("d") or "" for one in parsed(svg).iter(f"{NS}path") if one.get("class") == "tk-line"]
    assert line.count("M") == 2


def test_heat_map_has_the_shade_of_each_cell() -> None:
    root = parsed(heat([[1e6, 1e6, 8e6], [1e6, None, 1e6]], columns=["5", "6", "7"]))
    shades = {one.get("class"): one.get("d") for one in root.iter(f"{NS}path")}
    assert shades == {
        "tk-cell tk-s0": "M0 0h2v22h-2zM0 22h1v22h-1zM2 22h1v22h-1z",
        "tk-cell tk-s7": "M2 0h1v22h-1z",
        "tk-cell tk-none": "M1 22h1v22h-1z",
    }
    tips = [one[0].text for one in root.iter(f"{NS}rect") if len(one)]
    shown = ((5, "1.00\xa0ms"), (6, "1.00\xa0ms"), (7, "8.00\xa0ms"))
    assert tips[:3] == [f"rank 0, step {step}: {time}" for step, time in shown]
    assert tips[4] == "rank 1, step 6: nothing recorded"
    assert "nothing recorded" in texts(root)


def test_noise_does_not_look_like_a_pattern() -> None:
    root = parsed(heat([[1e6 + (row * 7 + column * 3) % 5 * 1000 for column in range(20)] for row in range(8)]))
    assert {one.get("class") for one in root.iter(f"{NS}path")} == {"tk-cell tk-s0"}


def test_slow_rank_among_ten_thousand_is_seen_and_grouping_told() -> None:
    values: list[list[float | None]] = [[1e6] * 40 for _ in range(10_000)]
    values[7777] = [3e6] * 40
    svg = heat(values)
    root = parsed(svg)
    assert len(svg) < 30_000
    (slow,) = [one.get("d") for one in root.iter(f"{NS}path") if one.get("class") == "tk-cell tk-s7"]
    row = 7777 // 157
    assert slow == f"M0 {6 * row}h40v6h-40z"
    assert "157 ranks are one cell: the largest of their values" in texts(root)
    tips = [one[0].text or "" for one in root.iter(f"{NS}rect") if len(one)]
    assert tips[row].startswith("rank 7693–7849: at most 3.00\xa0ms, at step ")


def test_differences_are_told_from_the_middle() -> None:
    root = parsed(heat([[-0.2, 0.0, 0.2]], diverging=True))
    assert [one.get("class") for one in root.iter(f"{NS}path")] == ["tk-cell tk-d0", "tk-cell tk-d4", "tk-cell tk-d8"]


def test_bars_are_as_long_as_their_parts() -> None:
    bars = [Bar("a", [2e6, 1e6], 1e6), Bar("b", [1e6, 1e6])]
    root = parsed(stacked_bars(bars, ["forward", "backward"], title="stages"))
    boxes = [one for one in root.iter(f"{NS}svg") if one.get("x") and one[0].tag == f"{NS}rect"]
    assert [(one.get("x"), one.get("width"), one[0].get("class")) for one in boxes] == [
        *(("0%", "50%", "tk-c0"), ("50%", "25%", "tk-c1")),
        *(("0%", "25%", "tk-c0"), ("25%", "25%", "tk-c1")),
    ]
    (rest,) = [one for one in root.iter(f"{NS}rect") if one.get("class") == "tk-rest" and one.get("x")]
    assert (rest.get("x"), rest.get("width")) == ("75%", "25%")
    assert {"A", "B", "2.00\xa0ms · 50.0%", "1.00\xa0ms · 25.0%", "not recorded"} <= set(texts(root))


def test_small_parts_are_one_and_counted() -> None:
    names = [f"stage {number}" for number in range(30)]
    root = parsed(stacked_bars([Bar("a", [1e6 * (30 - number) for number in range(30)])], names, title="stages"))
    assert {"stage 0", "stage 7", "22 others, together"} <= set(texts(root))


def times(values: list[float], high: list[float] | None = None) -> list[CounterTime]:
    """Return the values of a counter, one a second."""
    return [
        CounterTime(at * 10**9, value, value, most)
        for at, (value, most) in enumerate(zip(values, high or values, strict=True))
    ]


def test_line_has_its_values() -> None:
    root = parsed(line_plot(times([4, 2]), "loss", title="loss", units=NUMBERS))
    height = 220 * 0.7
    assert path(root, "tk-line") == [(0, 0), (1000, height / 2)]
    assert {"0", "2", "4"} <= set(texts(root))


def test_band_reaches_from_least_to_most() -> None:
    values = [100.0] * 96
    high = [*values[:43], 200.0, *values[44:]]
    band = path(parsed(line_plot(times(values, high), "memory", title="memory", units=BYTES)), "tk-band")
    assert len(band) == 2 * 96
    assert min(y for _, y in band) == 0


EVIL_DRAWINGS: list[Any] = [
    lambda name: heat_map(
        [[1]], rows=[name], columns=[name], row_name="rank", column_name="step", title=name, about=name
    ),
    lambda name: stacked_bars([Bar(name, [1.0] * 20)], [name] * 20, title=name, rest=name),
    lambda name: line_plot(times([1, 2]), name, title=name, units=NUMBERS),
    lambda name: step_time_plot([point(1, 1)], ranks=1, title=name),
]


@pytest.mark.parametrize("draw", EVIL_DRAWINGS)
@pytest.mark.parametrize("name", EVIL, ids=range(len(EVIL)))
def test_name_is_text_and_never_markup(draw: Any, name: str) -> None:
    svg = draw(name)
    parsed(svg)
    assert len(svg) < 40_000


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.lists(st.integers(0, 10**15), min_size=1, max_size=4)),
        min_size=1,
        max_size=700,
    )
)
def test_any_steps_can_be_drawn(steps: list[tuple[int, list[int]]]) -> None:
    ranks = []
    for rank in range(4):
        own = [(number, times[rank]) for number, times in steps if len(times) > rank]
        ranks.append(StepSeries(rank, [number for number, _ in own], [time for _, time in own]))
    points = step_points(ranks)
    assert [one.first for one in points] == sorted({number for number, _ in steps})
    svg = step_time_plot(points, ranks=4)
    parsed(svg)
    assert len(svg) < MOST_BYTES


@given(
    st.integers(1, 90),
    st.integers(1, 300),
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e300, 5e8]),
    st.booleans(),
    st.integers(0, 2**32),
)
@example(65, 26, 1e300, False, 1)  # numbers of 300 digits in each tooltip
def test_any_heat_map_can_be_drawn(rows: int, columns: int, size: float, diverging: bool, seed: int) -> None:
    random = Random(seed)
    values = [[random.choice([None, size * random.random(), -size]) for _ in range(columns)] for _ in range(rows)]
    values[0][0] = size
    svg = heat(values, columns=["c"] * columns, diverging=diverging)
    parsed(svg)
    assert len(svg) < MOST_BYTES


@given(
    st.lists(st.floats(-1e300, 1e300, exclude_min=True, exclude_max=True), min_size=1, max_size=96),
    st.sampled_from([TIMES, BYTES, NUMBERS, PERCENTS]),
)
def test_any_line_can_be_drawn(values: list[float], units: Any) -> None:
    parsed(line_plot(times(values), "x", title="t", units=units))


@example(1.0, 5e-324, TIMES, True)
@given(
    st.floats(-1e300, 1e300),
    st.floats(-1e300, 1e300),
    st.sampled_from([TIMES, BYTES, NUMBERS, PERCENTS]),
    st.booleans(),
)
def test_scale_holds_its_values_and_grows(first: float, second: float, units: Any, log: bool) -> None:
    low, high = sorted((first, second))
    scale = axis(low, high, units, log=log)
    places = [scale.at(value) for value in (scale.low, low, high, scale.high)]
    assert places[0] == 0
    assert places[-1] == 1
    assert places == sorted(places)
    assert [value for value, _ in scale.ticks] == sorted(value for value, _ in scale.ticks)
    assert 2 <= len(scale.ticks) <= 12


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (0, BYTES, "0\xa0B"),
        (0, NUMBERS, "0"),
        (1.5e6, TIMES, "1.50\xa0ms"),
        (999_999, TIMES, "1.00\xa0ms"),
        (2**30, BYTES, "1.00\xa0GiB"),
        (0.001, NUMBERS, "0.001"),
        (-0.25, PERCENTS, "−25.0%"),
        (20, NUMBERS, "20"),
        (12_345, NUMBERS, "12.3k"),
    ],
)
def test_values_have_three_digits_and_their_unit(value: float, units: Any, text: str) -> None:
    assert words(value, units) == text


def test_steps_are_told_rank_by_rank() -> None:
    ranks = [StepSeries(0, [0, 1, 2, 3], [10, 20, 30, 40]), StepSeries(3, [2, 1, 1], [7, 9, 50])]
    assert step_points(ranks) == [
        StepPoint(0, 0, 10, 10, 10, 0, 0),
        StepPoint(1, 1, 9, 20, 50, 3, 1),
        StepPoint(2, 2, 7, 7, 30, 0, 2),
        StepPoint(3, 3, 40, 40, 40, 0, 3),
    ]
    grid = step_grid(ranks, 2)
    assert (grid.ranks, grid.columns, grid.longest_ns) == ([0, 3], [(0, 1), (2, 3)], [[20, 40], [50, 7]])
    assert reduced_steps(step_points(ranks), 2)[0] == StepPoint(0, 1, 9, 10, 50, 3, 1)
    assert (step_points([]), step_grid([], 5).columns, reduced_steps([], 3)) == ([], [], [])


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 99)), max_size=40), max_size=5), st.integers(1, 10)
)
def test_no_peak_is_lost_however_steps_are_put_together(ranks: list[list[tuple[int, int]]], most: int) -> None:
    columns = [
        StepSeries(rank, [number for number, _ in own], [time for _, time in own]) for rank, own in enumerate(ranks)
    ]
    reduced, grid = reduced_steps(step_points(columns), most), step_grid(columns, most)
    longest = max((time for own in ranks for _, time in own), default=0)
    assert len(reduced) <= most
    assert max((one.slowest_ns for one in reduced), default=0) == longest
    assert max((value for row in grid.longest_ns for value in row if value is not None), default=0) == longest
    assert len(grid.columns) <= most


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", CATEGORIES)
def test_letters_on_a_colour_can_be_read(colour: str) -> None:
    (ink,) = re.findall(r"\.tk-key \{ fill: (#[0-9a-f]{6})", STYLE)
    assert (luminance(colour) + 0.05) / (luminance(ink) + 0.05) >= 4.5


def test_every_class_that_is_drawn_has_a_style() -> None:
    steps = [point(number, 10, 20) for number in range(3)]
    drawn = [
        step_time_plot(steps, ranks=2),
        heat([[1e6, 2e6, None]]),
        heat([[-0.1, 0.0, 0.1]], diverging=True),
        stacked_bars([Bar("a", [1e6] * 20, 1e6)], list(map(str, range(20))), title="t"),
        line_plot(times([1, 2], [2, 3]), "x", title="t", units=NUMBERS),
    ]
    used = {name for svg in drawn for found in re.findall(r'class="([^"]*)"', svg) for name in found.split()}
    used |= {f"tk-s{level}" for level in range(LEVELS)} | {f"tk-d{level}" for level in range(DIVERGING_LEVELS)}
    assert used <= set(re.findall(r"\.(tk-[a-z0-9]+)", STYLE))
    assert tuple(re.findall(r"\.tk-c\d \{ fill: (#[0-9a-f]{6})", STYLE)) == CATEGORIES


@pytest.mark.parametrize("stall", [0.0, 30.0])
def test_slow_rank_of_64_has_a_shade_of_its_own(stall: float) -> None:
    random = Random(3)
    ranks = range(64)
    differences: list[list[float | None]] = [[random.gauss(0, 0.004) for _ in ranks] for _ in range(8)]
    differences[2][17] = 0.07
    svg = heat(differences, diverging=True)
    cells = {node.get("class"): node.get("d") for node in ET.fromstring(svg).iter(f"{NS}path")}
    assert cells["tk-cell tk-d8"] == f"M17 {2 * 22}h1v22h-1z"
    assert not {"tk-cell tk-d0", "tk-cell tk-d1", "tk-cell tk-d7"} & cells.keys()
    # Steps: the rank is 7 % slower in all of them, and another one stalls once.
    times = [[100e6 * (random.gauss(1, 0.01) + (0.07 if rank == 17 else 0)) for _ in range(100)] for rank in ranks]
    times[40][50] += stall * 100e6
    svg = heat([*times])
    dark = Counter[str]()
    for node in ET.fromstring(svg).iter(f"{NS}path"):
        for y, length in re.findall(r"M\d+ (\d+)h(\d+)v", node.get("d") or ""):
            if (node.get("class") or "")[-1] >= "4":
                dark[int(y) // 6] += int(length)
    assert dark[17] > 70
    assert all(count < 10 for row, count in dark.items() if row != 17)
