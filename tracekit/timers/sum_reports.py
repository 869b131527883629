"""SumReports: what Megatron's timers report, which is one sum for each timer and rank; the text, and the writers."""

from __future__ import annotations

import math
import sys
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, TimerError
from tracekit.timers.device import tensor
from tracekit.timers.registry import TimerRegistry
from tracekit.timers.text import LOG_OPTIONS, min_max, sums_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.clock import Clock
    from tracekit.recording.profiler import Profiler

__all__ = ["SumReports"]

_SECOND_NS: Final = 1e9


class SumReports(TimerRegistry):
    """The timers of `TimerRegistry` with Megatron's reports. What a report has not shown yet, no other takes from it.

    Args:
        log_level: Which timers are on.
        log_option: What `log` prints.
        device: What the timers measure, unless they are told otherwise.
        profiler: Whose trace they appear in; None is the one that is active.
        timeout_s: How long a report waits for the other ranks at most.
        name: What ranks know them by; None is the place where they are made.
        output: What `log` calls with its text; None prints it.
        clock: The clock that they read.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        log_level: int,
        log_option: str,
        device: str | None,
        profiler: Profiler | None,
        timeout_s: float,
        name: str | None,
        output: Callable[[str], object] | None,
        clock: Clock,
    ) -> None:
        if log_option not in LOG_OPTIONS:
            raise ConfigError(
                f"Timers: log_option must be one of {', '.join(map(repr, LOG_OPTIONS))}, not {log_option!r}"
            )
        super().__init__(log_level, device, profiler, timeout_s, name, clock)
        self._log_option = log_option
        self._output = _print if output is None else output

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
        return self._text("string", names, normalizer, reset=reset, barrier=barrier, reads=None)

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
        iteration: int | None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Write the slowest rank's seconds of each timer, as ``<name>-time``; every rank has to call this.

        Two writers get the same values if they are given the same iteration.

        Args:
            names: Which timers; None is all.
            writer: TensorBoard's ``SummaryWriter``, or ``wandb`` or a run of it; None on the ranks that do not write.
            iteration: The training step; None is the writer's own, and then the reports are matched by their order.
            normalizer: What to divide by.
            reset: Whether the next such report begins from here.
            barrier: Wait for all ranks first.

        Raises:
            ConfigError: The normalizer is not above 0.
            TimerError: The writer is none, or the iteration is no whole number.
        """
        if writer is not None and not hasattr(writer, "add_scalar") and not hasattr(writer, "log"):
            raise TimerError(f"Timers.write takes a SummaryWriter of TensorBoard or a run of wandb, not {writer!r}")
        found = self._to_write("write", names, writer, iteration, normalizer, reset=reset, barrier=barrier)
        for key, seconds in found.items():
            if hasattr(writer, "add_scalar"):
                writer.add_scalar(key, seconds, iteration)
            else:
                writer.log({key: seconds}, iteration)

    def write_to_wandb(
        self,
        names: Sequence[str] | None,
        writer: Any,
        iteration: int | None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        """Do as `write`, for Weights & Biases; what this shows, `write` shows as well.

        Raises:
            ConfigError: The normalizer is not above 0.
            TimerError: The writer has no ``log``, or the iteration is no whole number.
        """
        if writer is not None and not hasattr(writer, "log"):
            raise TimerError(f"Timers.write_to_wandb takes wandb or a run of it, not {writer!r}")
        found = self._to_write("wandb", names, writer, iteration, normalizer, reset=reset, barrier=barrier)
        for key, seconds in found.items():
            writer.log({key: seconds}, iteration)

    def get_global_min_max_time(
        self, names: Sequence[str] | None = None, reset: bool = True, barrier: bool = False, normalizer: float = 1.0
    ) -> dict[str, tuple[float, float]]:
        """Return the seconds of the fastest and of the slowest rank by name, on every rank; every rank has to call this.

        Args:
            names: Which timers; None is all. Those that nobody has used are left out.
            reset: Whether the next such report begins from here.
            barrier: Wait for all ranks first.
            normalizer: What to divide by.

        Raises:
            ConfigError: The normalizer is not above 0.
        """
        return self._extremes("extremes", names, normalizer, reset=reset, barrier=barrier, reads=None)

    # NeMo's own benchmark and Megatron-Bridge call it by this name.
    _get_global_min_max_time = get_global_min_max_time

    # Forks of Megatron and tools for it call the next three: the names, the order of the arguments and the results are
    # Megatron's.

    def _get_elapsed_time_all_ranks(self, names: Sequence[str] | None, reset: bool, barrier: bool) -> Any:
        """Return the seconds of each rank and timer as a tensor of shape (ranks, names); every rank must call this.

        The tensor is on the current CUDA device if CUDA is in use, as in Megatron. Timers that a rank has not used, and
        ranks that did not report, are 0.

        Args:
            names: Timers to report, one column each; None is all.
            reset: Start the next such report from here.
            barrier: Wait for all ranks first.

        Returns:
            The tensor, of 64-bit floats; None for an empty list of names.
        """
        sums = self._sums("matrix", names, reset=reset, barrier=barrier, reads=None) or {}
        columns = _names(sums, None) if names is None else list(names)
        if not columns:
            return None
        ranks = (sums.get(rank, {}) for rank in range(self._ranks.place[1]))
        return tensor([[timers.get(name, 0) / _SECOND_NS for name in columns] for timers in ranks])

    def _get_global_min_max_time_string(
        self, names: Sequence[str] | None, reset: bool, barrier: bool, normalizer: float, max_only: bool
    ) -> str | None:
        """Return the report of the slowest rank, or of the fastest and the slowest, for any log option.

        Args:
            names: Timers to report; None is all.
            reset: Start the next text from here.
            barrier: Wait for all ranks first.
            normalizer: Seconds to divide by: 0.001 prints milliseconds, N / 1000 milliseconds per N.
            max_only: Report the slowest rank only.

        Raises:
            ConfigError: The normalizer is not above 0.
        """
        option = "max" if max_only else "minmax"
        return self._text(
            "string", names, normalizer, reset=reset, barrier=barrier, reads=None, option=option, in_seconds=True
        )

    def _get_all_ranks_time_string(
        self, names: Sequence[str] | None, reset: bool, barrier: bool, normalizer: float
    ) -> str | None:
        """Return the report of every rank, for any log option; see `_get_global_min_max_time_string`.

        Raises:
            ConfigError: The normalizer is not above 0.
        """
        return self._text(
            "string", names, normalizer, reset=reset, barrier=barrier, reads=None, option="all", in_seconds=True
        )

    def _to_write(
        self,
        report: str,
        names: Sequence[str] | None,
        writer: Any,
        iteration: int | None,
        normalizer: float,
        *,
        reset: bool,
        barrier: bool,
    ) -> dict[str, float]:
        """Return what a writer is given: the slowest rank's seconds, by Megatron's keys."""
        found = self._extremes(
            report,
            names,
            normalizer,
            reset=reset,
            barrier=barrier,
            reads=lambda *_: writer is not None,
            step=_step(iteration),
        )
        return {f"{name}-time": seconds for name, (_, seconds) in found.items()}

    def _extremes(
        self,
        report: str,
        names: Sequence[str] | None,
        normalizer: float,
        *,
        reset: bool,
        barrier: bool,
        reads: Callable[[int, int], bool] | None,
        step: object = None,
    ) -> dict[str, tuple[float, float]]:
        normalizer = _check_normalizer(normalizer)
        sums = self._sums(report, names, reset=reset, barrier=barrier, reads=reads, step=step) or {}
        found = ((name, min_max(sums, name)) for name in _names(sums, names))
        scale = _SECOND_NS * normalizer
        return {name: (both[0] / scale, both[1] / scale) for name, both in found if both is not None}

    def _text(
        self,
        report: str,
        names: Sequence[str] | None,
        normalizer: float,
        *,
        reset: bool,
        barrier: bool,
        reads: Callable[[int, int], bool] | None,
        option: str | None = None,
        in_seconds: bool = False,
    ) -> str | None:
        normalizer = _check_normalizer(normalizer) * (1000 if in_seconds else 1)
        sums = self._sums(report, names, reset=reset, barrier=barrier, reads=reads)
        return None if sums is None else sums_text(sums, _names(sums, names), option or self._log_option, normalizer)

    def _sums(
        self,
        report: str,
        names: Sequence[str] | None,
        *,
        reset: bool,
        barrier: bool,
        reads: Callable[[int, int], bool] | None,
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
        if isinstance(names, str):
            raise ConfigError(f"the names of timers are a list, such as [{names!r}], not {names!r}")
        return list(self._timers) if names is None else list(dict.fromkeys(names))


def _names(sums: Mapping[int, Mapping[str, int]], names: Sequence[str] | None) -> list[str]:
    """Return the names to report: those that were asked for, or those of the lowest rank and what the others have besides."""
    if names is not None:
        return list(dict.fromkeys(names))
    return list(dict.fromkeys(name for rank in sorted(sums) for name in sums[rank]))


def _step(iteration: Any) -> int | None:
    try:
        return None if iteration is None else int(iteration)  # tensors and NumPy's numbers are some, too
    except (TypeError, ValueError, OverflowError) as error:
        raise TimerError(f"iteration must be a whole number or None, not {iteration!r}") from error


def _check_normalizer(normalizer: float) -> float:
    if not isinstance(normalizer, Real) or not 0 < normalizer < math.inf:  # NumPy's numbers are some, too
        raise ConfigError(f"normalizer must be a number above 0, not {normalizer!r}")
    return float(normalizer)


def _print(text: str) -> None:
    """Print at once, as NeMo's timers do; a library writes to the standard output only where that is what it was asked for."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
