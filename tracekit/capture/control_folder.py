"""The control folder of a running job, and its documents: a request to the ranks, and the status of each rank."""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from tracekit.errors import ConfigError, StorageError
from tracekit.processors import boot_id
from tracekit.storage import atomic_write, make_folders

T = TypeVar("T", bound="_Document")

REQUEST: Final = "request.json"
RANKS: Final = "ranks"
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


class _Document:
    """A JSON object with a version. Fields of other names are ignored; null counts as absent."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Return the document."""
        return json.dumps({"version": VERSION, **msgspec.to_builtins(self)}).encode() + b"\n"

    @classmethod
    def from_bytes(cls: type[T], data: bytes, **defaults: Any) -> T:
        """Read a document; ``defaults`` are for missing fields. ConfigError: it is none; the message names the field."""
        what = "a request" if cls is Request else "the status of a rank"
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
            return msgspec.convert({**defaults, **given}, cls)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).removesuffix("`").partition(" - at `$.")
            problem = problem.replace("Expected", "must be", 1).replace(", got", ", not", 1)
            raise ConfigError(f"{what}: {place} {problem}" if place else f"{what}: {problem}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(_Document):
    """A request to the ranks: to capture, or to stop the current capture."""

    id: _Id = field(default_factory=lambda: os.urandom(6).hex())  # a rank serves each id once
    # Stop the current capture, also one of another request; of the fields below only ranks counts then.
    stop: bool = False
    ranks: Annotated[tuple[_Rank, ...], Meta(min_length=1)] | None = None  # None for all
    steps: _Steps | None = None  # batches; 0 for until stopped; None for the default of each rank, or for ``seconds``
    seconds: _Limit | None = None  # the current batch is still recorded; with ``steps``, the earlier limit counts
    warmup: _Million | None = None  # batches before, for torch.profiler to warm up; None for the default of each rank
    together: bool = False  # wait until the request comes again with a start for all ranks
    # The first batch to record, counted through the run; a rank beyond it starts immediately.
    start_batch: _Whole | None = None
    start_time: _Time | None = None  # start with the first batch after it, in seconds since the epoch
    expires: _Time | None = None  # in seconds since the epoch; a rank that first reads the request later refuses it

    def __post_init__(self) -> None:
        if self.start_time is not None and self.start_batch is not None:
            raise ValueError("start_batch and start_time exclude each other")

    @property
    def has_start(self) -> bool:
        """True if a rank knows when to start."""
        return not self.together or self.start_batch is not None or self.start_time is not None

    def selects(self, rank: int) -> bool:
        """Return True if the request is for a rank."""
        return self.ranks is None or rank in self.ranks


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
class RankStatus(_Document):
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

    def __post_init__(self) -> None:
        if self.step_seconds is not None and self.step_seconds < _MIN_STEP_S:
            object.__setattr__(self, "step_seconds", None)


class ControlFolder:
    """A folder on a file system that all ranks share. Documents appear whole, with mode 0600, in folders of mode 0700.

    Every method may wait for the file system, and raise OSError or StorageError. One object belongs to one thread at
    a time. With ``trust_others`` it also accepts requests of users other than this one and root, and files that others
    may write to: for file systems that do not report owners and modes correctly.
    """

    def __init__(self, path: Path, *, trust_others: bool = False) -> None:
        self.path = path
        self._trust_others = trust_others
        self._request_version: tuple[int, ...] | None = None  # of the request that was read last
        self._statuses: dict[str, tuple[tuple[int, ...], RankStatus]] = {}

    @classmethod
    def find(cls, folder: Path) -> ControlFolder | None:
        """Return a folder, or its subfolder ``control``, if ranks have written there; else None."""
        for candidate in (folder, folder / "control"):
            if (candidate / RANKS).is_dir():
                return cls(candidate.absolute())
        return None

    def make(self) -> None:
        """Make the folder if it is missing; raise StorageError also if it is not writable."""
        folder = self.path / RANKS
        try:
            make_folders(folder)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it may not be written to")
        except OSError as error:
            raise StorageError(f"{self.path}: the control folder cannot be made: {error.strerror or error}") from error

    def read_request(self) -> Request | None:
        """Return the request if it has changed since the last call, else None. ConfigError: a new one is refused; once."""
        try:
            # Open it each time: on NFS this asks the server, while stat may return old values for a minute. Follow no
            # link, and wait for no pipe.
            descriptor = os.open(self.path / REQUEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            self._request_version = None
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            if not self._is_new((-1,)):
                return None
            raise ConfigError("a request: it is a symbolic link") from None
        try:
            found = os.fstat(descriptor)
            if not self._is_new((found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)):
                return None
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError("a request: it is not a file")
            if found.st_uid not in (os.geteuid(), 0) and not self._trust_others:
                raise ConfigError(f"a request: it belongs to another user (uid {found.st_uid})")
            if found.st_mode & 0o022 and not self._trust_others:
                raise ConfigError("a request: other users may write to it")
            data = os.read(descriptor, MAX_DOCUMENT_BYTES + 1)
        except OSError:
            self._request_version = None  # read it again next time
            raise
        finally:
            os.close(descriptor)
        return Request.from_bytes(data, id=f"file-{found.st_mtime_ns}")

    def holds(self, request: Request) -> bool:
        """Return True if no other request has replaced this one."""
        try:
            found = ControlFolder(self.path, trust_others=self._trust_others).read_request()
        except ConfigError:
            return False
        return found is not None and found.id == request.id

    def write(self, document: Request | RankStatus) -> None:
        """Replace the request, or the status of a rank. Makes the folder again if somebody has removed it."""
        with atomic_write(os.fspath(self.path_of(document))) as file:
            file.write(document.to_bytes())

    def path_of(self, document: Request | RankStatus) -> Path:
        """Return the path of a document."""
        return self.path / (REQUEST if isinstance(document, Request) else f"{RANKS}/rank{document.rank:05d}.json")

    def _is_new(self, version: tuple[int, ...]) -> bool:
        before, self._request_version = self._request_version, version
        return version != before

    def statuses(self) -> dict[int, RankStatus]:
        """Return the status of each rank. Other and damaged files are ignored."""
        kept: dict[str, tuple[tuple[int, ...], RankStatus]] = {}
        with os.scandir(self.path / RANKS) as entries:
            files = [entry for entry in entries if entry.name.startswith("rank") and entry.name.endswith(".json")]
        for entry in sorted(files, key=lambda entry: entry.name):
            with contextlib.suppress(OSError, ConfigError):
                found = entry.stat(follow_symlinks=False)
                version = (found.st_ino, found.st_mtime_ns, found.st_size)
                known = self._statuses.get(entry.name)
                if known is not None and known[0] == version:
                    kept[entry.name] = known
                elif stat.S_ISREG(found.st_mode) and found.st_size <= MAX_DOCUMENT_BYTES:
                    status = RankStatus.from_bytes(Path(entry.path).read_bytes())
                    if status.rank < status.world_size:
                        kept[entry.name] = (version, status)
        self._statuses = kept
        return {status.rank: status for _, status in kept.values()}


@cache
def machine() -> str | None:
    """Return an id that processes have in common if they can see each other's pids; None if the system does not report it."""
    boot = boot_id()
    try:
        name = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
    if boot is None:
        return None
    return hashlib.sha256(name.encode()).hexdigest()[:16]  # a hash, because the boot id may be private


def listens(status: RankStatus) -> bool:
    """Return True if a rank reads requests. If its process has died, this is known on the same machine only."""
    if not status.listening or status.machine is None or status.machine != machine():
        return status.listening
    try:
        text = Path(f"/proc/{status.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return text.rpartition(")")[2].split()[:1] != ["Z"]  # a zombie: its parent has not waited for it yet
