"""Timers: the named timers of a process, their sums and their statistics, of this rank and of all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tracekit.arguments import check_seconds
from tracekit.clock import SYSTEM_CLOCK
from tracekit.distributed import detect_process
from tracekit.errors import TimerError
from tracekit.timers.ranks import ranks_text
from tracekit.timers.sum_reports import SumReports
from tracekit.timers.table import TimerTable, decode_timers, encode_timers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.clock import Clock
    from tracekit.recording.profiler import Profiler
    from tracekit.statistics import DurationStatistics

__all__ = ["Timers"]


class Timers(SumReports):
    """Named timers, with the calls of Megatron's and NeMo's `Timers`: there, changing the import is the whole migration.

    Example::

        timers = Timers(log_level=2, log_option="minmax")
        for step in range(steps):
            with timers("forward"):
                ...
            timers("optimizer").start()
            ...
            timers("optimizer").stop()
        timers.log(["forward", "optimizer"], normalizer=steps)
        print(timers.snapshot().text())

    What is timed also appears in the trace of the active profiler, as slices of category "timer". Without one, and without
    torch, it works as well.

    **Levels.** A timer is on if its own level, from 0 to 2, is not above ``log_level``: 0 is for the iteration, 1 for what runs
    once in each, 2 (the default of a timer) for what runs often in each. One that is off costs a look into a table, and the log
    says once that it is off.

    **Ranks.** `log`, `write`, `get_all_timers_string` and `gather` are to be called by every rank, with or without the same
    timers: those of one name belong together. They pass values through the store of torch.distributed. Only the rank that
    reports waits for the others, ``timeout`` seconds at most; ranks that are missing are named. `tracekit.timers.read_timers`
    makes the same table from the traces of all ranks, without any of that. The ranks know each other's `Timers` by the file and
    line where they are made, those of one line by their order there; where that differs, give them the same ``name``.

    **Reports.** What a report has not shown yet, no other report takes from it: ``write`` and then ``log`` show the same,
    although both reset. `Timer.reset` is what makes all of them begin anew.

    Units: methods of timers, and ``writer`` keys, are in seconds; text says its unit.

    Threads: any may use timers; reports belong to one.

    Copies: a copy, a deep one too (of a configuration that holds them), is the same object. What arrives in another process by
    pickle has the same arguments and no timers yet, and belongs to the profiler that is active there.

    Args:
        log_level: Which timers are on.
        log_option: What `log` prints: "max" (the slowest rank), "minmax", or "all" (every rank).
        device: What timers measure unless told otherwise by ``timers(name, device=...)``: "host" is the time that the Python
            code takes, which for work on a GPU is often only its launch; "synchronize" waits for the device at both ends, as
            Megatron does; "events" takes the device's own time by CUDA events, and waits for nothing. None is "host", with a
            hint in the log when CUDA is in use.
        profiler: Whose trace they appear in; None is the profiler that is active.
        timeout: How long a report waits for the other ranks at most, seconds.
        name: What the ranks know them by; None is the place where they are made.
        output: What `log` calls with its text, for example ``logger.info``; None prints it.
        clock: The clock to read; for tests.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        log_level: int,
        log_option: str,
        *,
        device: str | None = None,
        profiler: Profiler | None = None,
        timeout: float = 10.0,
        name: str | None = None,
        output: Callable[[str], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_seconds("Timers: timeout", timeout)
        super().__init__(log_level, log_option, device, profiler, float(timeout), name, output, clock)
        self._timeout_s = float(timeout)
        self._rank: int | None = None
        self._arguments: dict[str, Any] = {
            "log_level": log_level,
            "log_option": log_option,
            "device": device,
            "timeout": timeout,
            "name": name,
            "output": output,
        }
        if clock is not SYSTEM_CLOCK:  # each process has one
            self._arguments["clock"] = clock

    def __copy__(self) -> Timers:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Timers:
        return self  # who times by the copy is to be in the same reports

    def __reduce__(self) -> tuple[Callable[[], Timers], tuple[()]]:
        return partial(type(self), **self._arguments), ()

    def snapshot(
        self, names: Sequence[str] | None = None, *, reset: bool = False, lifetime: bool = False
    ) -> TimerTable:
        """Return the statistics of this rank's timers: a value that any number of sinks may be given.

        Args:
            names: Which timers; None is all.
            reset: The next snapshot is of what comes from here on. It has nothing to do with the resets of Megatron's reports.
            lifetime: Everything since the timers were made, not only since the last reset.
        """
        return TimerTable({self._own_rank(): self._statistics(names, reset=reset, lifetime=lifetime)})

    def gather(
        self,
        names: Sequence[str] | None = None,
        *,
        rank: int | None = 0,
        reset: bool = False,
        lifetime: bool = False,
        timeout: float | None = None,
        allow_missing: bool = False,
    ) -> TimerTable | None:
        """Return the statistics of all ranks' timers, on one of them; every rank has to call this.

        Args:
            names: Which timers; None is all.
            rank: Which rank gets the table, the others get None; None is every rank.
            reset: As for `snapshot`. Where this raises, this rank's timers are not reset.
            lifetime: As for `snapshot`.
            timeout: How long to wait for the others, seconds; None is that of `Timers`.
            allow_missing: Return the table also where ranks are missing; its ``missing`` names them.

        Raises:
            TimerError: A rank did not report in time, and ``allow_missing`` is not given; or the store cannot be reached.
        """
        if timeout is not None:
            check_seconds("gather: timeout", timeout)
        own = encode_timers(self._statistics(names, reset=reset, lifetime=lifetime))
        try:
            return self._gathered(own, rank, timeout, allow_missing=allow_missing)
        except BaseException:  # an interrupt, too: what nobody has seen is kept
            if reset:
                for name in self._wanted(names):
                    if (timer := self._timers.get(name)) is not None:
                        timer.take_back_reset()
            raise

    def _gathered(
        self, own: bytes, rank: int | None, timeout: float | None, *, allow_missing: bool
    ) -> TimerTable | None:
        collected = self._ranks.collect(
            "table", own, reads=None if rank is None else lambda number, _: number == rank, timeout_s=timeout
        )
        if collected is None:
            return None
        found, missing = collected
        if missing and not allow_missing:
            raise TimerError(
                f"gather: rank {ranks_text(missing)} did not report within "
                f"{self._timeout_s if timeout is None else timeout:g} s; every rank has to call gather() "
                "(allow_missing=True returns what there is)"
            )
        if self._ranks.place[1] == 1:
            found = {self._own_rank(): own}
        return TimerTable({number: decode_timers(text) for number, text in found.items()}, tuple(missing))

    def _statistics(
        self, names: Sequence[str] | None, *, reset: bool, lifetime: bool
    ) -> Mapping[str, DurationStatistics]:
        return {
            name: timer.statistics(reset=reset, lifetime=lifetime)
            for name in self._wanted(names)
            if (timer := self._timers.get(name)) is not None
        }

    def _own_rank(self) -> int:
        if self._rank is None or self._ranks.place[1] > 1:
            self._rank = detect_process().rank
        return self._rank
