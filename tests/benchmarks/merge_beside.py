"""tracekit's merge beside what others do, on an input that they can hold in memory; see `tests.benchmarks.merge_peers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks.merge_runs import Job, Measured
from tests.benchmarks.table import Row, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.measure import Effort
    from tests.benchmarks.merge_inputs import Inputs

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
    for what, peer, name, bound in (
        ("JSON in, JSON out, beside sglang's logic", "sglang", "tracekit", 10.0),
        ("beside Composer's logic", "composer", "tracekit", 25.0),
        ("beside jq, which parses and prints only", "jq", "tracekit", None),
        ("gzip in, gzip out, beside sglang's logic", "sglang gz", "tracekit gz", None),
    ):
        unit = f" x {peer.removesuffix(' gz')}"
        if reason := found.reason(peer, name):
            yield Row(NAME, what, None, unit, at_least=bound, remarks=reason)
            continue
        remarks = (
            f"{number(plain.megabytes)} MB; {found.rate(peer):,.1f} MB/s, {found.peak(peer).median:,.0f} MB of memory"
        )
        remarks += f"; tracekit {found.rate(name):,.0f} MB/s, {found.peak(name).median:,.0f} MB"
        yield Row(NAME, what, found.ratio(name, peer), unit, at_least=bound, remarks=remarks)
