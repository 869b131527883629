"""CaptureCoordinator: sends a request to the ranks, finds a common start, and follows every rank to its end."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.capture.control_folder import CaptureState, CaptureStatus, RankStatus, Request, listens
from tracekit.clock import SYSTEM_CLOCK, Clock
from tracekit.errors import ConfigError, TracekitError
from tracekit.wording import counted, rank_spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.capture.control_folder import ControlFolder

_PAUSE_S: Final = 0.1
_LEAD_S: Final = 0.5  # from the moment when every rank has polled its folder twice to a common start
_SAFETY: Final = 1.25
_MAX_SPREAD_S: Final = 10.0
_GRACE_STEPS: Final = 3
_MIN_EXPIRY_S: Final = 60.0
_START_MARGIN_S: Final = 10.0  # ranks wait longer for the start than the coordinator waits for silent ranks
_MAX_ABSENT: Final = 10_000  # wait for ranks without a status below this number only: a world size may be wrong
_ENDED: Final = ("refused", CaptureState.CANCELLED, CaptureState.DONE)
_BUSY: Final = (CaptureState.WAITING, CaptureState.RECORDING, CaptureState.SAVING)
_NO_STATUS: Final = RankStatus(rank=0, world_size=1, pid=0)


@dataclass(slots=True)
class RankView:
    """The knowledge of one rank."""

    request_id: str  # of the capture that the rank is asked about
    seen_ns: int = 0  # monotonic time of its last progress
    status: RankStatus = _NO_STATUS
    status_ns: int = 0  # monotonic time of its last status
    lost: str | None = None  # the reason if nobody waits for the rank any more
    is_replaced: bool = False  # another request has replaced this one, which had no start yet

    @property
    def capture(self) -> CaptureStatus | None:
        """The capture, once the rank has accepted it."""
        capture = self.status.capture
        return capture if capture is not None and capture.id == self.request_id else None

    @property
    def refusal(self) -> str | None:
        """The reason of the rank to refuse the request; None if it has not refused."""
        refused = self.status.refused
        return refused[1] if refused is not None and refused[0] == self.request_id else None

    @property
    def state(self) -> str | None:
        """The state of the capture, or "refused"; None without an answer."""
        return "refused" if self.refusal is not None else None if self.capture is None else self.capture.state.value

    def update(self, status: RankStatus, now_ns: int) -> None:
        """Store the status of the rank until it has ended the capture.

        Ignore another process that has taken its place during the capture.
        """
        if self.state in _ENDED:
            return  # from now on it may serve other requests
        before = self.status
        is_same = before.pid == status.pid
        if (is_same and before.updates == status.updates) or (not is_same and self.capture is not None):
            return
        is_saving = status.capture is not None and status.capture.state is CaptureState.SAVING
        progress, made = ((one.pid, one.batch, one.capture, one.refused) for one in (status, before))
        if is_saving or progress != made:
            self.seen_ns = now_ns
        was_accepted = self.capture is not None
        self.status, self.status_ns = status, now_ns
        self.is_replaced = self.capture is None and (was_accepted or self.is_replaced)


class CaptureCoordinator:
    """Serves one request: call `begin`, then `poll` regularly until it is ``finished``: every rank is done or lost.

    Not thread-safe. Each method may wait for the file system, and raise OSError or StorageError. A rank is lost after
    ``timeout_s`` without an answer, a new batch or a new state; one with longer batches gets the time of three batches.
    ``request`` has its common start once that is known.
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
        self._withdrawn = False
        self.pause_s = _PAUSE_S

    def begin(self) -> None:
        """Write the request."""
        self._began_ns = self._clock.monotonic_ns()
        request = self.request
        if request.stop:
            for rank, status in self._folder.statuses().items():
                capture = status.capture if request.selects(rank) and listens(status) else None
                if capture is not None and capture.state.in_force:
                    self.ranks[rank] = RankView(capture.id, self._began_ns)
        elif request.expires is None and request.start_batch is None and request.start_time is None:
            expires = self._clock.wall_ns() / 1e9 + self._timeout_ns / 1e9 + _START_MARGIN_S
            self.request = dataclasses.replace(request, expires=expires)
        self._folder.write(self.request)

    def poll(self) -> None:
        """Read the status of the ranks. Write the common start when every rank has answered or is lost.

        Wait for ``pause_s`` before the next call: longer for a folder that is slow to read.
        """
        now_ns = self._clock.monotonic_ns()
        self._poll(now_ns)
        self.pause_s = _PAUSE_S + 2 * (self._clock.monotonic_ns() - now_ns) / 1e9

    def _poll(self, now_ns: int) -> None:
        statuses = self._folder.statuses()
        for rank in self._expected(statuses):
            self.ranks.setdefault(rank, RankView(self.request.id, self._began_ns))
        for rank, view in self.ranks.items():
            status = statuses.get(rank, view.status)
            view.update(status, now_ns)
            view.lost = self._reason_lost(view, now_ns, is_restarted=status.pid != view.status.pid)
        waited_for = [view for view in self.ranks.values() if view.state not in _ENDED and view.lost is None]
        answered = [view for view in waited_for if view.state == CaptureState.ACKNOWLEDGED]
        is_open = not (self.request.has_start or self.request.stop or self._withdrawn)
        if is_open and answered and answered == waited_for:
            wall_ns = self._clock.wall_ns()
            expires = wall_ns / 1e9 + max(self._timeout_ns / 1e9, _MIN_EXPIRY_S)
            request = common_start(self.request, answered, now_ns, wall_ns)
            self.request = dataclasses.replace(request, expires=expires)
            self._folder.write(self.request)
        is_early = not self.ranks and not self.request.stop and now_ns - self._began_ns <= self._timeout_ns
        self.finished = not waited_for and not is_early
        lost = tuple(rank for rank, view in self.ranks.items() if view.lost is not None)
        if self.finished and lost and not self._withdrawn and not self.request.stop:
            self._withdrawn = True
            if self._folder.holds(self.request):
                self._folder.write(Request(stop=True, ranks=lost))  # they must not start when nobody waits for them

    def stop(self) -> None:
        """Ask all selected ranks to stop, except those that serve another request; poll on to get their files."""
        self._withdrawn = True
        if self._folder.holds(self.request):
            self._folder.write(Request(stop=True, ranks=self.request.ranks))
        elif ours := tuple(rank for rank, view in self.ranks.items() if view.capture and view.capture.state.in_force):
            self._folder.write(Request(stop=True, ranks=ours))

    def _expected(self, statuses: dict[int, RankStatus]) -> list[int]:
        """Return the selected ranks, as far as they are known."""
        if self.request.stop:
            return sorted(self.ranks)
        if self.request.ranks is not None:
            return sorted(set(self.request.ranks))
        views = [RankView(self.request.id, status=status) for status in statuses.values()]
        # An earlier run may have left files of more ranks than this run has.
        known = [view.status for view in views if view.state] or list(filter(listens, statuses.values()))
        world_size = max((status.world_size for status in known), default=0)
        return sorted({rank for rank in statuses if rank < world_size}.union(range(min(world_size, _MAX_ABSENT))))

    def _reason_lost(self, view: RankView, now_ns: int, *, is_restarted: bool) -> str | None:
        """Return why nobody waits for a rank that has not ended the capture, or None."""
        capture, start_time = view.capture, self.request.start_time
        if view.state in _ENDED:
            return None
        if is_restarted:
            return "it was started again"
        if view.is_replaced:
            return "another request has replaced this one"
        if self._withdrawn and capture is None:
            return "it has not answered"
        if not listens(view.status):
            return "its process has died" if view.status.listening else "it has ended"
        timeout_ns = max(self._timeout_ns, round(_GRACE_STEPS * (view.status.step_seconds or 0.0) * 1e9))
        waited_ns = now_ns - view.seen_ns
        if capture is not None and capture.state is CaptureState.WAITING and start_time is not None:
            waited_ns = min(waited_ns, self._clock.wall_ns() - round(start_time * 1e9))
        if waited_ns <= timeout_ns:
            return None
        return f"it has not {'passed to another batch' if capture else 'answered'} for {timeout_ns / 1e9:g} s"


