"""The documents of a control folder: a request to the ranks, and the status of one rank."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from tracekit.errors import ConfigError

T = TypeVar("T")

VERSION: Final = 1
MAX_DOCUMENT_BYTES: Final = 64 << 10

_MIN_STEP_S: Final = 1e-6  # a common start computed from a shorter step would lie beyond all numbers

# Anybody may have written a document: the values that each field may have.
_Id = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
_Text = Annotated[str, Meta(max_length=4096)]
_Whole = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Rank = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Steps = Annotated[int, Meta(ge=0, le=1_000_000_000)]
_Million = Annotated[int, Meta(ge=0, le=1_000_000)]
_Limit = Annotated[float, Meta(gt=0, le=30 * 24 * 3600)]
_Seconds = Annotated[float, Meta(ge=0, le=30 * 24 * 3600)]
_Time = Annotated[float, Meta(ge=0, le=4e9)]  # until the year 2096; milliseconds by mistake are beyond it


class CaptureState(str, enum.Enum):
    """The progress of one rank with a capture."""

    ACKNOWLEDGED = "acknowledged"  # the rank has read the request, which does not name a start yet
    WAITING = "waiting"  # the rank knows the start, and waits for it or warms up
    RECORDING = "recording"
    SAVING = "saving"  # the last batch is over; the files are not complete yet
    DONE = "done"
    CANCELLED = "cancelled"  # the capture ended before its first batch; the note says why

    __str__ = str.__str__

    @property
    def in_force(self) -> bool:
        """True while the rank accepts no other capture."""
        return self not in (CaptureState.DONE, CaptureState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to the ranks: to capture, or to stop the current capture.

    Attributes:
        id: A rank serves each id once.
        stop: Stop the current capture, also one of another request. Of the fields below only ``ranks`` counts then.
        ranks: The selected ranks; None for all.
        steps: Number of batches; 0 for until stopped. None for the default of each rank, unless ``seconds`` is given.
        seconds: Time limit; the current batch is still recorded. With ``steps``, the earlier limit counts.
        warmup: Number of batches before, for torch.profiler to warm up; None for the default of each rank.
        together: Wait until the request comes again with a start for all ranks.
        start_batch: The first batch to record, counted through the run. A rank beyond it starts immediately.
        start_time: Start with the first batch after this time, in seconds since the epoch.
        expires: Seconds since the epoch. A rank that reads the request later for the first time refuses it.
    """

    id: _Id = field(default_factory=lambda: os.urandom(6).hex())
    stop: bool = False
    ranks: Annotated[tuple[_Rank, ...], Meta(min_length=1)] | None = None
    steps: _Steps | None = None
    seconds: _Limit | None = None
    warmup: _Million | None = None
    together: bool = False
    start_batch: _Whole | None = None
    start_time: _Time | None = None
    expires: _Time | None = None

    @property
    def has_start(self) -> bool:
        """True if a rank knows when to start."""
        return not self.together or self.start_batch is not None or self.start_time is not None

    def selects(self, rank: int) -> bool:
        """Return True if the request is for a rank."""
        return self.ranks is None or rank in self.ranks

    def to_bytes(self) -> bytes:
        """Return the document."""
        return _encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, **defaults: Any) -> Request:
        """Read a document; ``defaults`` is for missing fields, such as the id of one written by hand.

        Raises:
            ConfigError: The document is not a request; the message names the field.
        """
        request = _read(cls, "a request", data, defaults)
        if request.start_time is not None and request.start_batch is not None:
            raise ConfigError("a request: start_batch and start_time exclude each other")
        if request.ranks is None:
            return request
        return dataclasses.replace(request, ranks=tuple(sorted(set(request.ranks))))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """The current or last capture of a rank."""

    id: _Id  # of the request; a capture by a signal or a call gets a new id
    state: CaptureState
    warmup: _Million = 0  # batches
    first_batch: _Whole | None = None  # once it has begun
    last_batch: _Whole | None = None  # once it is over
    late_batches: _Whole = 0  # from ``start_batch`` to ``first_batch``, if the rank read the request too late
    note: _Text | None = None  # for people
    files: Annotated[tuple[_Text, ...], Meta(max_length=256)] = ()  # absolute paths or URLs; the files so far


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """The status of one rank: written at its start and end, on every change, and each second during a capture."""

    rank: _Rank
    world_size: _Million
    pid: _Whole
    run_id: _Text = ""
    host: _Text = ""
    attempt: _Whole = 0
    machine: _Text | None = None  # boot and pid namespace of ``pid``; None if the system does not report them
    updates: _Whole = 0  # number of writes: a change shows that the rank is alive
    listening: bool = True  # False once the profiler has stopped
    look_seconds: _Seconds = 0.5  # the longest time until the rank reads a request
    batch: _Whole = 0  # the current batch, counted through the run
    step_seconds: _Seconds | None = None  # recent duration of a batch
    capture: CaptureStatus | None = None  # the current capture, else the last one
    refused: tuple[_Text, _Text] | None = None  # id of the last refused request, and the reason

    def to_bytes(self) -> bytes:
        """Return the document."""
        return _encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> RankStatus:
        """Read a document.

        Raises:
            ConfigError: The document is not the status of a rank; the message names the field.
        """
        status = _read(cls, "the status of a rank", data, {})
        if not status.rank < status.world_size:
            raise ConfigError("the status of a rank: rank must be less than world_size")
        if status.step_seconds is not None and status.step_seconds < _MIN_STEP_S:
            return dataclasses.replace(status, step_seconds=None)
        return status


def _read(kind: type[T], what: str, data: bytes, defaults: dict[str, Any]) -> T:
    """Return the dataclass of a document. Fields of other names are ignored; null counts as absent."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"{what}: it is larger than {MAX_DOCUMENT_BYTES} bytes")
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ConfigError(f"{what} must be JSON, and this is none, or half of it") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{what} must be a JSON object")
    if document.get("version") not in (None, VERSION):
        raise ConfigError(
            f"{what}: version must be {VERSION}; for a later version, use the same tracekit on both sides"
        )
    given = {name: value for name, value in document.items() if value is not None}
    try:
        return msgspec.convert({**defaults, **given}, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).removesuffix("`").partition(" - at `$.")
        problem = problem.replace("Expected", "must be", 1).replace(", got", ", not", 1)
        raise ConfigError(f"{what}: {place} {problem}" if place else f"{what}: {problem}") from None


def _encode(document: dict[str, Any]) -> bytes:
    given = {name: value for name, value in document.items() if value is not None}
    return json.dumps({"version": VERSION, **given}).encode() + b"\n"
