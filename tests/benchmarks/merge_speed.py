"""How fast tracekit merges, beside copying the same bytes: JSON, gzip, rank traces of its own, and Perfetto's own format."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Spread
from tests.benchmarks.merge_runs import Job, Measured, NotMeasuredError, run
from tests.benchmarks.table import Row, number
from tests.perfetto import Engine, EngineError, UnavailableError
from tracekit import core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Inputs

NAME = "merge-speed"
WORKERS = 2
GZIP_ENOUGH = 400.0
"""MB/s."""
FORMATS = {"JSON": ".json", "pftrace": ".pftrace"}
LOAD_TIMEOUT_S = 600.0


def rows(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Merge the same traces in turns, in every way there is; then have Perfetto load the results of smaller ones."""
    plain = inputs.torch(effort.merge_bytes, effort.merge_files)
    level = inputs.torch(effort.merge_bytes, effort.merge_files, shifted=False)
    own = inputs.rank_traces(effort.merge_bytes, effort.merge_files)
    jobs = {
        "cat": Job(plain, "cat"),
        "one": Job(plain),
        "unshifted": Job(level),
        "pure": Job(plain, pure=True),
        "two": Job(plain, workers=WORKERS),
        "gz": Job(inputs.packed(plain), suffix=".json.gz"),
        "gz two": Job(inputs.packed(plain), suffix=".json.gz", workers=WORKERS),
        "pftrace": Job(plain, suffix=".pftrace"),
        "cat own": Job(own, "cat"),
        "own": Job(own),
        "own pure": Job(own, pure=True),
    }
    found = Measured(jobs, inputs.folder, effort.merge_rounds)
    size = f"{number(plain.megabytes)} MB in {effort.merge_files} files"

    def row(what: str, name: str, other: str, unit: str, at_least: float | None = None, more: str = "") -> Row:
        if reason := found.reason(name, other):
            return Row(NAME, what, None, unit, at_least=at_least, remarks=reason)
        return Row(NAME, what, found.ratio(name, other), unit, at_least=at_least, remarks=rates(name) + more)

    def rates(name: str) -> str:
        return f"{found.rate(name):,.0f} MB/s, {found.median(name).cpu_rate:,.0f} a second of CPU time"

    compiled = "pure Python: the compiled core is not built here" if core.merge is None else "compiled core"
    more = f"; {compiled}; cat {rates('cat')}; {size}"
    yield row("JSON in, JSON out, each time shifted", "one", "cat", " x cat", 0.5, more)
    yield row("the same in pure Python", "pure", "cat", " x cat", 0.18)
    yield row("the same, no time shifted", "unshifted", "cat", " x cat")
    yield row(f"the same in {WORKERS} processes", "two", "one", " x one process", 1.6)
    yield row("gzip in, gzip out", "gz", "one", " x plain", 0.7)
    # 400 MB/s are enough, however fast this machine copies.
    enough = 0.25 if found.reason("cat") else min(0.25, GZIP_ENOUGH / found.rate("cat"))
    yield row(f"the same in {WORKERS} processes, as tracekit merge has it", "gz two", "cat", " x cat", enough)
    yield row("rank traces of tracekit, one base", "own", "cat own", " x cat", 0.5)
    yield row("the same in pure Python", "own pure", "cat own", " x cat")
    megabytes = {
        name: found.median(name).output_bytes / 1e6 for name in ("one", "pftrace") if name not in found.missing
    }
    sizes = "; output " + ", ".join(f"{number(size)} MB" for size in megabytes.values()) + " (JSON, pftrace)"
    yield row("pftrace out", "pftrace", "one", " x JSON out", more=sizes)
    yield from _loads(effort, inputs)


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
