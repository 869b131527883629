"""Training time: the progress of a run in iterations, epochs, batches, samples, tokens and seconds.

`TimeUnit` names a unit, `Time` is a number of one unit, and `Timestamp` holds all counters of a run at one moment.
All three are values: immutable, hashable, picklable, and safe to use from any number of threads.

The names, the fields and their order are those of Composer's time module, so that code for it reads the same here. Each class
lists its differences under "Differences"; they avoid known surprises of that module.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, final

from tracekit.errors import TimeError
from tracekit.timestring import LARGEST_COUNT, TimeUnit, shown
from tracekit.training_time import Time, checked, ensure_time, plain_number

if TYPE_CHECKING:
    from typing import TypeAlias

    Count: TypeAlias = int | Time | str
    _Values: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]

__all__ = ["Time", "TimeUnit", "Timestamp", "ensure_time"]

_ZERO = timedelta(0)

_TOTALS = (TimeUnit.ITERATION, TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN)
# The fields in their order; None is a wall-clock time.
_FIELDS: dict[str, TimeUnit | None] = {
    **dict(zip(("iteration", "epoch", "batch", "sample", "token"), _TOTALS, strict=True)),
    "epoch_in_iteration": TimeUnit.EPOCH,
    "token_in_iteration": TimeUnit.TOKEN,
    "batch_in_epoch": TimeUnit.BATCH,
    "sample_in_epoch": TimeUnit.SAMPLE,
    "token_in_epoch": TimeUnit.TOKEN,
    **dict.fromkeys(("total_wct", "iteration_wct", "epoch_wct", "batch_wct")),
}
_STATE_KEYS = tuple(f"{name}_us" if unit is None else name for name, unit in _FIELDS.items())
_REQUIRED = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")


@final
class Timestamp:
    """The progress of training at one moment: 10 counters and 4 wall-clock times. Immutable; 14 fields.

    Comparison: ``==`` with a `Timestamp` compares all fields. ``==`` and the orderings with a `Time` or a time string compare
    the total counter of that unit: ``timestamp >= "10ep"``. Two timestamps have no order, since their counters need not
    agree: ``<`` between them raises a ``TypeError`` that suggests to compare a counter. An equal `Time` hashes differently, so
    look up a timestamp in sets and dicts only by a timestamp.

    The ``to_next_...`` methods return the following timestamp. Time never goes backwards, so their arguments must not be
    negative. At the end of a batch, the profiler has moved on: the timestamp names the next batch.

    Differences to Composer: hashable; nothing changes in place (no setter, and `from_state_dict` instead of
    ``load_state_dict``); negative counts are refused, and wall-clock times must be a ``timedelta``; `to_next_epoch`
    takes the ``tokens`` that Composer documents; `state_dict` only holds integers; ``==`` never raises; every error
    about a value is a `TimeError`.

    Args:
        iteration: Iterations completed. This and the nine counters below take a whole number, 0 or more, or a `Time`
            or time string of the field's unit.
        epoch: Epochs completed.
        batch: Batches completed.
        sample: Samples seen.
        token: Tokens seen.
        epoch_in_iteration: Epochs completed in this iteration.
        token_in_iteration: Tokens seen in this iteration.
        batch_in_epoch: Batches completed in this epoch.
        sample_in_epoch: Samples seen in this epoch.
        token_in_epoch: Tokens seen in this epoch.
        total_wct: Wall-clock time of training so far, a ``timedelta``; None is zero, as for the three below.
        iteration_wct: Wall-clock time of this iteration so far.
        epoch_wct: Wall-clock time of this epoch so far.
        batch_wct: Wall-clock time of the last batch.

    Raises:
        TimeError: A wrong value; the message names the argument.
    """

    __slots__ = ("_values",)
    # Plain numbers in one tuple, wall-clock times in us: a timestamp is made once a batch, and most fields are never read.
    _values: _Values

    def __init__(
        self,
        iteration: Count = 0,
        epoch: Count = 0,
        batch: Count = 0,
        sample: Count = 0,
        token: Count = 0,
        epoch_in_iteration: Count = 0,
        token_in_iteration: Count = 0,
        batch_in_epoch: Count = 0,
        sample_in_epoch: Count = 0,
        token_in_epoch: Count = 0,
        total_wct: timedelta | None = None,
        iteration_wct: timedelta | None = None,
        epoch_wct: timedelta | None = None,
        batch_wct: timedelta | None = None,
    ) -> None:
        values: _Values = (
            _count("iteration", iteration, TimeUnit.ITERATION),
            _count("epoch", epoch, TimeUnit.EPOCH),
            _count("batch", batch, TimeUnit.BATCH),
            _count("sample", sample, TimeUnit.SAMPLE),
            _count("token", token, TimeUnit.TOKEN),
            _count("epoch_in_iteration", epoch_in_iteration, TimeUnit.EPOCH),
            _count("token_in_iteration", token_in_iteration, TimeUnit.TOKEN),
            _count("batch_in_epoch", batch_in_epoch, TimeUnit.BATCH),
            _count("sample_in_epoch", sample_in_epoch, TimeUnit.SAMPLE),
            _count("token_in_epoch", token_in_epoch, TimeUnit.TOKEN),
            _wall_clock("total_wct", total_wct),
            _wall_clock("iteration_wct", iteration_wct),
            _wall_clock("epoch_wct", epoch_wct),
            _wall_clock("batch_wct", batch_wct),
        )
        object.__setattr__(self, "_values", values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Timestamp is immutable: use copy({name}=...) to make another")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Timestamp is immutable: {name} cannot be deleted")

    def __reduce__(self) -> tuple[type[Timestamp], tuple[int | timedelta, ...]]:
        return Timestamp, self._fields()

    def _fields(self) -> tuple[int | timedelta, ...]:
        """Return the fields as the constructor takes them."""
        return (*self._values[:10], *(timedelta(microseconds=value) for value in self._values[10:]))

    @property
    def iteration(self) -> Time[int]:
        """Iterations completed."""
        return Time(self._values[0], TimeUnit.ITERATION)

    @property
    def epoch(self) -> Time[int]:
        """Epochs completed."""
        return Time(self._values[1], TimeUnit.EPOCH)

    @property
    def batch(self) -> Time[int]:
        """Batches completed."""
        return Time(self._values[2], TimeUnit.BATCH)

    @property
    def sample(self) -> Time[int]:
        """Samples seen."""
        return Time(self._values[3], TimeUnit.SAMPLE)

    @property
    def token(self) -> Time[int]:
        """Tokens seen."""
        return Time(self._values[4], TimeUnit.TOKEN)

    @property
    def epoch_in_iteration(self) -> Time[int]:
        """Epochs completed in this iteration."""
        return Time(self._values[5], TimeUnit.EPOCH)

    @property
    def token_in_iteration(self) -> Time[int]:
        """Tokens seen in this iteration."""
        return Time(self._values[6], TimeUnit.TOKEN)

    @property
    def batch_in_epoch(self) -> Time[int]:
        """Batches completed in this epoch."""
        return Time(self._values[7], TimeUnit.BATCH)

    @property
    def sample_in_epoch(self) -> Time[int]:
        """Samples seen in this epoch."""
        return Time(self._values[8], TimeUnit.SAMPLE)

    @property
    def token_in_epoch(self) -> Time[int]:
        """Tokens seen in this epoch."""
        return Time(self._values[9], TimeUnit.TOKEN)

    @property
    def total_wct(self) -> timedelta:
        """Wall-clock time of training so far."""
        return timedelta(microseconds=self._values[10])

    @property
    def iteration_wct(self) -> timedelta:
        """Wall-clock time of this iteration so far."""
        return timedelta(microseconds=self._values[11])

    @property
    def epoch_wct(self) -> timedelta:
        """Wall-clock time of this epoch so far."""
        return timedelta(microseconds=self._values[12])

    @property
    def batch_wct(self) -> timedelta:
        """Wall-clock time of the last batch."""
        return timedelta(microseconds=self._values[13])

    def get(self, unit: TimeUnit | str) -> Time[int]:
        """Return the total counter of a unit; for ``SECOND`` the whole seconds of ``total_wct``, rounded down.

        Raises:
            TimeError: No such unit, or ``DURATION``: a timestamp does not know how long training will be.
        """
        unit = TimeUnit(unit)
        if unit is TimeUnit.SECOND:
            return Time(self._values[10] // 1_000_000, unit)
        if unit is TimeUnit.DURATION:
            raise TimeError("a timestamp cannot be given in dur: it does not know how long training will be")
        return Time(self._values[_TOTALS.index(unit)], unit)

    def copy(self, **fields: Count | timedelta | None) -> Timestamp:
        """Return a timestamp with some fields replaced; a field given as None is kept.

        Raises:
            TimeError: A wrong value, or no such field.
        """
        unknown = sorted(fields.keys() - _FIELDS.keys())
        if unknown:
            raise TimeError(f"a Timestamp has no field {unknown[0]!r}; its fields are {', '.join(_FIELDS)}")
        kept = zip(_FIELDS, self._fields(), strict=True)
        return Timestamp(*(old if fields.get(name) is None else fields[name] for name, old in kept))  # type: ignore[arg-type]

    def to_next_batch(self, samples: Count = 0, tokens: Count = 0, duration: timedelta | None = None) -> Timestamp:
        """Return the timestamp after one more batch.

        Args:
            samples: Samples in the batch.
            tokens: Tokens in the batch.
            duration: Duration of the batch; None is zero.

        Raises:
            TimeError: A wrong or negative argument.
        """
        return self.after_batch(samples, tokens, _wall_clock("duration", duration))

    def after_batch(self, samples: Count, tokens: Count, duration_us: int) -> Timestamp:
        """Return the same for a duration in microseconds, 0 or more.

        A `timedelta` costs 10 us where a training step has taken the caches.
        """
        # Fast path for the usual argument, an int that is not negative: this runs once per batch, in about a microsecond.
        more_samples = samples if type(samples) is int and samples >= 0 else _count("samples", samples, TimeUnit.SAMPLE)
        more_tokens = tokens if type(tokens) is int and tokens >= 0 else _count("tokens", tokens, TimeUnit.TOKEN)
        old = self._values
        return _timestamp(
            (
                old[0],  # iteration
                old[1],  # epoch
                old[2] + 1,  # batch
                old[3] + more_samples,  # sample
                old[4] + more_tokens,  # token
                old[5],  # epoch_in_iteration
                old[6] + more_tokens,  # token_in_iteration
                old[7] + 1,  # batch_in_epoch
                old[8] + more_samples,  # sample_in_epoch
                old[9] + more_tokens,  # token_in_epoch
                old[10] + duration_us,  # total_wct
                old[11] + duration_us,  # iteration_wct
                old[12] + duration_us,  # epoch_wct
                duration_us,  # batch_wct
            )
        )

    def to_next_epoch(self, tokens: Count | timedelta = 0, duration: timedelta | None = None) -> Timestamp:
        """Return the timestamp after one more epoch; `to_next_batch` has counted its batches.

        Args:
            tokens: Added only to ``token_in_iteration``, as Composer documents it. Tokens of `to_next_batch` are already
                counted. A ``timedelta`` here counts as ``duration``, because in Composer's code that is the only argument.
            duration: Time since the last batch; None is zero. Added to ``total_wct`` and ``iteration_wct``.

        Raises:
            TimeError: A wrong or negative argument, or the duration given twice.
        """
        if isinstance(tokens, timedelta):
            if duration is not None:
                raise TimeError("to_next_epoch got two durations: the first argument is the number of tokens")
            duration, tokens = tokens, 0
        more_tokens = _count("tokens", tokens, TimeUnit.TOKEN)
        took = _wall_clock("duration", duration)
        old = self._values
        return _timestamp(
            (
                old[0],  # iteration
                old[1] + 1,  # epoch
                old[2],  # batch
                old[3],  # sample
                old[4],  # token
                old[5] + 1,  # epoch_in_iteration
                old[6] + more_tokens,  # token_in_iteration
                0,  # batch_in_epoch
                0,  # sample_in_epoch
                0,  # token_in_epoch
                old[10] + took,  # total_wct
                old[11] + took,  # iteration_wct
                0,  # epoch_wct
                0,  # batch_wct
            )
        )

    def to_next_iteration(self, duration: timedelta | None = None) -> Timestamp:
        """Return the timestamp after one more iteration; `to_next_epoch` has counted its epochs.

        Args:
            duration: Time since the last epoch; None is zero. Added to ``total_wct``.

        Raises:
            TimeError: A wrong or negative duration.
        """
        took = _wall_clock("duration", duration)
        old = self._values
        return _timestamp(
            (
                old[0] + 1,  # iteration
                old[1],  # epoch
                old[2],  # batch
                old[3],  # sample
                old[4],  # token
                0,  # epoch_in_iteration
                0,  # token_in_iteration
                0,  # batch_in_epoch
                0,  # sample_in_epoch
                0,  # token_in_epoch
                old[10] + took,  # total_wct
                0,  # iteration_wct
                0,  # epoch_wct
                0,  # batch_wct
            )
        )

    def state_dict(self) -> dict[str, int]:
        """Return the fields as integers, safe for JSON: counters by name, wall-clock times as ``..._wct_us``.

        Microseconds are the resolution of ``timedelta``, so `from_state_dict` returns an equal timestamp.
        """
        return dict(zip(_STATE_KEYS, self._values, strict=True))

    @classmethod
    def from_state_dict(cls, state: Mapping[str, object]) -> Timestamp:
        """Return the timestamp of a `state_dict`, also from Composer, where ``..._wct`` are ``timedelta``.

        The counters of epoch, batch, sample and token, in total and in the epoch, are required. Other fields default to
        zero, for checkpoints from before these fields.

        Raises:
            TimeError: A required key is missing, a key is unknown or given in both forms, or a value has the wrong
                type or is negative. The message names the key.
        """
        if not isinstance(state, Mapping):
            raise TimeError(f"the state of a Timestamp is a dict, not {shown(state)}")
        missing = [key for key in _REQUIRED if key not in state]
        if missing:
            raise TimeError(f"the state of a Timestamp lacks {', '.join(missing)}")
        for key, value in state.items():
            if key not in _FIELDS and key not in _STATE_KEYS:
                raise TimeError(f"the state of a Timestamp has the unknown key {shown(key)}")
            if value is None or isinstance(value, (str, Time)):
                raise TimeError(f"{key}: the state of a Timestamp holds whole numbers, not {shown(value)}")
        fields: dict[str, object] = {}
        for name, key in zip(_FIELDS, _STATE_KEYS, strict=True):
            if key != name and key in state:
                if name in state:
                    raise TimeError(f"the state of a Timestamp has both {name} and {key}; give one of them")
                fields[name] = _microseconds(key, state[key])
            elif name in state:
                fields[name] = state[name]
        return cls(**fields)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        fields = zip(_FIELDS, self._fields(), strict=True)
        return f"Timestamp({', '.join(f'{name}={value!r}' for name, value in fields)})"

    def __hash__(self) -> int:
        return hash(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return self._values == other._values
        try:
            time = _as_time(other)
            return NotImplemented if time is None else self.get(time.unit) == time
        except TimeError:
            return False

    def __lt__(self, other: Time | str) -> bool:
        time = _as_time(other)
        return NotImplemented if time is None else self.get(time.unit) < time

    def __le__(self, other: Time | str) -> bool:
        time = _as_time(other)
        return NotImplemented if time is None else self.get(time.unit) <= time

    def __gt__(self, other: Time | str) -> bool:
        time = _as_time(other)
        return NotImplemented if time is None else self.get(time.unit) > time

    def __ge__(self, other: Time | str) -> bool:
        time = _as_time(other)
        return NotImplemented if time is None else self.get(time.unit) >= time


def _as_time(other: object) -> Time | None:
    """Return ``other`` as a `Time` for a comparison, or None for another type."""
    if isinstance(other, Timestamp):
        # The default message of Python would not suggest a solution.
        raise TypeError("two timestamps have no order; compare one of their counters, such as a.batch < b.batch")
    if isinstance(other, str):
        return Time.from_timestring(other)
    return other if isinstance(other, Time) else None


def _count(name: str, value: object, unit: TimeUnit) -> int:
    """Return a counter as a plain number, or raise a `TimeError` that names it."""
    if type(value) is int and 0 <= value <= LARGEST_COUNT:
        return value
    try:
        if isinstance(value, str):
            value = Time.from_timestring(value)
        if isinstance(value, Time):
            if value.unit is not unit:
                raise TimeError(f"{value} is in {value.unit}, and {unit} is needed")
            value = value.value
        number = int(checked(value, unit))
    except TimeError as error:
        raise TimeError(f"{name}: {error}") from None
    if number < 0:
        raise TimeError(f"{name}: {number} is negative, and training time does not go backwards")
    return number


def _wall_clock(name: str, value: object) -> int:
    """Return a wall-clock time in us, or raise a `TimeError` that names it. The nanoseconds of a subclass are dropped."""
    if value is None:
        return 0
    if not isinstance(value, timedelta):
        raise TimeError(f"{name}: a datetime.timedelta is needed, not {shown(value)}")
    if value < _ZERO:
        raise TimeError(f"{name}: {shown(value)} is negative, and training time does not go backwards")
    return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds


def _microseconds(key: str, value: object) -> timedelta:
    """Return a wall-clock time from a state dict, or raise a `TimeError` that names the key."""
    number = None if isinstance(value, bool) else plain_number(value)
    if not isinstance(number, int):
        raise TimeError(f"{key}: a whole number of microseconds is needed, not {shown(value)}")
    try:
        duration = timedelta(microseconds=number)
    except OverflowError:
        raise TimeError(f"{key}: {shown(number)} is more than a timedelta can hold") from None
    _wall_clock(key, duration)
    return duration


def _timestamp(values: _Values) -> Timestamp:
    """Make a timestamp of valid values, without checks."""
    timestamp: Timestamp = object.__new__(Timestamp)
    object.__setattr__(timestamp, "_values", values)
    return timestamp
