"""The documents of a control folder: a request to the ranks, and the status of one rank."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from tracekit.errors import ConfigError

__all__ = ["IN_FORCE", "LARGEST_BYTES", "CaptureState", "CaptureStatus", "RankStatus", "Request", "new_id"]

VERSION: Final = 1
LARGEST_BYTES: Final = 64 << 10
"""A document beyond this size is refused unread."""

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_LARGEST: Final = (1 << 63) - 1
_LARGEST_RANK: Final = (1 << 31) - 1
_LARGEST_WORLD: Final = 1_000_000
_SHORTEST_STEP_S: Final = 1e-6
_LONGEST_SECONDS: Final = 30 * 24 * 3600.0
_LATEST_TIME: Final = 4e9  # the year 2096, in seconds since the epoch; milliseconds by mistake are beyond it
_LONGEST_TEXT: Final = 4096
_MOST_FILES: Final = 256


class CaptureState:
    """How far a rank is with a capture."""

    ACKNOWLEDGED: Final = "acknowledged"
    """It has read the request, and waits to be told when to start."""
    WAITING: Final = "waiting"
    """It knows when to start, or warms up."""
    RECORDING: Final = "recording"
    SAVING: Final = "saving"
    """The last batch is over; the files are not complete yet."""
    DONE: Final = "done"
    CANCELLED: Final = "cancelled"
    """It was given up before a batch was recorded; the note says why."""


IN_FORCE: Final = frozenset(
    {CaptureState.ACKNOWLEDGED, CaptureState.WAITING, CaptureState.RECORDING, CaptureState.SAVING}
)
"""States in which a rank takes no other capture."""

_STATES: Final = IN_FORCE | {CaptureState.DONE, CaptureState.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the ranks are asked to do: capture, or stop what they are capturing.

    Attributes:
        id: Which request this is; a rank serves each once.
        stop: Stop the capture that runs, whoever started it. The fields below but ``ranks`` say nothing then.
        ranks: Which ranks are meant; None is all.
        steps: How many batches to record; 0 is until stopped. None, with ``seconds`` also None, is each rank's default.
        seconds: How long to record, to the end of the batch; if ``steps`` is given too, whatever comes first.
        warmup: How many batches before are for torch.profiler to warm up; None is each rank's default.
        together: Wait until the request comes again with a start for all.
        start_batch: Number of the first batch to record, counted through the run. A rank that is past it starts at once.
        start_time: Begin with the first batch after this time, in seconds since the epoch.
        expires: Seconds since the epoch after which a rank that sees the request for the first time does nothing.
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
    def decided(self) -> bool:
        """Whether it says when to start."""
        return not self.together or self.start_batch is not None or self.start_time is not None

    def selects(self, rank: int) -> bool:
        """Tell whether a rank is meant."""
        return self.ranks is None or rank in self.ranks

    def to_bytes(self) -> bytes:
        """Return the document."""
        return _encode({key: value for key, value in asdict(self).items() if value is not None})

    @classmethod
    def from_bytes(cls, data: bytes, default_id: str | None = None) -> Request:
        """Read a document; fields of other names are passed over.

        Args:
            data: The content of the file.
            default_id: The id of one that has none, as one that was written by hand.

        Raises:
            ConfigError: It is none; the message says what is wrong with it.
        """
        fields = _Fields.read(data, "a request")
        found = fields.text("id", default_id)
        if found is None or not _ID.match(found):
            raise ConfigError("a request: id must be 1 to 64 of the letters A-Z a-z 0-9 . _ -")
        if fields.number("start_time", most=_LATEST_TIME) is not None and fields.integer("start_batch") is not None:
            raise ConfigError("a request: start_batch and start_time exclude each other")
        return cls(
            id=found,
            stop=fields.flag("stop"),
            ranks=fields.integers("ranks", most=_LARGEST_RANK),
            steps=fields.integer("steps", most=1_000_000_000),
            seconds=fields.number("seconds", most=_LONGEST_SECONDS, above_zero=True),
            warmup=fields.integer("warmup", most=1_000_000),
            together=fields.flag("together"),
            start_batch=fields.integer("start_batch"),
            start_time=fields.number("start_time", most=_LATEST_TIME),
            expires=fields.number("expires", most=_LATEST_TIME),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """What a rank does, or did last, about a capture.

    Attributes:
        id: The request's, or one of the rank's own for a signal or a call.
        state: One of `CaptureState`.
        warmup: How many batches it warms up.
        first_batch: The first batch that is recorded, once that is known.
        last_batch: The last one, once it is over.
        late_batches: How many batches after ``start_batch`` it began, because it saw the request too late.
        note: What a person should know.
        files: The trace files with the recorded batches, absolute paths or URLs; while it records, those begun so far.
    """

    id: str
    state: str
    warmup: int = 0
    first_batch: int | None = None
    last_batch: int | None = None
    late_batches: int = 0
    note: str | None = None
    files: tuple[str, ...] = ()

    @property
    def in_force(self) -> bool:
        """Whether it is not over."""
        return self.state in IN_FORCE

    @classmethod
    def read(cls, document: object) -> CaptureStatus:
        """Read the part of a rank's document; raises `ConfigError` for what is none."""
        fields = _Fields(document, "the status of a capture")
        state = fields.text("state")
        if state not in _STATES:
            raise ConfigError(f"the status of a capture: there is no state {state!r:.40}")
        return cls(
            id=fields.text("id") or "",
            state=state,
            warmup=fields.integer("warmup") or 0,
            first_batch=fields.integer("first_batch"),
            last_batch=fields.integer("last_batch"),
            late_batches=fields.integer("late_batches") or 0,
            note=fields.text("note"),
            files=fields.texts("files"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """What one rank tells of itself: when it starts and ends, and about once a second while a capture is in force.

    Attributes:
        rank, world_size, run_id, host, pid, attempt: Who it is; see `tracekit.distributed.ProcessInfo`.
        machine: Boot and pid namespace that ``pid`` is a process of; None where the system does not tell.
        updates: How often it was written; so that a reader sees that the rank is alive, whatever the clocks.
        listening: False once the profiler has stopped.
        look_seconds: How long a request can lie there before the rank looks.
        batch: The batch that runs, counted through the run.
        step_seconds: What a batch took lately; None when none is known.
        capture: The capture that is in force, else the last one.
        refused: Id of the last request that was refused, and why.
    """

    rank: int
    world_size: int
    run_id: str
    host: str
    pid: int
    attempt: int = 0
    machine: str | None = None
    updates: int = 0
    listening: bool = True
    look_seconds: float = 0.5
    batch: int = 0
    step_seconds: float | None = None
    capture: CaptureStatus | None = None
    refused: tuple[str, str] | None = None

    def to_bytes(self) -> bytes:
        """Return the document."""
        return _encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> RankStatus:
        """Read a document; raises `ConfigError` for what is none."""
        fields = _Fields.read(data, "the status of a rank")
        rank, world_size, pid = fields.integer("rank"), fields.integer("world_size"), fields.integer("pid")
        if rank is None or world_size is None or pid is None or not rank < world_size:
            raise ConfigError("the status of a rank: rank, world_size and pid must say who it is")
        if world_size > _LARGEST_WORLD:
            raise ConfigError(f"the status of a rank: world_size must be at most {_LARGEST_WORLD}")
        step_seconds = fields.number("step_seconds", most=_LONGEST_SECONDS)
        refused = fields.texts("refused")
        capture = fields.document.get("capture")
        return cls(
            rank=rank,
            world_size=world_size,
            run_id=fields.text("run_id") or "",
            host=fields.text("host") or "",
            pid=pid,
            attempt=fields.integer("attempt") or 0,
            machine=fields.text("machine"),
            updates=fields.integer("updates") or 0,
            listening=fields.flag("listening"),
            look_seconds=fields.number("look_seconds", most=_LONGEST_SECONDS) or 0.0,
            batch=fields.integer("batch") or 0,
            # No batch is that short, and a start would be reckoned beyond all numbers.
            step_seconds=None if step_seconds is None or step_seconds < _SHORTEST_STEP_S else step_seconds,
            capture=None if capture is None else CaptureStatus.read(capture),
            refused=(refused[0], refused[1]) if len(refused) == 2 else None,
        )


def new_id() -> str:
    """Return an id that no other request has."""
    return os.urandom(6).hex()


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **document}).encode() + b"\n"


