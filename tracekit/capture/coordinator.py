"""CaptureCoordinator: sends a request to the ranks, finds a common start, and follows every rank to its end."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.capture.documents import CaptureState, CaptureStatus, RankStatus, Request, new_id
from tracekit.capture.folder import is_gone
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError, TracekitError
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.capture.folder import ControlFolder

_LEAD_S: Final = 0.5  # from the moment when every rank has polled its folder twice to a common start
_SAFETY: Final = 1.25
_MAX_SPREAD_S: Final = 10.0
_GRACE_STEPS: Final = 3
_MIN_EXPIRY_S: Final = 60.0
_START_MARGIN_S: Final = 10.0  # ranks wait longer for the start than the coordinator waits for silent ranks
_MAX_ABSENT: Final = 10_000  # wait for ranks without a status below this number only: a world size may be wrong


@dataclass(slots=True)
class RankView:
    """The knowledge of one rank."""

    rank: int
    request_id: str  # of the capture that the rank is asked about
    seen_ns: int  # monotonic time of its last progress
    batch_ns: int = 0  # monotonic time of its last status
    status: RankStatus | None = None  # None before the first
    lost: str | None = None  # the reason if nobody waits for the rank any more
    is_silent: bool = False  # lost for its silence only, so that it is taken back when it goes on

    @property
    def capture(self) -> CaptureStatus | None:
        """The capture, once the rank has accepted it."""
        found = None if self.status is None else self.status.capture
        return found if found is not None and found.id == self.request_id else None

    @property
    def refusal(self) -> str | None:
        """The reason of the rank to refuse the request; None if it has not refused."""
        refused = None if self.status is None else self.status.refused
        return refused[1] if refused is not None and refused[0] == self.request_id else None

    @property
    def is_done(self) -> bool:
        """True if the rank has recorded and saved the capture."""
        return self.capture is not None and self.capture.state is CaptureState.DONE

    @property
    def has_ended(self) -> bool:
        """True if the rank has refused, cancelled or finished the capture."""
        return self.refusal is not None or (self.capture is not None and not self.capture.state.in_force)

    @property
    def is_over(self) -> bool:
        """True if nobody needs to wait for the rank."""
        return self.lost is not None or self.has_ended


class CaptureCoordinator:
    """Serves one request: call `begin`, then `poll` regularly until it is ``finished``: every rank is done or lost.

    Not thread-safe. Each method may wait for the file system. It raises OSError if the folder cannot be read, and
    StorageError if the request cannot be written. A rank is lost after ``timeout_s`` without an answer, a new batch
    or a new state; one with longer batches gets the time of three batches. ``request`` has its common start once that
    is known.
    """

    def __init__(
        self, folder: ControlFolder, request: Request, *, timeout_s: float = 30.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.request = request
        self.ranks: dict[int, RankView] = {}
        self.finished = False
        self._folder = folder
        self._timeout_ns = round(timeout_s * 1e9)
        self._clock = clock
        self._began_ns = 0
        self._stopping: dict[int, str] = {}  # the id of the capture to stop, by rank
        self._withdrawn = False

    def begin(self) -> None:
        """Write the request."""
        self._began_ns = self._clock.monotonic_ns()
        request = self.request
        if request.stop:
            for rank, status in self._folder.statuses().items():
                capture = status.capture if request.selects(rank) and not is_gone(status) else None
                if capture is not None and capture.state.in_force:
                    self._stopping[rank] = capture.id
        elif request.expires is None and request.start_batch is None and request.start_time is None:
            expires = self._clock.wall_ns() / 1e9 + self._timeout_ns / 1e9 + _START_MARGIN_S
            self.request = dataclasses.replace(request, expires=expires)
        self._folder.write_request(self.request)

    def poll(self) -> None:
        """Read the status of the ranks. Write the common start when every rank has answered or is lost."""
        now_ns = self._clock.monotonic_ns()
        statuses = self._folder.statuses()
        for rank in self._expected(statuses):
            if rank not in self.ranks:
                self.ranks[rank] = RankView(rank, self._stopping.get(rank, self.request.id), self._began_ns)
            self._update(self.ranks[rank], statuses.get(rank), now_ns)
        for view in self.ranks.values():
            self._judge(view, now_ns)
        if not (self.request.has_start or self.request.stop or self._withdrawn):
            self._decide(now_ns)
        if self.request.stop and not self._stopping:
            self.finished = True
        elif self.ranks:
            self.finished = all(view.is_over for view in self.ranks.values())
        else:
            self.finished = now_ns - self._began_ns > self._timeout_ns

    def stop(self, ranks: tuple[int, ...] | None = None) -> None:
        """Ask some ranks, or all selected ones, to stop; poll on to get their files."""
        self._withdrawn = True
        self._folder.write_request(
            Request(id=new_id(), stop=True, ranks=self.request.ranks if ranks is None else ranks)
        )

    def stop_lost_ranks(self) -> None:
        """Ask lost ranks to stop, so that they do not start when nobody waits for them."""
        lost = tuple(rank for rank, view in self.ranks.items() if view.lost is not None)
        if lost and not self._withdrawn and not self.request.stop:
            self.stop(lost)

    # ---- the ranks ----------------------------------------------------------------------------------------------------

    def _expected(self, statuses: dict[int, RankStatus]) -> list[int]:
        """Return the selected ranks, as far as they are known."""
        if self.request.stop:
            return sorted(self._stopping)
        if self.request.ranks is not None:
            return list(self.request.ranks)
        views = [RankView(rank, self.request.id, 0, status=status) for rank, status in statuses.items()]
        answered = [view.status for view in views if view.status and (view.capture or view.refusal)]
        # An earlier run may have left files of more ranks than this run has.
        known = answered or [status for status in statuses.values() if status.listening and not is_gone(status)]
        world_size = max((status.world_size for status in known), default=0)
        return sorted({rank for rank in statuses if rank < world_size}.union(range(min(world_size, _MAX_ABSENT))))

    def _update(self, view: RankView, status: RankStatus | None, now_ns: int) -> None:
        before = view.status
        if status is None or (before is not None and (before.updates, before.pid) == (status.updates, status.pid)):
            return
        if before is not None and before.pid != status.pid and view.capture is not None:
            view.lost, view.is_silent = view.lost or "it was started again", False
            return
        is_saving = status.capture is not None and status.capture.state is CaptureState.SAVING
        progress = (status.batch, status.capture, status.refused)
        if is_saving or before is None or (before.batch, before.capture, before.refused) != progress:
            view.seen_ns = now_ns
        view.status, view.batch_ns = status, now_ns

    def _judge(self, view: RankView, now_ns: int) -> None:
        """Give up a rank that has ended or is silent; take back a silent rank that goes on."""
        status = view.status
        if view.has_ended:
            view.lost = None
        elif self._withdrawn and view.capture is None:
            self._lose(view, "it has not answered", is_silent=True)
        elif status is not None and not status.listening:
            self._lose(view, "it has ended")
        elif status is not None and is_gone(status):
            self._lose(view, "its process has died")
        else:
            step_s = 0.0 if status is None else status.step_seconds or 0.0
            timeout_ns = max(self._timeout_ns, round(_GRACE_STEPS * step_s * 1e9))
            if now_ns - view.seen_ns > timeout_ns and not self._waits_for_time(view):
                what = "answered" if view.capture is None else "passed to another batch"
                self._lose(view, f"it has not {what} for {timeout_ns / 1e9:g} s", is_silent=True)
            elif view.is_silent:
                view.lost, view.is_silent = None, False

    def _lose(self, view: RankView, reason: str, *, is_silent: bool = False) -> None:
        if view.lost is None:
            view.lost, view.is_silent = reason, is_silent

    def _waits_for_time(self, view: RankView) -> bool:
        start_time = self.request.start_time
        is_waiting = view.capture is not None and view.capture.state is CaptureState.WAITING
        if not is_waiting or start_time is None or self._clock.wall_ns() >= start_time * 1e9:
            return False
        view.seen_ns = self._clock.monotonic_ns()
        return True

    def _decide(self, now_ns: int) -> None:
        """Write the request again with a common start, if every rank has answered or is lost."""
        ready = []
        for view in self.ranks.values():
            if view.capture is not None and view.capture.state is CaptureState.ACKNOWLEDGED and view.lost is None:
                ready.append(view)
            elif not view.is_over:
                return
        if ready:
            wall_ns = self._clock.wall_ns()
            expires = wall_ns / 1e9 + max(self._timeout_ns / 1e9, _MIN_EXPIRY_S)
            self.request = dataclasses.replace(common_start(self.request, ready, now_ns, wall_ns), expires=expires)
            self._folder.write_request(self.request)


def common_start(request: Request, ranks: list[RankView], now_ns: int, wall_ns: int) -> Request:
    """Return the request with a start that lies ahead of every rank when the rank reads it.

    The start is a batch, or a time if the batches of the ranks are far apart. Every rank must have a status.
    """
    known = [(view.status, view.batch_ns) for view in ranks if view.status is not None]
    lead_s = _LEAD_S + 2 * max(status.look_seconds for status, _ in known)
    earliest, batches, warmup, slowest_s = 0, [], 0, 0.0
    for status, batch_ns in known:
        step_s = status.step_seconds or math.inf  # a rank that has not finished a batch stays in it
        age_s = (now_ns - batch_ns) / 1e9 + status.look_seconds
        earliest = max(earliest, status.batch + math.ceil((age_s + lead_s) / step_s * _SAFETY) + 1)
        batches.append(status.batch + age_s / step_s)
        slowest_s = max(slowest_s, status.step_seconds or 0.0)
        warmup = max(warmup, 0 if status.capture is None else status.capture.warmup)
    if (max(batches) - min(batches)) * slowest_s > _MAX_SPREAD_S + _GRACE_STEPS * slowest_s:
        return dataclasses.replace(request, start_time=wall_ns / 1e9 + lead_s)
    return dataclasses.replace(request, start_batch=earliest + warmup)


def fit_request(folder: ControlFolder, request: Request) -> Request:
    """Return a request as it fits a run: without the round for a common start if it is for one rank.

    Raises:
        ConfigError: It names ranks that the run does not have.
        TracekitError: No rank can serve it: nobody listens, or ranks are in a capture already.
    """
    listening = {rank: status for rank, status in folder.statuses().items() if status.listening and not is_gone(status)}
    if not listening:
        raise TracekitError(f"{folder.path}: no rank listens here any more; the run has ended")
    busy = [
        rank
        for rank, status in sorted(listening.items())
        if request.selects(rank) and status.capture is not None and status.capture.state.in_force
        if status.capture.state is not CaptureState.ACKNOWLEDGED
    ]
    if busy:
        raise TracekitError(
            f"{rank_spans(busy)} {'is' if len(busy) == 1 else 'are'} in a capture already; wait for it, or end it with "
            f"tracekit capture --stop {shlex.quote(str(folder.path))}"
        )
    size = max(status.world_size for status in listening.values())
    beyond = [rank for rank in request.ranks or () if rank >= size]
    if beyond:
        raise ConfigError(f"there is no {rank_spans(beyond)}; the run has {counted(size, 'rank')}")
    alone = size == 1 or (request.ranks is not None and len(request.ranks) == 1)
    return dataclasses.replace(request, together=request.together and not alone)


def progress_words(coordinator: CaptureCoordinator) -> str:
    """Return the number of ranks in each state: "2 recording, 1 done"."""
    states = Counter(
        "lost" if view.lost is not None else "asked" if view.capture is None else view.capture.state.value
        for view in coordinator.ranks.values()
    )
    return ", ".join(f"{count:,} {state}" for state, count in states.items())


def results_of(coordinator: CaptureCoordinator) -> list[dict[str, Any]]:
    """Return the result of each rank for JSON, ordered by rank."""
    return [_result_of(coordinator.ranks[rank]) for rank in sorted(coordinator.ranks)]


def _result_of(view: RankView) -> dict[str, Any]:
    capture, refusal = view.capture, view.refusal
    return {
        "rank": view.rank,
        "state": "refused" if refusal is not None else None if capture is None else capture.state.value,
        "first_batch": None if capture is None else capture.first_batch,
        "last_batch": None if capture is None else capture.last_batch,
        "late_batches": 0 if capture is None else capture.late_batches,
        "note": refusal or view.lost or (None if capture is None else capture.note),
        "files": [] if capture is None else list(capture.files),
    }


def result_lines(results: Iterable[dict[str, Any]]) -> list[str]:
    """Return the results as text, with one line for all ranks with the same result."""
    alike: dict[str, list[int]] = {}
    for result in results:
        alike.setdefault(_result_line(result), []).append(result["rank"])
    return [f"{rank_spans(ranks)}: {line}" for line, ranks in alike.items()]


def _result_line(result: dict[str, Any]) -> str:
    first, last, late = result["first_batch"], result["last_batch"], result["late_batches"]
    if result["state"] is None:
        return result["note"] or "has not answered"
    parts = [result["state"]]
    if result["state"] == CaptureState.DONE:
        parts = [f"batch {first}" if first == last else f"batches {first} to {last}"]
    elif first is not None:
        parts.append(f"from batch {first} on")
    if late:
        parts.append(f"{late} batch{'' if late == 1 else 'es'} late")
    if result["note"]:
        parts.append(result["note"])
    return ", ".join(parts)
