"""What the files that are read together must hold: each recording once, and of a rank those of one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError
from tracekit.formats.trace_stream import content_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.analysis.reading import TraceFile
    from tracekit.analysis.recordings import Recording

__all__ = ["check_copies", "check_runs"]

_MOST_TOLD: Final = 4


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


def check_runs(files: Sequence[TraceFile]) -> None:
    """Refuse several runs of one rank: their steps and stages would be mixed.

    Raises:
        ConfigError: A rank has files of more than one.
    """
    runs: dict[int, list[_Run]] = {}
    for file in files:
        for recording in file.recordings:
            if not recording.run_id:
                continue
            known = runs.setdefault(recording.rank, [])
            processes = {recording.process} if recording.known else set()
            joined = _Run({recording.run_id}, processes, [])
            joined.take(run for run in known if run.has(recording))
            joined.paths.append(file.path)
            runs[recording.rank] = [*(run for run in known if not run.has(recording)), joined]
    for rank, found in sorted(runs.items()):
        if len(found) > 1:
            told = ", ".join(f"{min(run.run_ids)!r} ({run.paths[0]})" for run in found[:_MOST_TOLD])
            more = f" and {len(found) - _MOST_TOLD:,} more" if len(found) > _MOST_TOLD else ""
            raise ConfigError(
                f"rank {rank} has traces of {len(found):,} runs: {told}{more}; name the traces of one run"
            )


def check_copies(files: Sequence[TraceFile]) -> list[str]:
    """Refuse a trace that is there twice, such as plain and packed; returns notes on merges beside what they may hold.

    Parts of one recording have rank metadata of their own, or other events.

    Raises:
        ConfigError: Two files are copies of each other.
    """
    known: dict[tuple[str, int, int], list[TraceFile]] = {}
    digest = cache(content_digest)
    for file in files:
        if file.content is None:
            continue
        others = known.setdefault(file.content, [])
        copy = next((other for other in others if digest(other.source) == digest(file.source)), None)
        if copy is not None:
            raise ConfigError(
                f"{copy.path} and {file.path} are copies of one trace, which would count twice; name one of them"
            )
        others.append(file)
    notes = []
    owners: dict[Recording, TraceFile] = {}
    # The merged ones come first, and each is told of once.
    for file in sorted(files, key=lambda file: not file.merged):
        others = [owners.setdefault(recording, file) for recording in file.recordings if recording.known]
        merge = next((other for other in others if other is not file and other.merged), None)
        if merge is not None:
            notes.append(
                f"{merge.path} is the result of a merge, and {file.path} is of a process that it holds: what both hold "
                "counts twice; name one of them"
            )
    return notes
