"""Timers: the named timers of a process and their reports across ranks, with the calls of Megatron's and NeMo's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_seconds
from tracekit.clock import SYSTEM_CLOCK
from tracekit.distributed import detect_process
from tracekit.errors import ConfigError, TimerError
from tracekit.timers.registry import TimerRegistry
from tracekit.timers.table import TimerTable, decode_timers, encode_timers
from tracekit.timers.text import LOG_OPTIONS, min_max, sums_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.clock import Clock
    from tracekit.recording.profiler import Profiler

__all__ = ["Timers"]

_SECOND_NS: Final = 1e9


class Timers(TimerRegistry):
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
    makes the same table from the traces of all ranks, without any of that.

    **Reports.** What a report has not shown yet, no other report takes from it: ``write`` and then ``log`` show the same,
    although both reset. `Timer.reset` is what makes all of them begin anew.

    Units: methods of timers, and ``writer`` keys, are in seconds; text says its unit.

    Threads: any may use timers; reports belong to one.

    Args:
        log_level: Which timers are on.
        log_option: What `log` prints: "max" (the slowest rank), "minmax", or "all" (every rank).
        device: What timers measure unless told otherwise by ``timers(name, device=...)``: "host" is the time that the Python
            code takes, which for work on a GPU is often only its launch; "synchronize" waits for the device at both ends, as
            Megatron does; "events" takes the device's own time by CUDA events, and waits for nothing. None is "host", with a
            hint in the log when CUDA is in use.
        profiler: Whose trace they appear in; None is the profiler that is active.
        timeout: How long a report waits for the other ranks at most, seconds.
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
        output: Callable[[str], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if log_option not in LOG_OPTIONS:
            raise ConfigError(
                f"Timers: log_option must be one of {', '.join(map(repr, LOG_OPTIONS))}, not {log_option!r}"
            )
        check_seconds("Timers: timeout", timeout)
        super().__init__(log_level, device, profiler, float(timeout), clock)
        self._log_option = log_option
        self._output = _print if output is None else output
        self._timeout_s = float(timeout)
        self._rank: int | None = None

    # ---- Megatron's reports -----------------------------------------------------------------------------------------

    def get_all_timers_string(
        self,
        names: Sequence[str] | None = None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> str | None:
        """Return the report of all ranks as text, on every rank; None where there is nothing to report.

        Args:
            names: Which timers; None is all.
            normalizer: What to divide by, such as the number of iterations; the text says so beside its unit.
            reset: Whether the next such text begins from here.
            barrier: Wait for all ranks first.

        Raises:
            ConfigError: The normalizer is not above 0.
        """
        _check_normalizer(normalizer)
        return self._text("string", names, normalizer, reset=reset, barrier=barrier, reads=lambda *_: True)

    def log(
        self,
        names: Sequence[str] | None = None,
        rank: int | None = None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Print the report of all ranks on one of them; every rank has to call this.

        Args:
            names: Which timers; None is all.
            rank: Which rank prints; None is the last.
            normalizer: What to divide by.
            reset: Whether the next such report begins from here.
            barrier: Wait for all ranks first.

        Raises:
            ConfigError: The normalizer is not above 0.
        """
        _check_normalizer(normalizer)
        _, world_size = self._ranks.place
        if rank is not None and not 0 <= rank < world_size:
            self._ranks.tell(
                ("rank", rank), f"log(rank={rank!r}) prints nothing: there are {world_size} ranks, counted from 0"
            )

        def prints(number: int, count: int) -> bool:
            return number == (count - 1 if rank is None else rank)

        text = self._text("log", names, normalizer, reset=reset, barrier=barrier, reads=prints)
        if text is not None:
            self._output(text)

    def write(
        self,
        names: Sequence[str] | None,
        writer: Any,
        iteration: int,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Write the slowest rank's seconds of each timer, as ``<name>-time``; every rank has to call this.

        Two writers get the same values if they are given the same iteration.

        Args:
            names: Which timers; None is all.
            writer: TensorBoard's ``SummaryWriter``, or ``wandb`` or a run of it; None on the ranks that do not write.
            iteration: The training step.
            normalizer: What to divide by.
            reset: Whether the next such report begins from here.
            barrier: Wait for all ranks first.

        Raises:
            ConfigError: The normalizer is not above 0, or the writer is none.
        """
        if writer is not None and not hasattr(writer, "add_scalar") and not hasattr(writer, "log"):
            raise ConfigError(f"Timers.write takes a SummaryWriter of TensorBoard or a run of wandb, not {writer!r}")
        for key, seconds in self._largest("write", names, writer, iteration, normalizer, reset=reset, barrier=barrier):
            if hasattr(writer, "add_scalar"):
                writer.add_scalar(key, seconds, iteration)
            else:
                writer.log({key: seconds}, iteration)

    def write_to_wandb(
        self,
        names: Sequence[str] | None,
        writer: Any,
        iteration: int,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Do as `write`, for Weights & Biases; what this shows, `write` shows as well."""
        for key, seconds in self._largest("wandb", names, writer, iteration, normalizer, reset=reset, barrier=barrier):
            writer.log({key: seconds}, iteration)

    def _largest(
        self,
        report: str,
        names: Sequence[str] | None,
        writer: Any,
        iteration: int,
        normalizer: float,
        *,
        reset: bool,
        barrier: bool,
    ) -> list[tuple[str, float]]:
        _check_normalizer(normalizer)
        sums = self._sums(
            report, names, reset=reset, barrier=barrier, reads=lambda *_: writer is not None, step=int(iteration)
        )
        found = []
        for name in _names(sums or {}, names):
            extremes = min_max(sums or {}, name)
            if extremes is not None:
                found.append((f"{name}-time", extremes[1] / _SECOND_NS / normalizer))
        return found

    def _text(
        self,
        report: str,
        names: Sequence[str] | None,
        normalizer: float,
        *,
        reset: bool,
        barrier: bool,
        reads: Callable[[int, int], bool],
    ) -> str | None:
        sums = self._sums(report, names, reset=reset, barrier=barrier, reads=reads)
        return None if sums is None else sums_text(sums, _names(sums, names), self._log_option, normalizer)

    def _sums(
        self,
        report: str,
        names: Sequence[str] | None,
        *,
        reset: bool,
        barrier: bool,
        reads: Callable[[int, int], bool],
        step: object = None,
    ) -> dict[int, dict[str, int]] | None:
        if barrier:
            self._ranks.barrier_of_all()
        own = {
            name: timer.report_ns(report, reset=reset, step=step)
            for name in self._wanted(names)
            if (timer := self._timers.get(name)) is not None
        }
        return self._ranks.sums(report, own, reads=reads, step=step)

    def _wanted(self, names: Sequence[str] | None) -> list[str]:
        return list(self._timers) if names is None else list(dict.fromkeys(names))

    # ---- statistics -------------------------------------------------------------------------------------------------

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
            rank: Which rank gets the table, the others get None; None is every rank, which in a large run costs the store much.
            reset: As for `snapshot`.
            lifetime: As for `snapshot`.
            timeout: How long to wait for the others, seconds; None is that of `Timers`.
            allow_missing: Return the table also where ranks are missing; its ``missing`` names them.

        Raises:
            TimerError: A rank did not report in time, and ``allow_missing`` is not given; or the store cannot be reached.
        """
        if timeout is not None:
            check_seconds("gather: timeout", timeout)
        own = encode_timers(self._statistics(names, reset=reset, lifetime=lifetime))
        collected = self._ranks.collect(
            "table", own, reads=lambda number, _: rank is None or number == rank, timeout_s=timeout
        )
        if collected is None:
            return None
        found, missing = collected
        if missing and not allow_missing:
            raise TimerError(
                f"gather: rank {', '.join(map(str, missing))} did not report within "
                f"{self._timeout_s if timeout is None else timeout:g} s; every rank has to call gather() "
                "(allow_missing=True returns what there is)"
            )
        if self._ranks.place[1] == 1:
            found = {self._own_rank(): own}
        return TimerTable({number: decode_timers(text) for number, text in found.items()}, tuple(missing))

    def _statistics(self, names: Sequence[str] | None, *, reset: bool, lifetime: bool) -> Mapping[str, Any]:
        return {
            name: timer.statistics(reset=reset, lifetime=lifetime)
            for name in self._wanted(names)
            if (timer := self._timers.get(name)) is not None
        }

    def _own_rank(self) -> int:
        if self._rank is None or self._ranks.place[1] > 1:
            self._rank = detect_process().rank
        return self._rank


def _names(sums: Mapping[int, Mapping[str, int]], names: Sequence[str] | None) -> list[str]:
    """Return the names to report: those that were asked for, or those of the lowest rank and what the others have besides."""
    if names is not None:
        return list(dict.fromkeys(names))
    return list(dict.fromkeys(name for rank in sorted(sums) for name in sums[rank]))


def _check_normalizer(normalizer: float) -> None:
    if not isinstance(normalizer, int | float) or not 0 < normalizer < float("inf"):
        raise ConfigError(f"normalizer must be a number above 0, not {normalizer!r}")


def _print(text: str) -> None:
    """Print at once, as NeMo's timers do; a library writes to the standard output only where that is what it was asked for."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
