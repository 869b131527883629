"""The documents of a control folder: a request to the ranks, and the status of one rank."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
from dataclasses import MISSING, asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

VERSION: Final = 1
MAX_DOCUMENT_BYTES: Final = 64 << 10

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_MAX_TEXT: Final = 4096
_MAX_FILES: Final = 256
_MAX_RANK: Final = (1 << 31) - 1
_MIN_STEP_S: Final = 1e-6  # a common start computed from a shorter step would lie beyond all numbers


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

    id: str
    stop: bool = False
    ranks: tuple[int, ...] | None = None
    steps: int | None = None
    seconds: float | None = None
    warmup: int | None = None
    together: bool = False
    start_batch: int | None = None
    start_time: float | None = None
    expires: float | None = None

    @property
    def has_start(self) -> bool:
        """True if a rank knows when to start."""
        return not self.together or self.start_batch is not None or self.start_time is not None

    def selects(self, rank: int) -> bool:
        """Return True if the request is for a rank."""
        return self.ranks is None or rank in self.ranks

    def to_bytes(self) -> bytes:
        """Return the document."""
        return _encode({key: value for key, value in asdict(self).items() if value is not None})

    @classmethod
    def from_bytes(cls, data: bytes, default_id: str | None = None) -> Request:
        """Read a document; ``default_id`` is for documents without an id, such as one written by hand.

        Raises:
            ConfigError: The document is not a request; the message names the field.
        """
        document = _parse(data, "a request")
        if document.get("id") is None:
            document["id"] = default_id
        request = _read(cls, "a request", document)
        if request.start_time is not None and request.start_batch is not None:
            raise ConfigError("a request: start_batch and start_time exclude each other")
        return request


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """The current or last capture of a rank."""

    id: str  # of the request; a capture by a signal or a call gets a new id
    state: CaptureState
    warmup: int = 0  # batches
    first_batch: int | None = None  # once it has begun
    last_batch: int | None = None  # once it is over
    late_batches: int = 0  # from ``start_batch`` to ``first_batch``, if the rank read the request too late
    note: str | None = None  # for people
    files: tuple[str, ...] = ()  # absolute paths or URLs; during recording, the files so far


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """The status of one rank: written at its start and end, on every change, and each second during a capture."""

    rank: int
    world_size: int
    pid: int
    run_id: str = ""
    host: str = ""
    attempt: int = 0
    machine: str | None = None  # boot and pid namespace of ``pid``; None if the system does not report them
    updates: int = 0  # number of writes: a change shows that the rank is alive
    listening: bool = True  # False once the profiler has stopped
    look_seconds: float = 0.5  # the longest time until the rank reads a request
    batch: int = 0  # the current batch, counted through the run
    step_seconds: float | None = None  # recent duration of a batch
    capture: CaptureStatus | None = None  # the current capture, else the last one
    refused: tuple[str, ...] | None = None  # id of the last refused request, and the reason

    def to_bytes(self) -> bytes:
        """Return the document."""
        return _encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> RankStatus:
        """Read a document.

        Raises:
            ConfigError: The document is not the status of a rank; the message names the field.
        """
        status = _read(cls, "the status of a rank", _parse(data, "the status of a rank"))
        if not status.rank < status.world_size:
            raise ConfigError("the status of a rank: rank must be less than world_size")
        if status.step_seconds is not None and status.step_seconds < _MIN_STEP_S:
            return dataclasses.replace(status, step_seconds=None)
        return status


def new_id() -> str:
    """Return a random id for a request."""
    return os.urandom(6).hex()


# ---- reading: anybody may have written a document -----------------------------------------------------------------------


class _Rule(NamedTuple):
    """The values that a document may have in a field."""

    must_be: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value


def _whole(most: int = (1 << 63) - 1) -> _Rule:
    return _Rule(f"a whole number from 0 to {most}", lambda value: type(value) is int and 0 <= value <= most)


def _number(most: float, *, above: float = -1.0) -> _Rule:
    # An integer may be too large for a float, so it is compared before it is converted.
    def accepts(value: Any) -> bool:
        return type(value) in (int, float) and 0 <= value <= most and value > above

    return _Rule(f"a number {'from' if above < 0 else 'above'} 0 to {most:g}", accepts, float)


def _list(item: _Rule, least: int, most: int, convert: Callable[[Any], Any] = tuple) -> _Rule:
    def accepts(value: Any) -> bool:
        return isinstance(value, list) and least <= len(value) <= most and all(map(item.accepts, value))

    return _Rule(f"a list of {least} to {most} values, each {item.must_be}", accepts, convert)


_FLAG: Final = _Rule("true or false", lambda value: isinstance(value, bool))
_TEXT: Final = _Rule(f"a text of at most {_MAX_TEXT} characters", lambda v: isinstance(v, str) and len(v) <= _MAX_TEXT)
_TIME: Final = _number(4e9)  # until the year 2096; milliseconds by mistake are beyond it
_SECONDS: Final = _number(30 * 24 * 3600.0)
_DEFAULT_RULE: Final = _whole()

_RULES: Final = {
    "id": _Rule("1 to 64 of the letters A-Z a-z 0-9 . _ -", lambda v: isinstance(v, str) and _ID.match(v) is not None),
    "stop": _FLAG,
    "ranks": _list(_whole(_MAX_RANK), 1, MAX_DOCUMENT_BYTES, lambda ranks: tuple(sorted(set(ranks)))),
    "steps": _whole(1_000_000_000),
    "seconds": _number(30 * 24 * 3600.0, above=0),
    "warmup": _whole(1_000_000),
    "together": _FLAG,
    "start_time": _TIME,
    "expires": _TIME,
    "state": _Rule(f"one of {', '.join(CaptureState)}", lambda value: value in list(CaptureState), CaptureState),
    "note": _TEXT,
    "files": _list(_TEXT, 0, _MAX_FILES),
    "world_size": _whole(1_000_000),
    "run_id": _TEXT,
    "host": _TEXT,
    "machine": _TEXT,
    "listening": _FLAG,
    "look_seconds": _SECONDS,
    "step_seconds": _SECONDS,
    "capture": _Rule(
        "a JSON object",
        lambda value: isinstance(value, dict),
        lambda value: _read(CaptureStatus, "the status of a capture", value),
    ),
    "refused": _list(_TEXT, 2, 2),
}


def _read(kind: Callable[..., T], what: str, document: dict[str, Any]) -> T:
    """Return the dataclass of a JSON object. Fields of other names are ignored; null counts as absent."""
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        value, rule = document.get(field.name), _RULES.get(field.name, _DEFAULT_RULE)
        if value is None and field.default is not MISSING:
            continue
        if not rule.accepts(value):
            raise ConfigError(f"{what}: {field.name} must be {rule.must_be}")
        values[field.name] = rule.convert(value)
    return kind(**values)


def _parse(data: bytes, what: str) -> dict[str, Any]:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"{what} has at most {MAX_DOCUMENT_BYTES} bytes")
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
    return document


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **document}).encode() + b"\n"
