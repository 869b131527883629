"""Drive: presses the button, finds a common start, and watches until every rank is done."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.capture.documents import CaptureState, CaptureStatus, RankStatus, Request, new_id
from tracekit.capture.folder import machine
from tracekit.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from tracekit.capture.folder import ControlFolder

__all__ = ["Drive", "RankView", "common_start", "is_gone"]

_LEAD_S: Final = 0.5
"""What a start lies ahead beyond the time in which every rank has looked at its folder twice."""

_SAFETY: Final = 1.25
_LARGEST_SPREAD_S: Final = 10.0
_GRACE_STEPS: Final = 3
_LEAST_EXPIRY_S: Final = 60.0

_UNTOLD_S: Final = 10.0
"""How much longer ranks wait for the start than silent ones are waited for: it is said when those are given up."""

_MOST_ABSENT: Final = 10_000
"""Of ranks that have said nothing, those below this number are waited for: one that says of how many it is may be wrong."""


@dataclass(slots=True)
class RankView:
    """What is known of one rank.

    Attributes:
        rank: Which.
        status: What it has said last; None when it has said nothing.
        seen_ns: When it was seen to get on, on this process's monotonic clock.
        batch_ns: When its batch was read, likewise.
        lost: Why it is waited for no more; None as long as it is.
    """

    rank: int
    seen_ns: int
    status: RankStatus | None = None
    batch_ns: int = 0
    lost: str | None = None

    def capture(self, request_id: str | None) -> CaptureStatus | None:
        """Return what it says about a request; None about another one. ``None`` asks for whatever it captures."""
        found = None if self.status is None else self.status.capture
        return found if found is not None and request_id in (None, found.id) else None


class Drive:
    """One press of the button: `begin` writes the request, then `look` every now and then until it is `finished`.

    Not thread-safe; each method may wait for the file system.

    Args:
        folder: The control folder.
        request: What is wanted.
        timeout_s: How long a rank may do nothing - not answer, not pass to another batch or state - before it is lost. A
            rank whose batches take longer is given three of them.
        clock: The clocks to read.

    Attributes:
        request: What was written last: the request, then the same with its common start.
        ranks: What is known of each rank that is meant, once it is known which there are.
        finished: Whether every rank is done, or waited for no more.
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
        self._targets: dict[int, str] = {}  # of a stop: which captures are waited for
        self._withdrawn = False

    def begin(self) -> None:
        """Write the request.

        Raises:
            OSError: It cannot be written, or the folder cannot be read.
        """
        self._began_ns = self._clock.monotonic_ns()
        if self.request.stop:
            for rank, status in self._folder.statuses().items():
                running = status.capture is not None and status.capture.in_force and not is_gone(status)
                if running and status.capture is not None and self.request.selects(rank):
                    self._targets[rank] = status.capture.id
        elif self.request.expires is None and not _far_ahead(self.request):
            expires = self._clock.wall_ns() / 1e9 + self._timeout_ns / 1e9 + _UNTOLD_S
            self.request = dataclasses.replace(self.request, expires=expires)
        self._folder.write_request(self.request)

    def look(self) -> None:
        """Read what the ranks say; decide on the common start when it is time.

        Raises:
            OSError: The folder cannot be read or written.
        """
        now_ns = self._clock.monotonic_ns()
        statuses = self._folder.statuses()
        for rank in self._expected(statuses):
            view = self.ranks.setdefault(rank, RankView(rank, self._began_ns))
            self._update(view, statuses.get(rank), now_ns)
        for view in self.ranks.values():
            self._judge(view, now_ns)
        if not (self.request.decided or self.request.stop or self._withdrawn):
            self._decide(now_ns)
        nobody = not self.ranks and now_ns - self._began_ns > self._timeout_ns
        self.finished = nobody or (bool(self.ranks) and all(self._is_over(view) for view in self.ranks.values()))
        if self.request.stop and not self._targets:
            self.finished = True

    def stop(self, ranks: tuple[int, ...] | None = None) -> None:
        """Ask the ranks that have not finished to stop; go on looking to see what they have written.

        Args:
            ranks: Which; None is all that were asked to capture.

        Raises:
            OSError: The request cannot be written.
        """
        chosen = self.request.ranks if ranks is None else ranks
        self._withdrawn = True
        self._folder.write_request(Request(id=new_id(), stop=True, ranks=chosen))

    def capture_of(self, view: RankView) -> CaptureStatus | None:
        """Return what a rank says about this request."""
        return view.capture(self._targets.get(view.rank) if self.request.stop else self.request.id)

    def refusal_of(self, view: RankView) -> str | None:
        """Return why a rank has refused this request; None when it has not."""
        refused = None if view.status is None else view.status.refused
        return refused[1] if refused is not None and refused[0] == self.request.id else None

    def is_done(self, view: RankView) -> bool:
        """Tell whether a rank has recorded and saved what was asked for."""
        capture = self.capture_of(view)
        return capture is not None and capture.state == CaptureState.DONE

    # ---- the ranks ----------------------------------------------------------------------------------------------------

    def _expected(self, statuses: dict[int, RankStatus]) -> list[int]:
        """Return the ranks that are meant, as far as is known."""
        if self.request.stop:
            return sorted(self._targets)
        if self.request.ranks is not None:
            return list(self.request.ranks)
        answered = [status for status in statuses.values() if self._has_answered(status)]
        # Of an earlier run there may be files of more ranks than this run has.
        told = answered or [status for status in statuses.values() if status.listening and not is_gone(status)]
        world_size = max((status.world_size for status in told), default=0)
        known = {rank for rank in statuses if rank < world_size}
        return sorted(known.union(range(min(world_size, _MOST_ABSENT))))

    def _has_answered(self, status: RankStatus) -> bool:
        of_capture = status.capture is not None and status.capture.id == self.request.id
        return of_capture or (status.refused is not None and status.refused[0] == self.request.id)

    def _update(self, view: RankView, status: RankStatus | None, now_ns: int) -> None:
        before = view.status
        if status is None or (before is not None and before.updates == status.updates and before.pid == status.pid):
            return
        if before is not None and before.pid != status.pid and self.capture_of(view) is not None:
            view.lost = view.lost or "it was started again"
            return
        saves = status.capture is not None and status.capture.state == CaptureState.SAVING
        if (
            saves
            or before is None
            or (before.batch, before.capture, before.refused)
            != (
                status.batch,
                status.capture,
                status.refused,
            )
        ):
            view.seen_ns = now_ns
        view.status, view.batch_ns = status, now_ns

    def _judge(self, view: RankView, now_ns: int) -> None:
        """Give up a rank that has ended or does nothing; take it back when it has only been slow."""
        status = view.status
        if self._is_final(view):
            view.lost = None
        elif self._withdrawn and self.capture_of(view) is None:
            view.lost = view.lost or "it has not answered"
        elif status is not None and (not status.listening or is_gone(status)):
            view.lost = view.lost or ("it has ended" if not status.listening else "its process has died")
        else:
            patience_ns = self._timeout_ns
            if status is not None and status.step_seconds:
                patience_ns = max(patience_ns, round(_GRACE_STEPS * status.step_seconds * 1e9))
            if now_ns - view.seen_ns <= patience_ns or self._waits_for_time(view):
                if view.lost is not None and view.lost.startswith("it has not"):
                    view.lost = None
            elif view.lost is None:
                answered = self.capture_of(view) is not None
                what = "passed to another batch" if answered else "answered"
                view.lost = f"it has not {what} for {patience_ns / 1e9:g} s"

    def _waits_for_time(self, view: RankView) -> bool:
        capture, start_time = self.capture_of(view), self.request.start_time
        if capture is None or capture.state != CaptureState.WAITING or start_time is None:
            return False
        if self._clock.wall_ns() < start_time * 1e9:
            view.seen_ns = self._clock.monotonic_ns()
            return True
        return False

    def _is_final(self, view: RankView) -> bool:
        capture = self.capture_of(view)
        return self.refusal_of(view) is not None or (capture is not None and not capture.in_force)

    def _is_over(self, view: RankView) -> bool:
        return view.lost is not None or self._is_final(view)

    # ---- the common start ---------------------------------------------------------------------------------------------

    def _decide(self, now_ns: int) -> None:
        """Write the request again, with a start, when every rank has answered that will."""
        waiting = []
        for view in self.ranks.values():
            capture = self.capture_of(view)
            if capture is not None and capture.state == CaptureState.ACKNOWLEDGED and view.lost is None:
                waiting.append(view)
            elif not self._is_over(view):
                return
        if not waiting:
            return
        wall_ns = self._clock.wall_ns()
        decided = common_start(self.request, waiting, now_ns, wall_ns)
        expires = wall_ns / 1e9 + max(self._timeout_ns / 1e9, _LEAST_EXPIRY_S)
        self.request = dataclasses.replace(decided, expires=expires)
        self._folder.write_request(self.request)