class _Fields:
    """The fields of a document from anywhere: each is of the kind it should be, absent (also: null), or an error."""

    __slots__ = ("_what", "document")

    def __init__(self, document: object, what: str) -> None:
        if not isinstance(document, dict):
            raise ConfigError(f"{what} must be a JSON object")
        self.document: dict[str, Any] = document
        self._what = what

    @classmethod
    def read(cls, data: bytes, what: str) -> _Fields:
        if len(data) > LARGEST_BYTES:
            raise ConfigError(f"{what} has at most {LARGEST_BYTES} bytes")
        try:
            document = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            raise ConfigError(f"{what} must be JSON, and this is none, or half of it") from None
        fields = cls(document, what)
        if (fields.integer("version", least=1) or VERSION) > VERSION:
            raise ConfigError(f"{what} is of a later version of tracekit than this one; use the same on both sides")
        return fields

    def integer(self, name: str, *, least: int = 0, most: int = _LARGEST) -> int | None:
        value = self.document.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{self._what}: {name} must be a whole number from {least} to {most}")
        return value

    def number(self, name: str, *, most: float, above_zero: bool = False) -> float | None:
        value = self.document.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # In this order: an integer may be too large for any float.
        if not is_number or not 0 <= value <= most or not math.isfinite(value) or (above_zero and value == 0):
            raise ConfigError(
                f"{self._what}: {name} must be a number {'above' if above_zero else 'from'} 0 to {most:g}"
            )
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.document.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{self._what}: {name} must be true or false")
        return bool(value)

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self.document.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise ConfigError(f"{self._what}: {name} must be a text of at most {_LONGEST_TEXT} characters")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.document.get(name)
        if value is None:
            return ()
        good = isinstance(value, list) and len(value) <= _MOST_FILES
        if not good or not all(isinstance(text, str) and len(text) <= _LONGEST_TEXT for text in value):
            raise ConfigError(f"{self._what}: {name} must be a list of at most {_MOST_FILES} texts")
        return tuple(value)

    def integers(self, name: str, *, most: int) -> tuple[int, ...] | None:
        value = self.document.get(name)
        if value is None:
            return None
        good = isinstance(value, list) and value
        if not good or not all(type(number) is int and 0 <= number <= most for number in value):
            raise ConfigError(f"{self._what}: {name} must be a list of whole numbers from 0 to {most}")
        return tuple(sorted(set(value)))
