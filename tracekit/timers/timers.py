"""Timers: the named timers of a process, with Megatron's reports of all ranks and the statistics of each."""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_choice, check_profiler, check_seconds
from tracekit.clock import SYSTEM_CLOCK
from tracekit.distributed import detect_process
from tracekit.errors import ConfigError, TimerError
from tracekit.recording.lifecycle import marker as module_marker
from tracekit.statistics import DurationStatistics
from tracekit.timers.device import DEVICE_MODES, tensor
from tracekit.timers.ranks import MAX_NAMED, RankReports, process_group
from tracekit.timers.table import TITLES, TimerTable, names_of, sums_text, used_sums
from tracekit.timers.timer import MAX_LOG_LEVEL, OffTimer, Timer
from tracekit.wording import rank_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.clock import Clock
    from tracekit.recording.profiler import Profiler
    from tracekit.timers.table import Sums
    from tracekit.timers.timer import TimerBase

    Names = Sequence[str] | None

logger = logging.getLogger("tracekit")

_SECOND_NS: Final = 1e9
# Numbers of the `Timers` of one name, or made in one place
_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class Timers:
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

    Each call also appears in the trace of the active profiler, as slices of category "timer". It also works without
    a profiler, and without torch. Any thread may use timers; reports belong to one.

    **Levels.** A timer is on if its level is not above ``log_level``: 0 is for the iteration, 1 for what runs once in each, 2
    (the default of a timer) for what runs often in each. One that is off costs a dictionary lookup, and is logged once.

    **Ranks.** Every rank has to call `log`, `write`, `get_all_timers_string` and `gather`, with or without the same timers:
    those of one name belong together. They pass values through the store of torch.distributed. Only the rank that
    reports waits for the others, ``timeout`` seconds at most; ranks that are missing are named. `tracekit.timers.read_timers`
    makes the same table from the traces of all ranks, without any of that. The ranks know each other's `Timers` by the file and
    line where they are made, those of one line by their order there; where that differs, give them the same ``name``.

    **Reports.** No report takes from another: ``write`` and then ``log`` show the same, although both reset. `Timer.reset`
    makes all of them begin anew. Methods of timers, and ``writer`` keys, are in seconds; text says its unit.

    **Copies.** A copy, a deep one too (of a configuration that holds them), is the same object. Pickled for another process, it
    has the same arguments and no timers yet, and uses the profiler that is active there.

    Args:
        log_level: Which timers are on.
        log_option: Content of `log`: "max" (the slowest rank), "minmax", or "all" (every rank).
        device: The time that timers measure, unless ``timers(name, device=...)`` sets it: "host" is the time that the Python
            code takes, which for work on a GPU is often only its launch; "synchronize" waits for the device at both ends, as
            Megatron does; "events" takes the device's own time by CUDA events, and waits for nothing; each call takes
            the training thread up to 40 us, 23 of them in CUDA. None is "host", with a hint in the log when CUDA is in use.
        profiler: Profiler that records them; None is the active one.
        timeout: Limit of the wait of a report for the other ranks, seconds.
        name: Name that the ranks match them by; None is the place where they are made.
        output: Called by `log` with its text, for example ``logger.info``; None prints it.
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
        check_choice("Timers: log_option", log_option, tuple(TITLES))
        if name is not None and not (isinstance(name, str) and name):
            raise ConfigError(f"Timers: name must be text that is not empty, not {name!r}")
        if isinstance(log_level, bool) or not isinstance(log_level, int):
            raise ConfigError(f"Timers: log_level must be a whole number (0, 1 or 2), not {log_level!r}")
        if device is not None:
            check_choice("Timers: device", device, DEVICE_MODES)
        again = partial(type(self), log_level, log_option, device=device, timeout=timeout, name=name, output=output)
        self._again = again if clock is SYSTEM_CLOCK else partial(again, clock=clock)  # each process has its own
        self._log_level = log_level
        self._log_option = log_option
        self._device = device
        self._timeout_s = float(timeout)
        self._output = output or partial(print, flush=True)  # as NeMo's timers do
        self._clock = clock
        if profiler is not None:
            check_profiler("Timers: profiler", profiler)
        self._make_marker = module_marker if profiler is None else profiler.marker
        known_by = name or _place_of_construction(self)
        self._ranks = RankReports(
            f"{known_by}#{next(_numbers[known_by])}", log_level, self._timeout_s, self._make_marker
        )
        self._rank: int | None = None  # without a process group
        self._timers: dict[str, Timer] = {}
        self._off: dict[tuple[str, int | None], OffTimer] = {}  # by name, and by the level that was given

    def __copy__(self) -> Timers:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Timers:
        return self  # times taken by the copy are in the same reports

    def __reduce__(self) -> tuple[Callable[[], Timers], tuple[()]]:
        return self._again, ()

    # ---- timers -----------------------------------------------------------------------------------------------------

    def __call__(
        self, name: str, log_level: int | None = None, barrier: bool = False, *, device: str | None = None
    ) -> TimerBase:
        """Return the timer of a name, making it at the first call.

        Args:
            name: The timer's name, and that of its slices.
            log_level: Its level, 2 if None; from then on only this one may be given.
            barrier: For ``with timers(name, barrier=True):``, all ranks meet at its beginning and at its end.
            device: The time it measures, if it is made by this call: "host", "synchronize" or "events".

        Raises:
            ConfigError: The level is above 2, or not the one that the timer was made with.
        """
        timer = self._timers.get(name)
        if timer is None:
            found = self._off.get((name, log_level)) or self._make(name, log_level, device)
            return found.with_barrier() if barrier else found
        if log_level is not None and log_level != timer.log_level:
            raise ConfigError(
                f"timer {name!r} was made with log_level {timer.log_level}, and is now asked for with {log_level}; leave it "
                "out, or give the same"
            )
        return timer.with_barrier() if barrier else timer

    @property
    def names(self) -> list[str]:
        """The names of the timers that are on, in the order of their creation."""
        return list(self._timers)

    def _make(self, name: str, asked_level: int | None, device: str | None) -> Timer | OffTimer:
        log_level = MAX_LOG_LEVEL if asked_level is None else asked_level
        if not isinstance(name, str):
            raise ConfigError(f"the name of a timer must be text, not {name!r}")
        if isinstance(log_level, bool) or not isinstance(log_level, int) or log_level > MAX_LOG_LEVEL:
            raise ConfigError(
                f"timer {name!r}: log_level must be a whole number up to {MAX_LOG_LEVEL}, not {log_level!r}"
            )
        if log_level <= self._log_level:
            timer = Timer(
                name,
                log_level,
                device=device or self._device,
                make_marker=self._make_marker,
                clock=self._clock.monotonic_ns,
                barrier=self._ranks.barrier,
                warn=self._ranks.warn,
            )
            return self._timers.setdefault(name, timer)  # atomic: two concurrent callers get the same timer
        which = f"its level is {log_level}" + (", the one of a timer without any" if asked_level is None else "")
        reason = (
            f"timer {name!r} is off and measures nothing: {which}, and Timers has log_level {self._log_level}. Give Timers a "
            f"log_level of {log_level}, or the timer one up to {self._log_level}"
        )
        if not any(name == known for known, _ in list(self._off)):
            # The default level surprises people (Megatron-LM#871); a level that they gave does not.
            logger.log(logging.WARNING if asked_level is None else logging.INFO, "tracekit: timers: %s", reason)
        return self._off.setdefault((name, asked_level), OffTimer(name, reason, self._ranks.announce))

    def _wanted(self, names: Names) -> dict[str, Timer]:
        """Return the timers of names that have one; None is all."""
        if names is not None and (isinstance(names, str) or not isinstance(names, Collection)):
            example = names if isinstance(names, str) else "forward"
            raise ConfigError(f"the names of timers are a list, such as [{example!r}], not {names!r}")
        return {name: self._timers[name] for name in (self.names if names is None else names) if name in self._timers}

    # ---- Megatron's reports: one sum for each timer and rank ----------------------------------------------------------

    def log(
        self,
        names: Names = None,
        rank: int | None = None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Print the report of all ranks on one of them; every rank has to call this.

        Args:
            names: Timers to report; None is all.
            rank: Rank that prints; None is the last.
            normalizer: Divisor, such as the number of iterations; the text gives it with its unit.
            reset: Start the next report of this method from here.
            barrier: Wait for all ranks first.

        Raises:
            ConfigError: The normalizer is not above 0.
        """
        reads = self._is_own("log", self._ranks.place[1] - 1 if rank is None else rank)
        sums = self._sums("log", names, reset, barrier, normalizer, reads=reads)
        if (text := sums_text(sums, names, self._log_option, float(normalizer))) is not None:
            self._output(text)

    def get_all_timers_string(
        self, names: Names = None, normalizer: float = 1.0, reset: bool = True, barrier: bool = False
    ) -> str | None:
        """Return the report of all ranks as text, on every rank; None where there is nothing to report; see `log`."""
        return self._text(self._log_option, names, reset, barrier, normalizer)

    def write(
        self,
        names: Names,
        writer: Any,
        iteration: int | None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Write the slowest rank's seconds of each timer, as ``<name>-time``; every rank has to call this.

        The writer is TensorBoard's ``SummaryWriter``, or ``wandb`` or a run of it; None on the ranks that do not write. Two
        writers get the same values if they are given the same iteration, the training step. Without one (None) the writer
        counts, and the reports are matched by their order. The other arguments are those of `log`.

        Raises:
            ConfigError: The normalizer is not above 0.
            TimerError: The writer or the iteration is of another type.
        """
        if writer is not None and not hasattr(writer, "add_scalar") and not hasattr(writer, "log"):
            raise TimerError(f"Timers.write takes a SummaryWriter of TensorBoard or a run of wandb, not {writer!r}")
        self._write("write", names, writer, iteration, normalizer, reset, barrier)

    def write_to_wandb(
        self,
        names: Names,
        writer: Any,
        iteration: int | None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Do as `write`, for Weights & Biases; `write` still shows the same values."""
        if writer is not None and not hasattr(writer, "log"):
            raise TimerError(f"Timers.write_to_wandb takes wandb or a run of it, not {writer!r}")
        self._write("wandb", names, writer, iteration, normalizer, reset, barrier)

    def get_global_min_max_time(
        self, names: Names = None, reset: bool = True, barrier: bool = False, normalizer: float = 1.0
    ) -> dict[str, tuple[float, float]]:
        """Return the seconds of the fastest and of the slowest rank by name, on every rank; every rank has to call this.

        The arguments are those of `log`. Timers that nobody has used are left out.
        """
        used = used_sums(self._sums("extremes", names, reset, barrier, normalizer), names)
        scale = _SECOND_NS * float(normalizer)
        return {name: (min(ns.values()) / scale, max(ns.values()) / scale) for name, ns in used.items()}

    # NeMo's own benchmark and Megatron-Bridge call it by this name.
    _get_global_min_max_time = get_global_min_max_time

    # Forks of Megatron and tools for it call the next three: the names, the order of the arguments and the results are
    # Megatron's. Its normalizer is in seconds: 0.001 prints milliseconds, N / 1000 milliseconds per N.

    def _get_elapsed_time_all_ranks(self, names: Names, reset: bool, barrier: bool) -> Any:
        """Return the seconds of each rank and timer as a tensor of shape (ranks, names); every rank must call this.

        The tensor, of 64-bit floats, is on the current CUDA device if CUDA is in use, as in Megatron. Timers that a rank has
        not used, and ranks that did not report, are 0. None for an empty list of names.
        """
        sums = self._sums("matrix", names, reset, barrier)
        columns = names_of(sums) if names is None else list(names)
        ranks = (sums.get(rank, {}) for rank in range(self._ranks.place[1]))
        return tensor([[timers.get(name, 0) / _SECOND_NS for name in columns] for timers in ranks]) if columns else None

    def _get_global_min_max_time_string(
        self, names: Names, reset: bool, barrier: bool, normalizer: float, max_only: bool
    ) -> str | None:
        """Return the report of the slowest rank, or of the fastest and the slowest, for any log option."""
        return self._text("max" if max_only else "minmax", names, reset, barrier, normalizer, unit=1000)

    def _get_all_ranks_time_string(self, names: Names, reset: bool, barrier: bool, normalizer: float) -> str | None:
        """Return the report of every rank, for any log option."""
        return self._text("all", names, reset, barrier, normalizer, unit=1000)

    def _text(
        self, option: str, names: Names, reset: bool, barrier: bool, normalizer: float, *, unit: float = 1
    ) -> str | None:
        sums = self._sums("string", names, reset, barrier, normalizer)
        return sums_text(sums, names, option, float(normalizer) * unit)

    def _write(
        self, report: str, names: Names, writer: Any, iteration: Any, normalizer: float, reset: bool, barrier: bool
    ) -> None:
        try:
            step = None if iteration is None else int(iteration)  # also tensors and NumPy's numbers
        except (TypeError, ValueError, OverflowError) as error:
            raise TimerError(f"iteration must be a whole number or None, not {iteration!r}") from error
        sums = self._sums(report, names, reset, barrier, normalizer, reads=writer is not None, step=step)
        for name, sums_ns in used_sums(sums, names).items():
            seconds = max(sums_ns.values()) / (_SECOND_NS * float(normalizer))
            if report == "write" and hasattr(writer, "add_scalar"):
                writer.add_scalar(f"{name}-time", seconds, step)
            else:
                writer.log({f"{name}-time": seconds}, step)

    def _sums(
        self,
        report: str,
        names: Names,
        reset: bool,
        barrier: bool,
        normalizer: float = 1.0,
        *,
        reads: bool | None = None,
        step: object = None,
    ) -> Sums:
        """Return the sums of a report in ns by rank and name; nothing where this rank does not read them."""
        if not isinstance(normalizer, Real) or not 0 < normalizer < math.inf:  # also NumPy's numbers
            raise ConfigError(f"normalizer must be a number above 0, not {normalizer!r}")
        if barrier and (distributed := process_group()) is not None:
            distributed.barrier()
        own = {name: timer.report_ns(report, reset=reset, step=step) for name, timer in self._wanted(names).items()}
        return self._ranks.sums(report, own, reads=reads, step=step)

    # ---- statistics -------------------------------------------------------------------------------------------------

    def snapshot(self, names: Names = None, *, reset: bool = False, lifetime: bool = False) -> TimerTable:
        """Return the statistics of this rank's timers: a value that any number of sinks may be given.

        Args:
            names: Timers to read; None is all.
            reset: Start the next snapshot from here. This does not reset Megatron's reports.
            lifetime: Everything since the timers were made, not only since the last reset.
        """
        return TimerTable({self._own_rank(): self._statistics(names, reset=reset, lifetime=lifetime)})

    def gather(
        self,
        names: Names = None,
        *,
        rank: int | None = 0,
        reset: bool = False,
        lifetime: bool = False,
        timeout: float | None = None,
        allow_missing: bool = False,
    ) -> TimerTable | None:
        """Return the statistics of all ranks' timers, on one of them; every rank has to call this.

        Args:
            names: Timers to read; None is all.
            rank: Rank that gets the table, the others get None; None is every rank.
            reset: As for `snapshot`. This rank's timers are not reset if this raises.
            lifetime: As for `snapshot`.
            timeout: Limit of the wait for the others, seconds; None is that of `Timers`.
            allow_missing: Return the table also where ranks are missing; its ``missing`` names them.

        Raises:
            TimerError: A rank did not report in time, and ``allow_missing`` is not given; or the store cannot be reached.
        """
        if timeout is not None:
            check_seconds("gather: timeout", timeout)
        statistics = self._statistics(names, reset=reset, lifetime=lifetime)
        own = {name: found.to_dict() for name, found in statistics.items()}
        reads = None if rank is None else self._is_own("gather", rank)
        try:
            found, missing = self._ranks.collect("table", own, reads=reads, timeout_s=timeout)
            if missing and not allow_missing:
                raise TimerError(
                    f"gather: {rank_spans(missing, most=MAX_NAMED)} did not report within "
                    f"{self._timeout_s if timeout is None else timeout:g} s; every rank has to call gather() "
                    "(allow_missing=True returns what there is)"
                )
        except BaseException:  # also an interrupt: keep statistics that nobody has seen
            if reset:
                for timer in self._wanted(names).values():
                    timer.take_back_reset()
            raise
        if reads is False:
            return None
        if self._ranks.place[1] == 1:
            return TimerTable({self._own_rank(): statistics})
        tables = {
            number: {name: DurationStatistics.from_dict(stored) for name, stored in timers.items()}
            for number, timers in found.items()
        }
        return TimerTable(tables, tuple(missing))

    def _statistics(self, names: Names, *, reset: bool, lifetime: bool) -> dict[str, DurationStatistics]:
        return {name: timer.statistics(reset=reset, lifetime=lifetime) for name, timer in self._wanted(names).items()}

    def _is_own(self, method: str, rank: int) -> bool:
        """Return True if a report is for this rank; warn if it is for none."""
        own_rank, world_size = self._ranks.place
        if not 0 <= rank < world_size:
            there = f"there {'is' if world_size == 1 else 'are'} only {rank_spans(range(world_size))}"
            self._ranks.warn((method, rank), f"{method}(rank={rank!r}) reports nothing: {there}")
        return own_rank == rank

    def _own_rank(self) -> int:
        if self._rank is None or self._ranks.place[1] > 1:
            self._rank = detect_process().rank
        return self._rank


def _place_of_construction(made: object) -> str:
    """Return the file and line where an object is made: the same on all ranks, even if one of them has made others before."""
    frame: Any = sys._getframe(1)  # noqa: SLF001 - inspect has only calls that also read the source files
    while frame.f_back is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made:
        frame = frame.f_back  # also of a subclass
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