def common_start(request: Request, ranks: list[RankView], now_ns: int, wall_ns: int) -> Request:
    """Return a request with a start that lies ahead of every rank when it reads of it.

    That is a batch; or a time, where the batches of the ranks are far apart.

    Args:
        request: The request, without one.
        ranks: The ranks, each with a status.
        now_ns: The monotonic time, of the same clock as their ``batch_ns``.
        wall_ns: The time.
    """
    earliest, batches, warmup, lead_s, slowest_s = 0, [], 0, _LEAD_S, 0.0
    for view in ranks:
        assert view.status is not None
        lead_s = max(lead_s, _LEAD_S + 2 * view.status.look_seconds)
    for view in ranks:
        assert view.status is not None
        status, step_s = view.status, view.status.step_seconds or 0.0
        age_s = (now_ns - view.batch_ns) / 1e9 + status.look_seconds
        now_at = status.batch + (age_s / step_s if step_s else 0.0)
        then_at = now_at + (lead_s / step_s if step_s else 0.0)
        earliest = max(earliest, status.batch + math.ceil((then_at - status.batch) * _SAFETY) + 1)
        batches.append(now_at)
        slowest_s = max(slowest_s, step_s)
        warmup = max(warmup, 0 if status.capture is None else status.capture.warmup)
    spread_s = (max(batches) - min(batches)) * slowest_s
    if spread_s > _LARGEST_SPREAD_S + _GRACE_STEPS * slowest_s:
        return dataclasses.replace(request, start_time=wall_ns / 1e9 + lead_s)
    return dataclasses.replace(request, start_batch=earliest + warmup)


def is_gone(status: RankStatus) -> bool:
    """Tell whether the process of a rank is known to have ended; on other machines it is not known."""
    if status.machine is None or status.machine != machine():
        return False
    try:
        text = Path(f"/proc/{status.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["Z"]  # dead, and its parent has not looked yet


def _far_ahead(request: Request) -> bool:
    """Tell whether it names a start itself, which may be hours from now: then only who is running now is meant."""
    return request.start_batch is not None or request.start_time is not None
