"""The parts of the page on what was recorded: devices, markers, gaps, counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.explain.gpu_results import device_cells
from tracekit.explain.summary_results import NAME_HEAD, name_rows
from tracekit.explain.text import duration
from tracekit.view.report.axes import BYTES, NUMBERS, Units, words
from tracekit.view.report.content import Figure, Name, Section, Table, Words, more, which_ranks
from tracekit.view.report.plots import line_plot
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain.counters import Counter
    from tracekit.explain.run_report import RunReport

_MOST_DEVICES: Final = 64
_NO_DEVICES: Final = (
    "No kernel was recorded. With TorchProfiler(...) among the sources, or torch.profiler's own traces beside the rank traces, "
    "it stands here how busy each device is, and how much communication computing hides."
)
_NO_COUNTERS: Final = (
    "No counter was recorded. SystemProfiler(), GPUProfiler() and TorchMemoryProfiler() among the sources record memory and "
    'load; marker.counter({"loss": loss}) anything else.'
)
_PER_SECOND: Final[Units] = tuple((factor, f"{unit}/s") for factor, unit in BYTES)
_PERCENT: Final[Units] = ((1.0, "%"),)


def device_section(report: RunReport) -> Section:
    """Return the section on devices."""
    devices = [(rank.rank, device) for rank in report.summary.ranks for device in rank.devices]
    if not devices:
        return Section("devices", "Devices", [_NO_DEVICES])
    rows: list[tuple[str | Name, ...]] = [
        (str(rank), Name(device.name, 32), *device_cells(device)) for rank, device in devices[:_MOST_DEVICES]
    ]
    head = ("rank", "device", "span", "busy", "idle", "compute", "communication", "of it hidden", "copies")
    caption = "How busy each device is; hidden is the part of communication during which kernels compute"
    table = Table(caption, head, rows, more(len(devices) - _MOST_DEVICES, "device"), text=(1, 2))
    return Section("devices", "Devices", tables=[table])


def marker_section(report: RunReport) -> Section:
    """Return the section on markers and gaps."""
    found = name_rows(report.summary)
    tables = []
    if found:
        rows = [(Name(row.name), Name(row.category, 20) if row.category else "–", *row.cells) for row in found[:24]]
        caption = "Markers with the longest total time, and the total times of the ranks"
        left = more(len(found) - len(rows), "marker")
        tables.append(Table(caption, ("name", "category", *NAME_HEAD), rows, left, text=(1, 2)))
    if report.summary.gaps:
        gaps = [
            (
                duration(gap.length_ns),
                str(gap.rank),
                Name(gap.where, 32),
                "–" if gap.step is None else f"{gap.step:,}",
                Name(gap.after, 40),
                Name(gap.before, 40),
            )
            for gap in report.summary.gaps
        ]
        caption = "Longest gaps: nothing recorded on the training thread, or a device without work"
        head = ("length", "rank", "where", "in step", "after", "before")
        tables.append(Table(caption, head, gaps, text=(1, 2, 3, 4, 5, 6)))
    empty = [] if tables else ['No slice was recorded. Put markers around code: with profiler.marker("forward"): ...']
    return Section("markers", "Markers and gaps", empty, (), tables)


def counter_section(report: RunReport) -> Section:
    """Return the section on counters."""
    counters = report.counters.counters
    if not counters:
        return Section("counters", "Counters", [_NO_COUNTERS])
    changing = [counter for counter in counters if counter.low < counter.high and len(counter.times) > 1]
    drawn = sorted(sorted(changing, key=lambda counter: -counter.values)[:12], key=lambda one: (one.name, one.key))
    shown = sorted(counters, key=lambda counter: (counter not in drawn, -counter.values))[:60]
    rows: list[tuple[Words, ...]] = []
    for counter in sorted(shown, key=lambda one: (one.name, one.key)):
        units = _units(counter.key)
        rows.append(
            (
                [Name(counter.name, 40), ": ", Name(counter.key, 32)],
                f"{len(counter.ranks):,}",
                f"{counter.values:,}",
                *(words(value, units) for value in (counter.low, counter.high, min(counter.last), max(counter.last))),
            )
        )
    head = ("counter", "ranks", "values", "least", "most", "last, least", "last, most")
    left = len(counters) - len(rows) + report.counters.others
    table = Table("All counters", head, rows, more(left, "counter", ": open the traces to see them"))
    said = [] if len(drawn) == len(changing) else [f"Drawn are the {len(drawn)} counters with the most values."]
    return Section("counters", "Counters", said, list(map(_figure, drawn)), [table], small=True)


def _figure(counter: Counter) -> Figure:
    units, title = _units(counter.key), f"{counter.name}: {counter.key}"
    several, count = len(counter.ranks) > 1, counted(len(counter.ranks), "rank")
    label = f"median of {count}, and their range" if several else which_ranks(counter.ranks)
    every = -(-len(counter.times) // 24)
    rows = [
        (duration(time.time_ns), words(time.low, units), words(time.median, units), words(time.high, units))
        for time in counter.times[::every]
    ]
    about = f"every {every:,} points of the plot" if every > 1 else "as plotted"
    table = Table(f"{Name(title).shown}, {about}", ("time", "least", "median" if several else "mean", "most"), rows)
    return Figure(Name(title).shown, line_plot(counter.times, label, title=title, units=units), table)


def _units(key: str) -> Units:
    """Return the units that the name of a number implies, as the sources of tracekit write them."""
    if key.endswith("bytes_per_s"):
        return _PER_SECOND
    if key.endswith("bytes"):
        return BYTES
    return _PERCENT if key.endswith("percent") else NUMBERS
