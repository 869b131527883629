"""Write a unit: its events as they come, then what only the last of them decides.

Which slices must leave their tracks is known when the unit has been read. The output of a small unit is held in memory until
then, and a plain file is patched in place. A packed or encoded output cannot be patched: as soon as slices are known to overlap,
its text is put aside in a file, patched there, and packed and encoded at the end. Where that does not help, because an earlier
event needs a patch or the disk is full, the unit is cut off and rewritten with the patches laid over its text. The bytes are the
same whichever way was taken.
"""

from __future__ import annotations

import contextlib
import os
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Final

from tracekit import core
from tracekit.errors import TraceFormatError
from tracekit.formats.decimal_time import format_us
from tracekit.formats.gzip_codec import packed
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.json.repair import without_final_backslash
from tracekit.formats.merged_head import CLOCK_CATEGORY, GAP_NAME, INPUT_EVENT, PROCESS_EVENT, clock_instant
from tracekit.formats.trace_event import UNSET, Raw, decode_json, decode_run, encode_json
from tracekit.merge.plan.plan import UnitResult
from tracekit.merge.plan.titles import metadata_event, name_events, process_title
from tracekit.merge.plan.tracks import UnitTracks
from tracekit.merge.rewrite.events import EventRewriter, has_lanes
from tracekit.merge.rewrite.rewriter import FLOWS, Rewriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.core import _merge
    from tracekit.formats.gzip_codec import GzipWriter
    from tracekit.merge.align.collective_sets import AddedEvent
    from tracekit.merge.plan.plan import Encoder, UnitInput, UnitJob
    from tracekit.merge.plan.titles import Process
    from tracekit.merge.rewrite.rewriter import AnyRewriter


_MORE: Final = 0
_ODD: Final = 1
_NEW: Final = 2
_TID: Final = b'"tid":'
_HELD_BYTES: Final = 4 << 20
"""The output of a unit is held in memory up to this size."""
_CLOCK_CATEGORY: Final = encode_json(CLOCK_CATEGORY)


