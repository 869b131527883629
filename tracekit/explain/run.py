"""The traces of a run as an event table, with the names of its slices by kind."""

from __future__ import annotations

import contextlib
from functools import cache as cached
from functools import cached_property
from string import Template
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_names, check_paths
from tracekit.errors import ConfigError
from tracekit.explain.results import decode_result, encode_result
from tracekit.explain.steps import steps_of_ranks
from tracekit.formats.kineto import COLLECTIVE_NAMES, GPU_ACTIVITIES, GPU_SHADOWS, LOADING_NAMES, RUNTIME_CALLS
from tracekit.formats.trace_stream import content_digest
from tracekit.table.account import Recording
from tracekit.table.tables import EventTables
from tracekit.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tracekit.arguments import Paths
    from tracekit.explain.results import ResultT
    from tracekit.explain.steps import RunSteps
    from tracekit.table.derived import RunDatabase

    Facts = dict[str, Any]

OTHERS: Final = "(all other names)"  # the name of all slices whose names are beyond the first 100,000

MAX_NAMES: Final = 100_000
_MAX_CHARACTERS: Final = 500
_OPENING_SHARE: Final = 0.8
_MAX_NAMED: Final = 4

# A frame encloses stages and is not one; a shadow is a copy of a CPU slice on the track of a device. A call of the runtime is a
# stage only if it waits for the device. Operators such as aten::broadcast_tensors change shapes and exchange nothing.
_KIND: Final = r"""
CASE WHEN category IN $device THEN 'device'
    WHEN category IN $shadow THEN 'shadow'
    WHEN category IN $runtime AND NOT contains(name, 'Synchronize') THEN 'call'
    WHEN category = 'training loop' THEN CASE WHEN name = 'batch' THEN 'step' ELSE 'frame' END
    WHEN category IN ('user_annotation', 'cpu_op', 'Operator', '') AND regexp_full_match(name, 'ProfilerStep#\d{1,18}')
        THEN 'step'
    WHEN category IN ('python_function', 'Trace') OR name IN $inside THEN 'frame'
    WHEN regexp_matches(name, '$loading', 'i') THEN 'loading'
    WHEN regexp_matches(name, '$collective', 'i') AND NOT regexp_matches(name, '^(aten|prims)::') THEN 'collective'
    ELSE 'stage' END"""

# Every slice of one name and category has one label; names beyond the first 100,000 share the label 0.
_LABELS: Final = """
WITH named AS (
    SELECT name AS full_name, coalesce(category, '') AS category, sum(duration_ns::DOUBLE) AS total
    FROM events WHERE duration_ns IS NOT NULL GROUP BY 1, 2 ORDER BY total DESC, full_name, category LIMIT {most}
), shown AS (
    SELECT full_name, category,
        CASE WHEN length(full_name) > {characters} THEN left(full_name, {characters} - 1) || '…' ELSE full_name END AS name
    FROM named
)
SELECT full_name, name, category, dense_rank() OVER (ORDER BY name, category)::INTEGER AS label, {kind} AS kind FROM shown"""

_SLICES: Final = """
CREATE TEMP VIEW slice AS
SELECT coalesce(e.rank, -1) AS rank, e.file, e.id, e.parent, e.parent_file, e.pid, e.tid, e.process, e.thread, e.phase,
    e.start_ns, e.duration_ns, e.depth, coalesce(e.category, '') AS category,
    CASE WHEN e.phase = 'X' THEN e.self_ns ELSE e.duration_ns END AS self_ns, e.step,
    coalesce(l.label, 0) AS label, coalesce(l.kind, 'frame') AS kind
FROM events e LEFT JOIN label l ON e.name = l.full_name AND coalesce(e.category, '') = l.category
WHERE e.duration_ns IS NOT NULL"""


