"""Compare tracekit's merge with those of other projects, on an input that fits in their memory: see `merge_peers`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks.merge_runs import Job, Measured
from tests.benchmarks.table import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Inputs
    from tests.benchmarks.table import Row

NAME = "merge-peers"


def rows(effort: Effort, inputs: Inputs) -> Iterator[Row]:
    """Let all take turns, and say how many times as fast tracekit is."""
    plain = inputs.torch(effort.peer_bytes, effort.peer_files)
    packed = inputs.packed(plain)
    jobs = {
        "tracekit": Job(plain),
        "sglang": Job(plain, "sglang"),
        "composer": Job(plain, "composer"),
        "jq": Job(plain, "jq"),
        "tracekit gz": Job(packed, suffix=".json.gz"),
        "sglang gz": Job(packed, "sglang", ".json.gz"),
    }
    found = Measured(jobs, inputs.folder, effort.merge_rounds)

    def remarks(own: str, peer: str) -> str:
        other, ours = found.median(peer), found.median(own)
        return (
            f"{number(plain.megabytes)} MB; {other.rate:,.1f} MB/s, {other.peak_mb:,.0f} MB of memory; "
            f"tracekit {ours.rate:,.0f} MB/s, {ours.peak_mb:,.0f} MB"
        )

    for what, peer, own, bound in (
        ("JSON in, JSON out, beside sglang's logic", "sglang", "tracekit", 10.0),
        ("beside Composer's logic", "composer", "tracekit", 25.0),
        ("beside jq, which parses and prints only", "jq", "tracekit", None),
        ("gzip in, gzip out, beside sglang's logic", "sglang gz", "tracekit gz", None),
    ):
        figures, unit = partial(found.spread, "rate", own, peer), f" x {peer.removesuffix(' gz')}"
        yield found.row(NAME, what, (peer, own), figures, unit, partial(remarks, own, peer), at_least=bound)