class UnitRewriter:
    """Rewrites a unit. Iterate `steps` to its end, then call `finish`, then `closing`.

    Its result is complete after `closing`; the rewriter has the patches and `processes` their order after `finish`.
    """

    def __init__(self, job: UnitJob, folder: str, progress: Callable[[int, int], None] | None = None) -> None:
        self.result = UnitResult()
        self.rewriter: AnyRewriter = (
            Rewriter(folder, job.snap_ns) if core.merge is None else core.merge.Rewriter(GAP_NAME, folder, job.snap_ns)
        )
        self.tracks = UnitTracks(job.stride, job.inputs)
        self.processes: list[Process] = []
        self._job = job
        self._progress = progress

    def steps(self, number: int | None = None) -> Iterator[None]:
        """Rewrite piece by piece; after each, the output can be taken from the rewriter.

        With a number, rewrite only that input; to be called for all, in their order.
        """
        for item in self._own(number):
            yield from self._input(item)

    def patched(self, first: UnitRewriter) -> Iterator[tuple[int, bytes]]:
        """Rewrite the unit again, with the patches of the first time laid over its text.

        Yield the number of an input, and some of its events.
        """
        position = 0
        for item in self._job.inputs:
            for _ in self.steps(item.number):
                text = self.rewriter.take()
                yield item.number, first.rewriter.lay(text, position)
                position += len(text)

    def finish(self) -> int:
        """Find the slices that must leave their tracks; return how many patches there are, or 1 for more."""
        found, tracks = self.result, self.tracks
        found.moved, lost, found.snapped, found.largest_snap_ns = self.rewriter.finish(tracks.allot, tracks.is_gpu)
        if lost:
            result = found.inputs[self._job.inputs[-1].number]
            result.dropped["end_without_begin"] += lost
            result.written["E"] -= lost
        self.processes = tracks.settle()
        found.titles = tracks.passed_titles()
        for process in self.processes:
            process.place, process.labels = self._job.ranks.get(process.rank, (process.rank, ""))
            process.title = process_title(process)
            found.titles.setdefault(process.rank, []).append(process.title)
        return found.moved + lost + found.snapped

    def closing(self, *, names: bool = True, number: int | None = None) -> bytes:
        """Return the metadata events that follow the others, each with ``,`` and a line break behind it.

        Without ``names``, only the tables for a further merge; with a number, only those of that input.
        """
        events: list[bytes] = []
        slots: dict[int, int] = {}
        own = None if number is None else set(self.tracks.pids_of(number).values())
        for process in self.processes:
            if own is not None and process.pid not in own:
                continue
            slot = slots[process.rank] = slots.get(process.rank, -1) + 1
            events += name_events(process, slot) if names else []
            pid = process.pid
            events.append(metadata_event(PROCESS_EVENT.encode(), pid, pid, _process_table(process)))
        for rank, _, text in sorted(table for item in self._own(number) for table in item.tables):
            pid = rank * self._job.stride + 1
            events.append(metadata_event(INPUT_EVENT.encode(), pid, pid, text))
        self.result.added = len(events)
        return b",\n".join([*events, b""])

    def _own(self, number: int | None) -> list[UnitInput]:
        return [item for item in self._job.inputs if number in (None, item.number)]

    def _input(self, item: UnitInput) -> Iterator[None]:
        self.tracks.begin_input(item)
        events = EventRewriter(self.rewriter, self.tracks, item, self._job)
        result = self.result.inputs[item.number] = events.result
        try:
            with TraceReader(item.source.path, limit_bytes=item.source.stamp.limit_bytes) as reader:
                way = self._compiled if self._begin(item, events) else self._plain
                for _ in way(reader, events):
                    yield
                    if self._progress is not None:
                        self._progress(item.number, reader.bytes_read)
            events.finish()
            if item.added:
                self._add(item.added)
                for event in item.added:
                    result.written[event.phase] += 1
            result.clock_events = self._show_clocks(item)
            if result.clock_events:
                result.written["n"] += result.clock_events
            yield
        except (KeyError, ValueError, TraceFormatError) as error:
            raise item.source.changed() from error
        item.source.check_unchanged()
        result.repairs, result.drops, result.bytes_read = reader.repairs, reader.drops, reader.bytes_read

    def _begin(self, item: UnitInput, events: EventRewriter) -> bool:
        """Begin an input in the core; return False where all of its events are rewritten in Python."""
        if isinstance(self.rewriter, Rewriter) or item.chosen is not None or item.ids.moved or has_lanes(item):
            return False
        knots = () if item.warp is None else item.warp.knots
        offset = -1 if item.ids.namespace < 0 else events.offset
        span = events.span_at(item.start_ns)
        try:
            self.rewriter.begin(
                item.shift_ns, *span, offset, item.id_args, self._job.args, item.ids.prefix.encode(), knots
            )
        except OverflowError:
            # Beyond 64 bits, where no time of the file has a place.
            return False
        return True

    @staticmethod
    def _plain(reader: TraceReader, events: EventRewriter) -> Iterator[None]:
        for run in reader.runs():
            events.take(run)
            yield

    def _compiled(self, reader: TraceReader, events: EventRewriter) -> Iterator[None]:
        """Rewrite the events of an input in the core, which leaves odd ones to Python."""
        core_rewriter: _merge.Rewriter = self.rewriter  # type: ignore[assignment]
        while reader.in_events:
            reason, at = core_rewriter.rewrite(reader.text, reader.at, reader.final)
            while reason == _NEW:
                pid, tid, category = core_rewriter.new_track()
                place = self.tracks.place(decode_json(pid), decode_json(tid), Raw(category) if category else UNSET)
                core_rewriter.add_track(pid, tid, place[0], int(bytes(place[1])), place[2])
                reason, at = core_rewriter.rewrite(reader.text, at, reader.final)
            reader.pass_events(at)
            if reason == _ODD:
                run = reader.read_odd()
                if not run:
                    reader.end_events()
                    continue
                events.take(run)
                core_rewriter.append(b"")
            elif reason == _MORE:
                _look(core_rewriter, events)
                yield
                rest = len(reader.text) - reader.at
                if not reader.fill(2 * rest) and not rest:
                    reader.end_events()
            else:
                reader.end_events()
        _look(core_rewriter, events)
        for log, work in core_rewriter.work():
            self.tracks.note_work(log, work)
        for phase, count in core_rewriter.counts().items():
            events.result.read[phase] += count
            events.result.written[phase] += count
        yield

    def _add(self, added: Sequence[AddedEvent]) -> None:
        for event in added:
            pid, tid, log = self.tracks.place(event.pid, event.tid, UNSET)
            place = {"pid": pid, "tid": tid, "ts": Raw(format_us(event.time_ns))}
            text = encode_json({"ph": event.phase, **place, **event.fields})
            logged = ord(event.phase) in FLOWS
            at = text.index(_TID) + len(_TID)
            self.rewriter.append(text, log if logged else -1, ord(event.phase), event.time_ns, event.time_ns, at)

    def _show_clocks(self, item: UnitInput) -> int:
        """Write an instant for each clock to show; return how many."""
        chosen, count = item.chosen, 0
        for clock in item.clocks:
            track = self.tracks.first_track(clock.rank)
            if track is None:
                continue
            raw, pid, tid = track
            file_ns = item.start_ns - item.shift_ns
            if chosen is not None and chosen.judge(raw, b"", _CLOCK_CATEGORY, file_ns, file_ns, sliced=False):
                continue
            instant = clock_instant(clock, pid, tid, item.start_ns)
            self.rewriter.append(without_final_backslash(encode_json(instant)))
            count += 1
        return count