def common_start(request: Request, ranks: list[RankView], now_ns: int, wall_ns: int) -> Request:
    """Return the request with a start that lies ahead of every rank when the rank reads it.

    The start is a batch, or a time if the batches of the ranks are far apart. Every rank has accepted the request.
    """
    lead_s = _LEAD_S + 2 * max(view.status.look_seconds for view in ranks)
    slowest_s = max(view.status.step_seconds or 0.0 for view in ranks)
    earliest, batches, warmup = 0, [], 0
    for view in ranks:
        status = view.status
        step_s = status.step_seconds or math.inf  # a rank that has not finished a batch stays in it
        age_s = (now_ns - view.status_ns) / 1e9 + status.look_seconds
        earliest = max(earliest, status.batch + math.ceil((age_s + lead_s) / step_s * _SAFETY) + 1)
        batches.append(status.batch + age_s / step_s)
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
    listening = {rank: status for rank, status in folder.statuses().items() if listens(status)}
    if not listening:
        raise TracekitError(f"{folder.path}: no rank listens here any more; the run has ended")
    asked = [(rank, status.capture) for rank, status in sorted(listening.items()) if request.selects(rank)]
    busy = [rank for rank, capture in asked if capture is not None and capture.state in _BUSY]
    if busy:
        raise TracekitError(
            f"{rank_spans(busy)} {'is' if len(busy) == 1 else 'are'} in a capture already; wait for it, or end it with "
            f"tracekit capture --stop {shlex.quote(str(folder.path))}"
        )
    size = max(status.world_size for status in listening.values())
    chosen = set(request.ranks or ())
    beyond = [rank for rank in chosen if rank >= size]
    if beyond:
        raise ConfigError(f"there is no {rank_spans(beyond)}; the run has {counted(size, 'rank')}")
    alone = size == 1 or len(chosen) == 1
    return dataclasses.replace(request, together=request.together and not alone)


