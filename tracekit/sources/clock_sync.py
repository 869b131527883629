"""ClockSync: compares this rank's clock with rank 0's, over the store of torch.distributed."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracekit.arguments import check_seconds
from tracekit.clock import ClockOffset
from tracekit.distributed import torch_process_group
from tracekit.notices import WarnOnce
from tracekit.recording.source import Source
from tracekit.sources.clock_exchange import Answering, Drift, default_store, measure, own_connection, reachable
from tracekit.wording import rank_spans

if TYPE_CHECKING:
    from tracekit.recording.schedule import ProfilerAction
    from tracekit.recording.source import Recorder

logger = logging.getLogger("tracekit")
LOOK_S: Final = 0.1  # interval at which rank 0 checks for requests; a check takes 0.13 ms
FIRST_RETRY_S: Final = 1.0
# Minimum interval per rank. An exchange takes rank 0 about 3 ms, so that it spends at most 6 % of one core.
RANK_SECONDS: Final = 0.05
TELL_AFTER: Final = 5
# A rank that ends within this time after rank 0 logs no warning: the ranks of a run do not end at the same moment
PARTING_S: Final = 5.0
JOIN_SECONDS: Final = 2.0
_TROUBLE: Final = "trouble"  # subject of all warnings of a recording's exchange, of which only the first is logged


class ClockSync(Source):
    """Measures the offset of this rank's clock to rank 0's, at the start and at intervals.

    Every rank with a ClockSync asks rank 0 in turn. The trace handlers receive the result as a `ClockOffset`, and the rank
    trace has it as metadata: the offset, a strict bound of its error (half the shortest of at least 8 round trips), and the
    drift, from the second measurement on. The merge uses it; it does not shift recorded times. Ranks of one host and boot
    share a clock: their offset is 0, within the bound.

    The work runs on a daemon thread, "tracekit-clock-sync". Training never waits for it: neither at the start, nor for a rank
    that is missing, hangs or has died, which is logged once. If ``init_process_group`` is called later, the thread waits for
    it. It does nothing in a run of one rank.

    It uses the store of torch's default process group (the store at ``MASTER_ADDR``), through a separate connection, and no
    collectives. A round trip takes 129 to 191 µs between two processes on one 2-core machine (bound 64 to 96 µs). If the
    training threads hold the interpreter lock all the time, it takes 10 ms and more (bound 5 ms); then more are tried.

    The ranks must all use it, but need no common arguments. Only one can run in a process, and none in a forked child.

    Args:
        interval: Seconds between two measurements, above 0; in runs of more than ``20 * interval`` ranks it is longer.

    Raises:
        ConfigError: ``interval`` is not a number above 0.
    """

    steps_on_change = True

    def __init__(self, interval: float = 60.0) -> None:
        check_seconds("ClockSync: interval", interval)
        self._interval_s = float(interval)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._pid = -1
        self._warn = WarnOnce("tracekit: ClockSync: ")

    def open(self, recorder: Recorder, action: ProfilerAction) -> None:
        """Start the thread."""
        self._pid = os.getpid()
        self._closing = threading.Event()  # a new one: a thread that was left behind keeps its own
        self._warn = WarnOnce("tracekit: ClockSync: ")
        args = recorder, self._closing
        self._thread = threading.Thread(target=self._run, args=args, name="tracekit-clock-sync", daemon=True)
        self._thread.start()

    def step(self, finished: ProfilerAction, action: ProfilerAction) -> None:
        """Do nothing: clocks drift even while the schedule skips batches."""

    def close(self) -> None:
        """Stop the thread, and wait for it for two seconds at most."""
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._pid:
            # A forked child has no such thread, and the event may have been forked with its lock held.
            return
        self._closing.set()
        thread.join(JOIN_SECONDS)  # a daemon thread: if it waits for a rank that is gone, it ends by itself

    # ---- on the thread --------------------------------------------------------------------------------------------------

    def _run(self, recorder: Recorder, closing: threading.Event) -> None:
        try:
            torch = self._process_group(closing)
            if torch is None or torch.get_world_size() < 2:
                return
            if torch.get_rank() == 0:
                self._answer(recorder, torch, closing)
            else:
                self._ask(recorder, torch, closing)
        except Exception as error:  # noqa: BLE001 - torch may raise any exception; training goes on
            if not closing.is_set() and torch_process_group() is not None:
                self._warn(_TROUBLE, f"clocks are not compared: {_first_line(error)}")

    def _process_group(self, closing: threading.Event) -> Any:
        """Wait for the default process group; return ``torch.distributed``, or None if the recording ends before."""
        while True:
            torch = torch_process_group()
            if torch is not None:
                return torch
            if closing.wait(LOOK_S):
                return None

    def _answer(self, recorder: Recorder, torch: Any, closing: threading.Event) -> None:
        """Answer the other ranks; runs on rank 0."""
        process, timeline = recorder.process, recorder.timeline
        store = own_connection(default_store(torch))
        answering = Answering(
            store,
            rank=process.rank,
            boot_id=process.boot_id,
            timeline_offset_ns=timeline.offset_ns,
            monotonic_ns=timeline.clock.monotonic_ns,
        )
        itself = ClockOffset(
            monotonic_ns=timeline.clock.monotonic_ns(),
            offset_ns=0,
            monotonic_offset_ns=0,
            error_ns=0,
            round_trips=0,
            reference_rank=process.rank,
            reference_boot_id=process.boot_id,
        )
        recorder.record_clock_offset(itself)
        world_size = torch.get_world_size()
        # The store ends with the process group. Asking it then is harmless, but torch logs long messages.
        while not closing.wait(LOOK_S) and torch_process_group() is not None:
            while answering.waiting() and not closing.is_set():
                try:
                    answering.answer()
                except Exception as error:  # noqa: BLE001 - that rank is gone; the others go on
                    if torch_process_group() is None or not reachable(store):
                        return
                    self._warn(_TROUBLE, f"a rank went away while its clock was compared: {_first_line(error)}")
        if torch_process_group() is not None:
            answering.leave()
        if missing := set(range(1, world_size)) - answering.ranks:
            logger.warning("tracekit: ClockSync: no clock was compared with that of %s", rank_spans(missing, most=10))

    def _ask(self, recorder: Recorder, torch: Any, closing: threading.Event) -> None:
        """Ask rank 0 at intervals; runs on the other ranks."""
        timeline, rank = recorder.timeline, torch.get_rank()
        store = own_connection(default_store(torch))
        exchange = partial(
            measure,
            store,
            rank=rank,
            timeline_offset_ns=timeline.offset_ns,
            monotonic_ns=timeline.clock.monotonic_ns,
            pause=closing.wait,
        )
        interval_s = max(self._interval_s, RANK_SECONDS * torch.get_world_size())
        drift = Drift()
        unanswered = 0
        # Spread the first requests of a large run.
        pause_s = min(rank * RANK_SECONDS / 10, interval_s)
        while not closing.wait(pause_s) and torch_process_group() is not None:
            offset, reason = None, "it has no ClockSync, or is not so far yet"
            try:
                offset = exchange()
            except Exception as error:  # noqa: BLE001 - rank 0 is gone, or only slow
                if closing.is_set() or torch_process_group() is None:
                    return
                reason = _first_line(error)
                if not reachable(store):
                    # At the end of a run, rank 0 may end a moment before this rank.
                    if not closing.wait(PARTING_S) and torch_process_group() is not None:
                        self._warn(_TROUBLE, f"rank 0 is gone, clocks are compared no more: {reason}")
                    return
            if offset is not None:
                recorder.record_clock_offset(drift.add(offset))
                unanswered, pause_s = 0, interval_s
                continue
            if closing.is_set():
                return
            unanswered += 1
            pause_s = min(FIRST_RETRY_S * 2 ** (unanswered - 1), interval_s)
            if unanswered == TELL_AFTER:
                self._warn(_TROUBLE, f"rank 0 does not answer ({reason}); it is asked again every {pause_s:g} s")


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of torch; a C++ stack may follow it."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
