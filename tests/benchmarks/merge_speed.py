"""Speed of tracekit's merge, compared with ``cat`` writing the same bytes: real traces, made longer, plain and packed.

A merge is the command, including the start of Python. The ratio is that of CPU times in the same round.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks.grown_traces import DLRM, GLOO, real_ranks
from tests.benchmarks.measure import Spread
from tests.benchmarks.merge_runs import Job, Measured, NotMeasuredError, run
from tests.benchmarks.table import Row, number
from tests.perfetto import Engine, EngineError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Dataset, Inputs

NAME = "merge-speed"
WORKERS = 2
OVERLAPS = 0.005
FORMATS = {"JSON": ".json", "pftrace": ".pftrace"}
LOAD_TIMEOUT_S = 600.0
AT_LEAST = {"wall": 0.40, "auto": 0.34}
"""The share of the speed of ``cat``, by ``--align``."""
RATES = {
    "gzip in, gzip out, nothing to repair": 400,
    "gzip in, gzip out, with overlaps": 280,
    "pftrace out": 250,
    "rank traces of tracekit": None,
    "pure Python": 50,
}
"""What must be reached, in MB/s."""


def rows(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Merge the same traces in turns, in every way there is; then have Perfetto load the results of smaller ones."""
    yield from _plain(effort, inputs)
    yield from _other_ways(effort, inputs)
    yield from _loads(effort, inputs)


def _plain(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Merge JSON into JSON in one process."""
    kinds: dict[str, Dataset] = {}
    if real_ranks(DLRM):
        kinds = {
            "DLRM": inputs.grown(DLRM, effort.merge_bytes),
            "torch 2.13 with overlaps": inputs.grown(GLOO, effort.merge_bytes),
            "DLRM, 0.5 % more overlaps": inputs.grown(DLRM, effort.merge_bytes, overlaps=OVERLAPS),
        }
    kinds["torch on an H200, every time shifted"] = inputs.torch(effort.merge_bytes, effort.merge_files)
    jobs = {}
    for kind, dataset in kinds.items():
        jobs[kind] = Job(dataset, "cat")
        jobs |= {f"{kind}, --align {align}": Job(dataset, "command", align=align) for align in AT_LEAST}
    found = Measured(jobs, inputs.folder, effort.merge_rounds)

    def remarks(what: str, kind: str) -> str:
        own, cat = (found.spread("cpu_rate", name).median for name in (what, kind))
        size = f"{number(kinds[kind].megabytes)} MB in {len(kinds[kind].paths)} files"
        return f"{own:,.0f} MB/s; cat {cat:,.0f} MB/s; {size}"

    for kind in kinds:
        for align, bound in AT_LEAST.items():
            what = f"{kind}, --align {align}"
            ratio, told = partial(found.spread, "cpu_rate", what, kind), partial(remarks, what, kind)
            yield found.row(NAME, what, (what, kind), ratio, " x cat", told, at_least=bound)


def _other_ways(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Merge in two processes, packed, in pure Python, and many small ranks."""
    plain = inputs.torch(effort.merge_bytes, effort.merge_files)
    ranks = effort.small_ranks[-1]
    small = inputs.torch(effort.small_rank_bytes * ranks, ranks)
    jobs = {
        "one": Job(plain, align="wall"),
        "two": Job(plain, align="wall", workers=WORKERS),
        "parts": Job(plain, "parts", align="wall", workers=WORKERS),
        "gzip in, gzip out, with overlaps": Job(inputs.packed(plain), align="wall", suffix=".json.gz"),
        "pftrace out": Job(plain, align="wall", suffix=".pftrace"),
        "rank traces of tracekit": Job(inputs.rank_traces(effort.merge_bytes, effort.merge_files), align="wall"),
        "small": Job(small, align="wall"),
        "pure Python": Job(inputs.torch(effort.peer_bytes, effort.merge_files), align="wall", pure=True),
    }
    if real_ranks(DLRM):
        packed = inputs.packed(inputs.grown(DLRM, effort.merge_bytes))
        jobs["gzip in, gzip out, nothing to repair"] = Job(packed, align="wall", suffix=".json.gz")
    found = Measured(jobs, inputs.folder, effort.merge_rounds)

    def size(what: str) -> str:
        return f"of CPU time; {number(jobs[what].dataset.megabytes)} MB"

    def of_a_rank() -> Spread:
        rates = found.spread("cpu_rate", "small")
        return Spread(*(small.megabytes / rate / ranks * 1000 for rate in (rates.median, rates.high, rates.low)))

    for what, bound in RATES.items():
        if what not in jobs:
            continue
        rates = partial(found.spread, "cpu_rate", what)
        yield found.row(NAME, what, [what], rates, " MB/s", partial(size, what), at_least=bound)
    what, ratio = f"the same in {WORKERS} processes", partial(found.spread, "rate", "two", "one")
    yield found.row(NAME, what, ("one", "two"), ratio, " x one process", lambda: "by the clock", at_least=1.4)
    what, ratio = (
        "what the machine can: each process a part, without joining",
        partial(found.spread, "rate", "parts", "one"),
    )
    yield found.row(NAME, what, ("one", "parts"), ratio, " x one process", lambda: "by the clock")
    what = f"CPU time for each of {ranks} ranks of {number(effort.small_rank_bytes / 1000)} kB"
    yield found.row(NAME, what, ["small"], of_a_rank, " ms", at_most=0.4)


def _loads(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Time how Perfetto's engine loads a merged trace of each format; the first loading, which starts it, is not counted."""
    dataset = inputs.torch(effort.peer_bytes, effort.merge_files)
    traces = {name: inputs.folder / f"loaded{suffix}" for name, suffix in FORMATS.items()}
    times: dict[str, list[float]] = {name: [] for name in FORMATS}
    try:
        for name, suffix in FORMATS.items():
            run(Job(dataset, suffix=suffix), inputs.folder, keep=traces[name])
        with contextlib.closing(Engine()) as engine:
            for _ in range(effort.merge_rounds + 1):
                for name, path in traces.items():
                    times[name].append(_load_s(engine, path))
    except (NotMeasuredError, UnavailableError, EngineError) as error:
        why = f"not installed ({error})" if isinstance(error, UnavailableError) else f"failed: {error}"
        yield from (Row(NAME, f"Perfetto loads merged {name}", None, " s", remarks=why) for name in FORMATS)
        return
    json_s = statistics.median(times["JSON"][1:])
    for name, found in times.items():
        remarks = f"{number(traces[name].stat().st_size / 1e6)} MB from {number(dataset.megabytes)} MB"
        if name != "JSON":
            remarks += f"; {statistics.median(found[1:]) / json_s:.2f} x JSON's time"
        yield Row(NAME, f"Perfetto loads merged {name}", Spread.of(found[1:]), " s", remarks=remarks)


def _load_s(engine: Engine, path: Path) -> float:
    """Return how long the engine takes to load a trace in seconds. Raises EngineError if it finds something wrong with it."""
    start = time.perf_counter()
    with engine.load(path, timeout_s=LOAD_TIMEOUT_S) as trace:
        took = time.perf_counter() - start
        if errors := trace.errors():
            raise EngineError(f"loaded with {errors}")
    return took
