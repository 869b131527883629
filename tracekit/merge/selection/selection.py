"""Selection: which part of a run a merge takes, as values and as the text of the command line's options."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from tracekit.arguments import check_names, check_whole, parse_ranks, parse_steps
from tracekit.errors import ConfigError
from tracekit.structs import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Moment = int | float | Decimal
"""Seconds from the start of the merge; from `_EPOCH_NS` on, ns since the epoch."""

_EPOCH_NS: Final = 10**18
_SECONDS: Final = re.compile(r"\d{1,19}(?:\.\d{1,9})?")
_DURATION: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(ns|us|µs|ms|s)")
_UNIT_NS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class Selection(Struct, frozen=True):
    """The part of a run to take: the events that meet all given criteria.

    Metadata (names, identities, training times) is always taken, so that a selection can be merged and selected from again.
    A slice counts from its start to its end and is taken whole: it belongs to each span of time that it touches. Both
    halves of a slice that is written as two events (``B``/``E``, ``b``/``e``) share its fate. An arrow is taken when
    the slices at its ends are.

    Attributes:
        ranks: The ranks. Inputs of other ranks are read only until their rank is known.
        steps: The first training step, and the first one after the last; None for an open end. Steps are the
            batches of tracekit's training time, and for a rank without a rank trace ``ProfilerStep#N`` of torch.profiler.
        time_window: From when on and up to when, that moment not included; None for an open end. See `Moment`. The
            merge starts with the first merged event.
        categories: Only events of one of these categories. Counters that name no category are taken all the same.
        exclude_categories: No events of any of these.
        min_duration_ns: Only slices that take at least this long. Other events are not slices.
        names: Only events with a name that fits one of these patterns (``*`` for anything), and the slices that hold
            one that does.

    Raises:
        ConfigError: A value can select nothing.
    """

    ranks: Collection[int] | None = None
    steps: tuple[int | None, int | None] | None = None
    time_window: tuple[Moment | None, Moment | None] | None = None
    categories: Collection[str] | None = None
    exclude_categories: Collection[str] = ()
    min_duration_ns: int = 0
    names: Collection[str] | None = None

    def __post_init__(self) -> None:
        for what, wanted in (
            ("names no rank", self.ranks),
            ("names no category", self.categories),
            ("has no name in it", self.names),
        ):
            if wanted is not None and not wanted:
                raise ConfigError(f"the selection {what}; leave it out to take all")
        for name in ("categories", "exclude_categories", "names"):
            check_names(name, getattr(self, name))
        _check_span("steps", self.steps)
        _check_span("time_window", self.time_window)
        check_whole("min_duration_ns", self.min_duration_ns, 0)

    @classmethod
    def parse(
        cls,
        *,
        ranks: str | None = None,
        steps: str | None = None,
        time_window: str | None = None,
        categories: str | None = None,
        exclude_categories: str | None = None,
        min_duration: str | None = None,
        names: Sequence[str] | None = None,
    ) -> Selection:
        """Read a selection as the command line takes it.

        Args:
            ranks: "0,8-15".
            steps: "10:20" (10 up to 19), "10:", ":20", or "10" for one step.
            time_window: "1.5:2" in seconds from the start of the merge, or in ns since the epoch; either end may be left out.
            categories: "kernel,gpu_memcpy".
            exclude_categories: The same.
            min_duration: "5us", "1.5ms"; the units are ns, us, ms and s.
            names: Patterns such as "gloo:*", each a separate text, since names may hold commas.

        Raises:
            ConfigError: A text is none of these. The message begins with the option's name.
        """
        return cls(
            ranks=None if ranks is None else frozenset(parse_ranks("--ranks", ranks)),
            steps=None if steps is None else parse_steps("--steps", steps),
            time_window=None if time_window is None else _parse_window(time_window),
            categories=None if categories is None else _parse_names("--categories", categories),
            exclude_categories=()
            if exclude_categories is None
            else _parse_names("--exclude-categories", exclude_categories),
            min_duration_ns=0 if min_duration is None else _parse_duration(min_duration),
            names=frozenset(names) if names else None,
        )

    @property
    def of_events(self) -> bool:
        """True if single events are chosen, beyond whole ranks."""
        return replace(self, ranks=None, exclude_categories=tuple(self.exclude_categories)) != Selection()

    def wants_rank(self, rank: int) -> bool:
        """Return True if a rank is taken."""
        return self.ranks is None or rank in self.ranks

    def window_ns(self, base_ns: int, start_ns: int) -> tuple[int | None, int | None]:
        """Return the time window in ns of the merged trace.

        Args:
            base_ns: The zero of its times, ns since the epoch; 0 if unknown.
            start_ns: When its first event happens, relative to that.

        Raises:
            ConfigError: The window is given in ns since the epoch, and the inputs do not have their clock.
        """
        low, high = self.time_window or (None, None)
        return _moment_ns(low, base_ns, start_ns), _moment_ns(high, base_ns, start_ns)


def _moment_ns(moment: Moment | None, base_ns: int, start_ns: int) -> int | None:
    if moment is None:
        return None
    if moment < _EPOCH_NS:
        return start_ns + round(Decimal(moment) * 10**9)
    if not base_ns:
        raise ConfigError(
            "--time-window: the inputs do not state their clock, so give the window in seconds from their start"
        )
    return int(moment) - base_ns


def _check_span(name: str, span: tuple[Moment | None, Moment | None] | None) -> None:
    if span is None:
        return
    kinds = (int,) if name == "steps" else (int, float, Decimal)
    if len(span) != 2 or not all(end is None or isinstance(end, kinds) for end in span):
        raise ConfigError(f"{name} must be a pair of {'whole ' * (name == 'steps')}numbers or None, not {span!r}")
    low, high = span
    if any(end is not None and not 0 <= end < 2**63 for end in span):
        raise ConfigError(f"{name} must not be negative, but is {low}:{high}")
    if low is not None and high is not None and (low < _EPOCH_NS) == (high < _EPOCH_NS) and low >= high:
        raise ConfigError(f"{name} {low}:{high} is empty: its end is not included and must lie behind its start")


def _parse_window(text: str) -> tuple[Moment | None, Moment | None]:
    ends = text.split(":")
    if len(ends) != 2 or any(end and not _SECONDS.fullmatch(end) for end in ends):
        raise ConfigError(
            f"--time-window {text}: give it as FROM:TO in seconds from the start of the merge (--time-window 1.5:2), "
            "or in ns since the epoch"
        )
    low, high = (Decimal(end) if end else None for end in ends)
    return low, high


def _parse_names(option: str, text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",")) - {""}
    if not names:
        raise ConfigError(f"{option} {text!r}: give the names of categories, separated by commas")
    return names


def _parse_duration(text: str) -> int:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--min-duration {text}: give a number with its unit (ns, us, ms, s), for example --min-duration 5us"
        )
    return round(Decimal(match[1]) * _UNIT_NS[match[2]])
