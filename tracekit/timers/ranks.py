"""RankReports: the values of all ranks for one report, and the barriers of timers; what `Timers` knows of other ranks."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import TimerError
from tracekit.timers.exchange import Exchange, default_store, open_exchange, process_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.recording.marker import Marker

__all__ = ["BARRIER", "RankReports", "barrier_of_ranks", "ranks_text"]

logger = logging.getLogger("tracekit")

BARRIER: Final = "barrier"
"""Category of the slices in which a timer waits for the other ranks."""

_PASSING_ON_S: Final = 5.0
"""How much longer the others wait for what rank 0 passes on than rank 0 waits for them."""

_STEPS: Final = 256
"""So many steps are remembered, more than there are values in the store: one may come again."""

_LEVEL_TOPIC: Final = "level"
_LEVEL_TIMEOUT_S: Final = 600.0
"""How long the first barrier waits until all ranks have said which timers they have. Longer than anything that is not stuck."""


class RankReports:
    """What one registry of timers has to do with the other ranks. Without torch.distributed there are none.

    Args:
        registry: What the registry is known by, on all ranks.
        log_level: The level of the registry.
        timeout_s: How long a report waits for the other ranks at most.
        make_marker: Makes the markers of the barriers.
    """

    def __init__(
        self,
        registry: str,
        log_level: int,
        timeout_s: float,
        make_marker: Callable[[str, tuple[str, ...]], Marker],
    ) -> None:
        self._registry = registry
        self._log_level = log_level
        self._make_marker = make_marker
        self._timeout_s = timeout_s
        self._exchange: Exchange | None = None
        self._store: Any = None
        self._opened = 0  # under torchrun a later process group of the process may have the values of an earlier one
        self._calls = 0  # of reports that are matched by their order
        self._counts: dict[str, int] = {}  # by report
        self._step_counts: dict[str, int] = {}  # by report and step
        self._told: set[object] = set()
        self._missing: set[int] = set()  # ranks that were told to be
        self._announced = False
        self._levels: dict[int, int] = {}

    # ---- reports ----------------------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int]:
        """This rank, and how many there are."""
        distributed = process_group()
        return (0, 1) if distributed is None else (distributed.get_rank(), distributed.get_world_size())

    def collect(
        self,
        report: str,
        own: bytes,
        *,
        reads: Callable[[int, int], bool] | None = None,
        step: object = None,
        timeout_s: float | None = None,
    ) -> tuple[dict[int, bytes], list[int]] | None:
        """Hand out this rank's values for a report, and take those of all ranks if this one is to read them.

        Args:
            report: Which report; all ranks make the same ones in the same order.
            own: This rank's values, as JSON.
            reads: Whether a rank reads them, by rank and world size. None: all do. Then rank 0 reads, and passes on what it has
                read, since the store would have to answer the square of the number of ranks otherwise.
            step: The training step that the report is for: it matches the ranks' reports better than their order.
            timeout_s: How long to wait for the others.

        Returns:
            The values by rank and which ranks are missing, or None where this rank does not read. Values that may be of an
            earlier report are not among them; see `_current_ones`.

        Raises:
            TimerError: The store cannot be reached.
        """
        distributed = process_group()
        if distributed is None:
            return ({0: own}, []) if reads is None or reads(0, 1) else None
        rank, world_size = self.place
        is_reader = reads is None or reads(rank, world_size)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        found: dict[int, bytes] = {}
        try:
            exchange = self._current(distributed)
            topic = self._topic(report, step)
            number = self._number(step)
            exchange.put(topic, b"%d %b" % (number, own), reads=is_reader)
            if reads is None and rank != 0:
                passed_on = exchange.read(f"{topic}/all", timeout_s + _PASSING_ON_S, [0])
                found = {rank: own} if not passed_on else self._with_own(report, rank, own, _split(passed_on[0]))
            elif is_reader:
                found = self._current_ones(report, number, exchange.read(topic, timeout_s))
                if reads is None:
                    exchange.put(f"{topic}/all", _join(found), reads=False)
            if is_reader:
                exchange.acknowledge(topic)
            exchange.wait_for_readers(topic, timeout_s)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise TimerError(f"the other ranks' timers cannot be read: {type(error).__name__}: {reason}") from error
        if not is_reader:
            return None
        return found, [other for other in range(world_size) if other not in found]

    def _number(self, step: object) -> int:
        """Return how many reports this rank has made, which goes with its values; those for a step are matched by that."""
        if step is not None:
            return 0
        self._calls += 1
        return self._calls

    def _current_ones(self, report: str, number: int, values: dict[int, bytes]) -> dict[int, bytes]:
        """Leave out what a rank has put there when it had made fewer reports than this one has now: it may be old.

        One call that only another rank has made leaves its values behind, and the next call here would find them. A rank that
        has made more reports is not behind: its values are no older than this rank's.

        This is seen only where the ranks make other reports as well: by the calls of one report alone, the first of one rank
        is the first of another.
        """
        parts = {rank: value.split(b" ", 1) for rank, value in values.items()}
        old = [rank for rank, (calls, _) in parts.items() if int(calls) < number]
        if old:
            self._out_of_step(report, old)
        return {rank: text for rank, (_, text) in parts.items() if rank not in old}

    def _with_own(self, report: str, rank: int, own: bytes, found: dict[int, bytes]) -> dict[int, bytes]:
        """Return what rank 0 has passed on, or this rank's values alone if it was made without them: of an earlier report."""
        if rank in found:
            return found
        self._out_of_step(report, [*found])
        return {rank: own}

    def _out_of_step(self, report: str, ranks: list[int]) -> None:
        self._missing.update(ranks)  # they have reported: it is not to be said that they have not
        self.tell(
            ("order", report),
            f"the ranks have called this a different number of times, or some too late ({report}): what rank "
            f"{ranks_text(ranks)} has reported may be old, and is left out. Every rank has to make all reports",
        )

    def _topic(self, report: str, step: object) -> str:
        """Return a name that no report had before, and that it has on all ranks."""
        counts, key = (self._counts, report) if step is None else (self._step_counts, f"{report}/step {step}")
        number = counts[key] = counts.get(key, -1) + 1
        if len(self._step_counts) > _STEPS:
            del self._step_counts[next(iter(self._step_counts))]
        return f"{key}/{number}"

    def sums(
        self,
        report: str,
        own: dict[str, int],
        *,
        reads: Callable[[int, int], bool] | None = None,
        step: object = None,
    ) -> dict[int, dict[str, int]] | None:
        """Do `collect` for sums in ns by name. Nothing is raised into training: what is missing is told once, and left out."""
        try:
            collected = self.collect(report, json.dumps(own).encode(), reads=reads, step=step)
        except TimerError as error:
            self.tell("store", f"{error}; the reports are of this rank alone")
            rank, world_size = self.place
            return {rank: own} if reads is None or reads(rank, world_size) else None
        if collected is None:
            return None
        found, missing = collected
        self._missing &= set(missing)
        if not self._missing >= set(missing):
            self._missing.update(missing)
            logger.warning(
                "tracekit: timers: rank %s did not report within %g s, and is not in the report. Every rank has to call it, "
                "also where it has no writer; Timers that are made in another place there need the same name=",
                ranks_text(missing),
                self._timeout_s,
            )
        return {rank: json.loads(text) for rank, text in found.items()}

    def tell(self, about: object, message: str) -> None:
        """Say something once."""
        if about not in self._told:
            self._told.add(about)
            logger.warning("tracekit: timers: %s", message)

    def _current(self, distributed: Any) -> Exchange:
        store = default_store(distributed)
        if self._exchange is None or store is not self._store:
            self._exchange, self._store = open_exchange(distributed, f"{self._registry}/{self._opened}"), store
            self._opened += 1
            self._calls = 0
            self._counts, self._step_counts, self._announced, self._levels = {}, {}, False, {}
        return self._exchange

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell the other ranks which timers this one has, before a barrier that is not for it."""
        distributed = process_group()
        if distributed is not None:
            with suppress(Exception):  # a rank that waits for this will say so
                self._announce(self._current(distributed))

    def barrier(self, name: str, level: int, group: Any) -> None:
        """Wait for the other ranks of a group at a timer of a level. Without torch.distributed there is nobody to wait for.

        Where a rank's level switches the timer off, it will not come; then nobody waits, which is said once.

        Raises:
            TimerError: At the first barrier: a rank has not come to any within 10 minutes. Later ones are torch's, and end with
                its own timeout.
        """
        distributed = process_group()
        if distributed is None:
            return
        ranks = list(range(self.place[1])) if group is None else distributed.get_process_group_ranks(group)
        try:
            off = self._ranks_without(name, level, self._current(distributed), ranks)
        except TimerError:
            raise
        except Exception as error:  # noqa: BLE001 - torch's errors have no class in common in all its versions
            self.tell("levels", f"the levels of the other ranks cannot be read: {type(error).__name__}: {error}")
            off = []
        if off:
            self.tell(
                ("barrier", name),
                f"timer {name!r} has level {level} and is off on rank {ranks_text(off)}, so that its barrier would wait for "
                "ever; it is left out. Give all ranks the same log_level.",
            )
            return
        barrier_of_ranks(name, group, self._make_marker)

    def barrier_of_all(self) -> None:
        """Wait for all ranks, as the caller has asked for."""
        distributed = process_group()
        if distributed is not None:
            distributed.barrier()

    def _ranks_without(self, name: str, level: int, exchange: Exchange, ranks: list[int]) -> list[int]:
        """Return the ranks on which a timer of a level is off. All say once what their level is."""
        self._announce(exchange)
        unknown = [rank for rank in ranks if rank not in self._levels]
        if unknown:
            found = exchange.read(_LEVEL_TOPIC, _LEVEL_TIMEOUT_S, unknown)
            self._levels.update({rank: int(text) for rank, text in found.items()})
            missing = sorted(set(unknown) - set(found))
            if missing:
                raise TimerError(
                    f"the barrier of timer {name!r}: rank {ranks_text(missing)} has not come to any barrier of the timers "
                    f"within {_LEVEL_TIMEOUT_S:g} s; all ranks of the barrier group have to"
                )
        return [rank for rank in ranks if self._levels[rank] < level]

    def _announce(self, exchange: Exchange) -> None:
        if not self._announced:
            exchange.put(_LEVEL_TOPIC, str(self._log_level).encode(), reads=True, lasting=True)
            self._announced = True


def barrier_of_ranks(name: str, group: Any, make_marker: Callable[[str, tuple[str, ...]], Marker]) -> None:
    """Wait at torch's barrier for the other ranks of a group. Without torch.distributed there is nobody to wait for."""
    distributed = process_group()
    if distributed is not None:
        # Ranks leave a barrier at different moments (Megatron-LM#742); the slice shows by how much.
        with make_marker(f"{name} (barrier)", (BARRIER,)):
            distributed.barrier(group=group)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return the numbers of ranks as text; of many, the first ones."""
    shown = ", ".join(map(str, ranks[:10]))
    return shown if len(ranks) <= 10 else f"{shown} and {len(ranks) - 10} more"


def _join(found: dict[int, bytes]) -> bytes:
    return b"\n".join(b"%d %b" % (rank, text) for rank, text in found.items())


def _split(joined: bytes) -> dict[int, bytes]:
    """Return what `_join` has put together: JSON has no newlines of its own."""
    pairs = (line.split(b" ", 1) for line in joined.split(b"\n"))
    return {int(rank): text for rank, text in pairs}