def progress_words(coordinator: CaptureCoordinator) -> str:
    """Return the number of ranks in each state: "2 recording, 1 done"."""
    states = Counter("lost" if view.lost else view.state or "asked" for view in coordinator.ranks.values())
    return ", ".join(f"{count:,} {state}" for state, count in states.items())


def results_of(coordinator: CaptureCoordinator) -> list[dict[str, Any]]:
    """Return the result of each rank for JSON, ordered by rank."""
    results = []
    for rank, view in sorted(coordinator.ranks.items()):
        capture = view.capture or CaptureStatus(id=view.request_id, state=CaptureState.WAITING)
        batches = {name: getattr(capture, name) for name in ("first_batch", "last_batch", "late_batches")}
        note = view.refusal or view.lost or capture.note
        results.append({"rank": rank, "state": view.state, **batches, "note": note, "files": list(capture.files)})
    return results


def result_lines(results: Iterable[dict[str, Any]]) -> list[str]:
    """Return the results as text, with one line for all ranks with the same result."""
    alike: dict[str, list[int]] = {}
    for result in results:
        state, first, last, late = (result[name] for name in ("state", "first_batch", "last_batch", "late_batches"))
        since = "" if first is None else f"from batch {first} on"
        if state == CaptureState.DONE:
            state, since = "", f"batch {first}" if first == last else f"batches {first} to {last}"
        lateness = f"{late} batch{'' if late == 1 else 'es'} late" if late else ""
        line = ", ".join(filter(None, (state, since, lateness, result["note"]))) or "has not answered"
        alike.setdefault(line, []).append(result["rank"])
    return [f"{rank_spans(ranks)}: {line}" for line, ranks in alike.items()]