class Run:
    """An open run. Ranks are numbers; -1 means processes of a merged trace without a rank.

    Attributes:
        database: The connection.
        facts: The facts of each file; see `EventTables.facts`.
        ranks: The ranks that have slices.
        incomplete: True if something in the files cannot be read or counted.
    """

    def __init__(self, tables: EventTables, database: RunDatabase, inside: Sequence[str]) -> None:
        self.database = database
        self.facts = tables.facts
        _check_runs(self.facts)
        self._notes = [*tables.notes, *_check_copies(self.facts)]
        named = ", ".join("'" + name.replace("'", "''") + "'" for name in ("", *inside))
        kind = Template(_KIND).substitute(
            device=GPU_ACTIVITIES,
            shadow=GPU_SHADOWS,
            runtime=RUNTIME_CALLS,
            inside=f"({named})",
            loading=LOADING_NAMES,
            collective=COLLECTIVE_NAMES,
        )
        database.derive("label", _LABELS.format(most=MAX_NAMES, characters=_MAX_CHARACTERS, kind=kind))
        database.run(_SLICES)
        ranks = database.run("SELECT DISTINCT coalesce(rank, -1) FROM ranks ORDER BY 1")
        self.ranks: list[int] = [rank for (rank,) in ranks]
        self.incomplete = any(facts["account"]["damage"] or facts["unusable"] for facts in self.facts)

    def keep(self, kind: type[ResultT], make: Callable[[], ResultT], *key: object) -> ResultT:
        """Return a result, or find it in the cache if the run is large and has ended; ``key`` are values that it depends on."""
        if not self.database.keeps:
            return make()
        names = [facts["path"] for facts in self.facts]
        document = self.database.keep((kind.__name__, names, self._notes, *key), lambda: encode_result(make()))
        return decode_result(document, kind)

    @cached_property
    def steps(self) -> RunSteps:
        """The steps of all ranks."""
        return steps_of_ranks(self.database, self.ranks)

    @cached_property
    def labels(self) -> list[tuple[str, str, str]]:
        """The name, category and kind of each label."""
        found = self.database.run("SELECT DISTINCT ON (label) label, name, category, kind FROM label ORDER BY label")
        return [(OTHERS, OTHERS, "frame"), *((name, category, kind) for _, name, category, kind in found)]

    def labels_of(self, names: Collection[str], kinds: Sequence[str]) -> dict[str, list[int]]:
        """Return the labels of some kinds with each of some names that has one."""
        found: dict[str, list[int]] = {}
        for label, (name, _, kind) in enumerate(self.labels):
            if name in names and kind in kinds:
                found.setdefault(name, []).append(label)
        return found

    @cached_property
    def files(self) -> list[tuple[str, int]]:
        """Each file, as it may be shown, and the number of its events."""
        return [(facts["path"], sum(facts["rows"].values())) for facts in self.facts]

    @cached_property
    def unusable(self) -> int:
        """The number of events without a usable time."""
        return sum(facts["unusable"] for facts in self.facts)

    @cached_property
    def unfinished(self) -> int:
        """The number of slices that begin and never end."""
        sql = "SELECT count(*) AS slices FROM events WHERE phase IN ('B', 'b') AND duration_ns IS NULL"
        self.database.derive("unfinished", sql)
        ((count,),) = self.database.run("SELECT slices FROM unfinished")
        return int(count)

    @cached_property
    def notes(self) -> list[str]:
        """The notes on the files: what is left out, and why."""
        lost = sum(count for facts in self.facts for count in facts["account"]["damage"].values())
        notes = list(self._notes)
        if lost:
            notes.append(f"{counted(lost, 'place')} in the files cannot be read: what stood there is not counted")
        if self.unusable:
            notes.append(
                f"{counted(self.unusable, 'event')} not counted: their time or duration is missing, negative or beyond all bounds"
            )
        if self.unfinished:
            notes.append(f"{counted(self.unfinished, 'slice')} not counted: they begin and never end")
        ((names,),) = self.database.run("SELECT count(*) FROM label")
        if names >= MAX_NAMES:
            ((others,),) = self.database.run("SELECT count(*) FROM slice WHERE label = 0")
            note = f"{counted(others, 'slice')} counted as one marker: their names are beyond the first {MAX_NAMES:,}"
            notes += [note] if others else []
        return notes


def check_shares(**shares: float) -> None:
    """Raise `ConfigError` for a share that is not from 0 to below 1."""
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise ConfigError(f"{name}={value!r}: a share from 0 to below 1")


@contextlib.contextmanager
def open_run(
    inputs: Paths,
    *,
    inside: Sequence[str] = (),
    cache: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> Iterator[Run]:
    """Open the traces of a run; raises the errors of `EventTables`, and `ConfigError` for several runs or copies."""
    done = 0.0

    def advance(share: float, what: str) -> None:
        nonlocal done
        done = max(done, share * _OPENING_SHARE)
        if progress is not None:
            progress(done, what)

    paths = check_paths("inputs", inputs)
    check_names("inside", inside)
    with EventTables(paths, cache=cache, progress=advance) as tables, tables.database() as database:
        advance(1.0, "asking the event table")
        yield Run(tables, database, inside)
    if progress is not None:
        progress(1.0, "asking the event table")


def shortened_name(name: str) -> str:
    """Return a name with at most 500 characters, as labels have it."""
    return name if len(name) <= _MAX_CHARACTERS else name[: _MAX_CHARACTERS - 1] + "…"


def recordings_of(facts: Facts) -> list[Recording]:
    """Return the recordings of a file."""
    return [Recording(rank, run_id, tuple(process)) for rank, run_id, process in facts["account"]["recordings"]]


def _check_runs(files: Sequence[Facts]) -> None:
    """Refuse several runs of one rank: their steps and stages would be mixed."""
    # The runs of each rank: names and processes that belong together, and the first file.
    runs: dict[int, list[tuple[set[Any], str]]] = {}
    for facts in files:
        for recording in recordings_of(facts):
            if not recording.run_id:
                continue
            # A process that records twice, without a name for its run, makes up two.
            own: set[Any] = {recording.run_id, *([recording.process] if recording.known else [])}
            known = runs.get(recording.rank, [])
            same = [run for run in known if not own.isdisjoint(run[0])]
            joined = own.union(*(keys for keys, _ in same)), same[0][1] if same else facts["path"]
            runs[recording.rank] = [*(run for run in known if own.isdisjoint(run[0])), joined]
    for rank, found in sorted(runs.items()):
        if len(found) > 1:
            names = (min(key for key in keys if isinstance(key, str)) for keys, _ in found[:_MAX_NAMED])
            named = ", ".join(f"{name!r} ({path})" for name, (_, path) in zip(names, found, strict=False))
            more = f" and {len(found) - _MAX_NAMED:,} more" if len(found) > _MAX_NAMED else ""
            raise ConfigError(
                f"rank {rank} has traces of {len(found):,} runs: {named}{more}; name the traces of one run"
            )


def _check_copies(files: Sequence[Facts]) -> list[str]:
    """Refuse a trace that is there twice, such as plain and packed; return notes on merges next to their inputs.

    Parts of one recording differ in rank metadata or events.
    """
    known: dict[tuple[Any, ...], list[Facts]] = {}
    digest = cached(content_digest)
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
