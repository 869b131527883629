"""Check the files of a run: each recording once, and of each rank one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError
from tracekit.formats.trace_stream import content_digest
from tracekit.table.account import Recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Facts = dict[str, Any]

_MAX_NAMED: Final = 4


def recordings_of(facts: Facts) -> list[Recording]:
    """Return the recordings of a file."""
    return [Recording(rank, run_id, tuple(process)) for rank, run_id, process in facts["account"]["recordings"]]


@dataclass(slots=True)
class _Run:
    """Recordings of one rank that belong together: they share the run, or the process."""

    run_ids: set[str] = field(default_factory=set)
    processes: set[tuple[str | int | None, ...]] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)

    def has(self, recording: Recording) -> bool:
        # A process that records twice, without a name for its run, makes up two.
        return recording.run_id in self.run_ids or recording.process in self.processes

    def take(self, others: Iterable[_Run]) -> None:
        for other in others:
            self.run_ids |= other.run_ids
            self.processes |= other.processes
            self.paths += other.paths


def check_runs(files: Sequence[Facts]) -> None:
    """Refuse several runs of one rank: their steps and stages would be mixed."""
    runs: dict[int, list[_Run]] = {}
    for facts in files:
        for recording in recordings_of(facts):
            if not recording.run_id:
                continue
            known = runs.setdefault(recording.rank, [])
            processes = {recording.process} if recording.known else set()
            joined = _Run({recording.run_id}, processes, [])
            joined.take(run for run in known if run.has(recording))
            joined.paths.append(facts["path"])
            runs[recording.rank] = [*(run for run in known if not run.has(recording)), joined]
    for rank, found in sorted(runs.items()):
        if len(found) > 1:
            named = ", ".join(f"{min(run.run_ids)!r} ({run.paths[0]})" for run in found[:_MAX_NAMED])
            more = f" and {len(found) - _MAX_NAMED:,} more" if len(found) > _MAX_NAMED else ""
            raise ConfigError(
                f"rank {rank} has traces of {len(found):,} runs: {named}{more}; name the traces of one run"
            )


def check_copies(files: Sequence[Facts]) -> list[str]:
    """Refuse a trace that is there twice, such as plain and packed; return notes on merges next to their inputs.

    Parts of one recording differ in rank metadata or events.
    """
    known: dict[tuple[Any, ...], list[Facts]] = {}
    digest = cache(content_digest)
    for facts in files:
        metadata = facts["account"]["metadata"]
        if not metadata or facts["is_merged"] or facts["span"][0] is None:
            continue
        key = repr(sorted(metadata.items())), *facts["rows"].values(), facts["span"][0]
        others = known.setdefault(key, [])
        copy = next((other for other in others if digest(other["source"]) == digest(facts["source"])), None)
        if copy is not None:
            raise ConfigError(
                f"{copy['path']} and {facts['path']} are copies of one trace, which would count twice; name one of them"
            )
        others.append(facts)
    notes = []
    owners: dict[Recording, Facts] = {}
    # Merged traces come first, and each is named once.
    for facts in sorted(files, key=lambda facts: not facts["is_merged"]):
        others = [owners.setdefault(recording, facts) for recording in recordings_of(facts) if recording.known]
        merge = next((other for other in others if other is not facts and other["is_merged"]), None)
        if merge is not None:
            notes.append(
                f"{merge['path']} is the result of a merge, and {facts['path']} is of a process that it holds: what both hold "
                "counts twice; name one of them"
            )
    return notes