def _look(core_rewriter: _merge.Rewriter, events: EventRewriter) -> None:
    if metadata := core_rewriter.metadata():
        events.take_names(metadata)
    if noted := core_rewriter.noted():
        events.note(decode_run(noted))


def _process_table(process: Process) -> bytes:
    return encode_json(
        {
            "rank": process.rank,
            "key": list(process.key),
            "name": process.name,
            "host": process.host,
            "identity": None if process.identity is None else process.identity.to_json(),
            # Each thread: [tid, tid of the input, lane]. Threads without events are included.
            "threads": sorted([thread.tid, thread.key, thread.lane] for thread in process.threads.values()),
        }
    )


class _Aside:
    """The text of a unit from a position on, in a file until its patches are known. An error of the disk loses it."""

    def __init__(self, folder: str) -> None:
        self.is_used = False
        self._folder = folder
        self._position = 0
        self._sizes_bytes: list[int] = []
        self._file: BinaryIO | None = None

    def __enter__(self) -> _Aside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def begin(self, position: int, texts: list[bytes]) -> None:
        """Keep text from a position on."""
        self.is_used, self._position = True, position
        with self._losing():
            self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - see __exit__
            self._sizes_bytes += map(self._file.write, texts)
            self._file.flush()

    def take(self, rewriter: AnyRewriter) -> None:
        """Take the text since the last call out of the rewriter."""
        with self._losing():
            if self._file is not None:
                self._sizes_bytes.append(rewriter.write(self._file.fileno(), -self._position))
        if self._file is None:
            rewriter.take()

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()

    def patch(self, rewriter: AnyRewriter) -> bool:
        """Write the patches over the text; return False if there is no text, or a patch comes before it."""
        if self._file is None or rewriter.first_patch() < self._position:
            return False
        rewriter.write_patches(self._file.fileno(), -self._position)
        return True

    def texts(self) -> Iterator[bytes]:
        """Yield the text in the pieces that were taken."""
        assert self._file is not None
        self._file.seek(0)
        yield from map(self._file.read, self._sizes_bytes)


def write_unit(
    job: UnitJob,
    file: BinaryIO,
    folder: str,
    progress: Callable[[int, int], None] | None = None,
    *,
    pack_behind: bool = False,
) -> UnitResult:
    """Write a unit to a file, at its position; a packed unit is a separate gzip member.

    ``progress`` gets the number of an input, and of its unpacked bytes read so far.
    """
    unit = UnitRewriter(job, folder, progress)
    start = file.tell()
    encoder = None if job.make_encoder is None else job.make_encoder(folder)
    held, size_bytes, encoded_bytes = [], 0, 0
    with packed(job.output, file, behind=pack_behind) as sink, _Aside(folder) as aside:
        is_patchable = sink is file and encoder is None
        for _ in unit.steps():
            if is_patchable and size_bytes > _HELD_BYTES:
                unit.rewriter.write(file.fileno(), start)
                continue
            if aside.is_used:
                aside.take(unit.rewriter)
                continue
            held.append(unit.rewriter.take())
            size_bytes += len(held[-1])
            if size_bytes > _HELD_BYTES:
                if is_patchable or not unit.rewriter.overlaps():
                    sink.write(_encoded(encoder, b"".join(held)))
                    encoded_bytes = size_bytes
                else:
                    aside.begin(encoded_bytes, held)
                held.clear()
                if is_patchable:
                    file.flush()
        needs_patches = unit.finish() > 0 or unit.rewriter.overlaps()
        if size_bytes <= _HELD_BYTES:
            text = b"".join(held)
            sink.write(_encoded(encoder, unit.rewriter.lay(text, 0) if needs_patches else text))
        elif is_patchable:
            file.seek(0, os.SEEK_END)
            if needs_patches:
                unit.rewriter.write_patches(file.fileno(), start)
        elif aside.patch(unit.rewriter):
            for text in aside.texts():
                sink.write(_encoded(encoder, text))
        elif needs_patches:
            unit.result.twice = True
        if not unit.result.twice:
            _close(unit, encoder, sink)
    if unit.result.twice:
        file.seek(start)
        file.truncate()
        encoder = None if job.make_encoder is None else job.make_encoder(folder)
        with packed(job.output, file, behind=pack_behind) as sink:
            for _, text in UnitRewriter(job, folder, progress).patched(unit):
                sink.write(_encoded(encoder, text))
            _close(unit, encoder, sink)
    return unit.result


def _encoded(encoder: Encoder | None, events: bytes) -> bytes:
    return events if encoder is None else encoder.encode(events)


def _close(unit: UnitRewriter, encoder: Encoder | None, sink: BinaryIO | GzipWriter) -> None:
    if encoder is None:
        sink.write(without_final_backslash(unit.closing()))
    else:
        for piece in encoder.close(unit.processes, unit.closing(names=False)):
            sink.write(piece)
