"""Speed of tracekit's merge, compared with ``cat`` writing the same bytes: real traces and models of them, plain and packed.

Real traces are made longer, with metadata once. A merge is the command, including the start of Python. The ratio is that of CPU
times in the same round.
"""

from __future__ import annotations

import statistics
import time
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
    kinds["model of torch, every time shifted"] = inputs.torch(effort.merge_bytes, effort.merge_files)
    jobs = {}
    for kind, dataset in kinds.items():
        jobs[kind] = Job(dataset, "cat")
        jobs |= {f"{kind} {align}": Job(dataset, "command", align=align) for align in AT_LEAST}
    found = Measured(jobs, inputs.folder, effort.merge_rounds)
    for kind, dataset in kinds.items():
        for align, bound in AT_LEAST.items():
            what = f"{kind}, --align {align}"
            if reason := found.reason(f"{kind} {align}", kind):
                yield Row(NAME, what, None, " x cat", at_least=bound, remarks=reason)
                continue
            rates = [f"{found.cpu_rates(name).median:,.0f} MB/s" for name in (f"{kind} {align}", kind)]
            remarks = f"{rates[0]}; cat {rates[1]}; {number(dataset.megabytes)} MB in {len(dataset.paths)} files"
            yield Row(NAME, what, found.cpu_ratio(f"{kind} {align}", kind), " x cat", at_least=bound, remarks=remarks)


def _other_ways(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Merge in two processes, packed, in pure Python, and many small ranks."""
    plain = inputs.torch(effort.merge_bytes, effort.merge_files)
    own = inputs.rank_traces(effort.merge_bytes, effort.merge_files)
    few = inputs.torch(effort.peer_bytes, effort.merge_files)
    ranks = effort.small_ranks[-1]
    small = inputs.torch(effort.small_rank_bytes * ranks, ranks)
    jobs = {
        "one": Job(plain, align="wall"),
        "two": Job(plain, align="wall", workers=WORKERS),
        "gz": Job(inputs.packed(plain), align="wall", suffix=".json.gz"),
        "pftrace": Job(plain, align="wall", suffix=".pftrace"),
        "own": Job(own, align="wall"),
        "small": Job(small, align="wall"),
        "pure": Job(few, align="wall", pure=True),
    }
    found = Measured(jobs, inputs.folder, effort.merge_rounds)

    def row(what: str, name: str, at_least: float | None) -> Row:
        if reason := found.reason(name):
            return Row(NAME, what, None, " MB/s", at_least=at_least, remarks=reason)
        remarks = f"of CPU time; {number(jobs[name].dataset.megabytes)} MB"
        return Row(NAME, what, found.cpu_rates(name), " MB/s", at_least=at_least, remarks=remarks)

    yield row("gzip in, gzip out", "gz", 400)
    yield row("pftrace out", "pftrace", 250)
    yield row("rank traces of tracekit", "own", None)
    yield row("pure Python", "pure", 50)
    what = f"the same in {WORKERS} processes"
    if reason := found.reason("one", "two"):
        yield Row(NAME, what, None, " x one process", at_least=1.4, remarks=reason)
    else:
        yield Row(NAME, what, found.ratio("two", "one"), " x one process", at_least=1.4, remarks="by the clock")
    what = f"CPU time for each of {ranks} ranks of {number(effort.small_rank_bytes / 1000)} kB"
    if reason := found.reason("small"):
        yield Row(NAME, what, None, " ms", at_most=0.4, remarks=reason)
    else:
        rates = found.cpu_rates("small")
        times = [small.megabytes / rate / ranks * 1000 for rate in (rates.median, rates.high, rates.low)]
        yield Row(NAME, what, Spread(*times), " ms", at_most=0.4)


def _loads(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Time how Perfetto's engine loads a merged trace of each format."""
    dataset = inputs.torch(effort.peer_bytes, effort.merge_files)
    traces: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    for name, suffix in FORMATS.items():
        try:
            path = inputs.folder / f"loaded{suffix}"
            run(Job(dataset, suffix=suffix), inputs.folder, keep=path)
            traces[name] = path
        except NotMeasuredError as error:
            reasons[name] = str(error)
    try:
        engine = Engine()
    except UnavailableError as error:
        reasons |= dict.fromkeys(traces, f"not installed ({error})")
    else:
        # The first loading of all, which starts the engine, is not counted.
        for count in range(effort.merge_rounds + 1):
            for name in [name for name in traces if name not in reasons]:
                try:
                    took = _load_s(engine, traces[name])
                    if count:
                        times.setdefault(name, []).append(took)
                except EngineError as error:
                    reasons[name] = f"failed: {error}"
        engine.close()
    for name in FORMATS:
        what = f"Perfetto loads merged {name}"
        if name in reasons:
            yield Row(NAME, what, None, " s", remarks=reasons[name])
        else:
            remarks = f"{number(traces[name].stat().st_size / 1e6)} MB from {number(dataset.megabytes)} MB"
            if name != "JSON" and "JSON" not in reasons:
                remarks += f"; {statistics.median(times[name]) / statistics.median(times['JSON']):.2f} x JSON's time"
            yield Row(NAME, what, Spread.of(times[name]), " s", remarks=remarks)


def _load_s(engine: Engine, path: Path) -> float:
    """Return how long the engine takes to load a trace in seconds. Raises EngineError if it finds something wrong with it."""
    start = time.perf_counter()
    with engine.load(path, timeout_s=LOAD_TIMEOUT_S) as trace:
        took = time.perf_counter() - start
        if errors := trace.errors():
            raise EngineError(f"loaded with {errors}")
    return took
