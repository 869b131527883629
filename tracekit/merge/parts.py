"""Parts of a merged trace: an input is rewritten into its part of the output, anywhere and in any order.

Parts are joined in the order of the inputs, so that the output is the same to the byte whoever made them; see
`tracekit.merge.workshop`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from tracekit.errors import MergeError
from tracekit.formats.stack_frames import StackFrames
from tracekit.formats.trace_event import decode_run
from tracekit.formats.trace_reader import TraceReader
from tracekit.merge.outputs.output import packed
from tracekit.merge.patch import Patcher
from tracekit.merge.plain import TextPatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.merge.clocks.collective_events import Added
    from tracekit.merge.namespaces import InputMap
    from tracekit.merge.outputs.output import Part
    from tracekit.merge.plain_runs import PlainRuns
    from tracekit.merge.selection.event_filter import EventFilter

__all__ = ["PartInput", "PartJob", "PartResult", "Rewriter", "write_part"]


@dataclass(frozen=True, slots=True)
class PartInput:
    """What is to be done with one input.

    Attributes:
        number: Its place among all inputs.
        path: The input as it is opened.
        shown: The input as it may be printed.
        target: Where everything goes.
        id_args: See `Patcher`.
        epoch_only: See `Patcher`.
        events: How many events the first pass found.
        plain: Which runs need not be decoded again.
        size_bytes: Size of the unpacked input.
        chosen: What leaves out what is not selected; None where everything is taken.
        added: Events of the merge itself that follow those of the input, if there are any.
        stack_frames: The table of stack frames of the input, as it was decoded; None where it has none.
    """

    number: int
    path: str
    shown: str
    target: InputMap
    id_args: bool
    epoch_only: bool
    events: int
    plain: PlainRuns
    size_bytes: int
    chosen: EventFilter | None
    added: Added | None = None
    stack_frames: Any = None


@dataclass(frozen=True, slots=True)
class PartJob:
    """One part of the output. It can be pickled.

    Attributes:
        inputs: What goes into it, in this order; see `Output.units`.
        part: The encoder of the output.
        separator: What stands before every piece.
        output: The name of the output, which says whether it is packed.
    """

    inputs: list[PartInput]
    part: Part
    separator: bytes
    output: str


@dataclass(slots=True)
class PartResult:
    """What became of the events of one input: see the attributes of `Patcher`.

    Attributes:
        left_out: How many were left out on request, by reason.
        stack_frames: The stack frames that the events name: the JSON text of each by its id in the merged trace.
    """

    written: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, int] = field(default_factory=dict)
    stack_frames: dict[str, bytes] = field(default_factory=dict)


class Rewriter:
    """The second pass over one input. Iterate it once, to its end; then `result` is complete.

    Args:
        item: The input.
        progress: Called with the number of the input, and of its unpacked bytes read so far.
        write_out_frames: Whether events get their stack frames themselves, not the ids of them.

    Raises:
        MergeError: The file changed since it was scanned.
        StorageError: It cannot be read any more.
    """

    def __init__(
        self,
        item: PartInput,
        progress: Callable[[int, int], None] | None = None,
        *,
        write_out_frames: bool = False,
    ) -> None:
        self._item = item
        self._progress = progress
        self._frames = frames = StackFrames(item.stack_frames)
        change = frames.write_out if write_out_frames else frames.rename
        self._patcher = Patcher(
            item.target,
            id_args=item.id_args,
            epoch_only=item.epoch_only,
            exact_times=not write_out_frames,
            name_frames=change if frames else None,
        )

    def __iter__(self) -> Iterator[bytes]:
        item, seen = self._item, 0
        try:
            with TraceReader(item.path) as reader:
                for events, text in self._patched(reader, item):
                    seen += events
                    if text:
                        yield text
                    if self._progress is not None:
                        self._progress(item.number, reader.bytes_read)
                    if seen >= item.events:
                        break
            if item.added is not None and item.added.text:
                self._patcher.written.update(item.added.phases)
                yield item.added.text
        except (KeyError, ValueError) as error:
            raise MergeError(f"{item.shown}: the file changed while it was merged; merge it again") from error
        if seen != item.events:
            raise MergeError(f"{item.shown}: the file changed while it was merged; merge it again")

    @property
    def stack_frames(self) -> dict[str, bytes]:
        """The stack frames that the events so far name; see `PartResult`."""
        return self._frames.used

    @property
    def result(self) -> PartResult:
        """What became of the events. Ask once."""
        patcher, chosen = self._patcher, self._item.chosen
        left_out = {} if chosen is None else chosen.left_out(patcher.dropped)
        return PartResult(patcher.written, patcher.dropped, patcher.repaired, left_out, self.stack_frames)

    def _patched(self, reader: TraceReader, item: PartInput) -> Iterator[tuple[int, bytes]]:
        """Yield how many events a run has, and how they go into the merged trace."""
        patcher, chosen, left = self._patcher, item.chosen, item.events
        if chosen is not None:
            for events in reader.runs():
                part = events[:left]
                left -= len(part)
                yield len(part), patcher.patch(chosen.of_ranks(part), chosen.judge_run)
            return
        text_patcher = TextPatcher(patcher, item.plain)
        for number, run in enumerate(reader.runs_or_text(item.plain.text_size)):
            # As text, an event keeps the frame that it names.
            text = run if isinstance(run, bytes) and not self._frames.may_be_named(run) else None
            patched = None if text is None else text_patcher.patch(text, number)
            if patched is None:
                events = decode_run(run) if isinstance(run, bytes) else run
                # A trace that is still being recorded may have grown since it was scanned.
                events = events[:left]
                left -= len(events)
                yield len(events), patcher.patch(events)
            else:
                count_of_run = sum(item.plain.counts(number))
                left -= count_of_run
                yield count_of_run, patched


def write_part(
    job: PartJob, file: BinaryIO, progress: Callable[[int, int], None] | None = None, *, pack_behind: bool = False
) -> dict[int, PartResult]:
    """Write what some inputs add to the output; a packed part is a gzip member of its own.

    Args:
        job: The inputs and their way.
        file: Where to write.
        progress: Called with the number of an input, and of its unpacked bytes read so far.
        pack_behind: Whether a thread of its own packs; for who has a processor to spare.

    Returns:
        What became of the events of each input, by its number.

    Raises:
        MergeError: A file changed since it was scanned.
        StorageError: One cannot be read any more.
    """
    results = {}
    with packed(job.output, file, behind=pack_behind) as sink:
        for item in job.inputs:
            rewriter = Rewriter(item, progress, write_out_frames=job.part.writes_out_frames)
            for text in rewriter:
                piece = job.part.encode(item.number, text)
                if piece:
                    sink.write(job.separator)
                    sink.write(piece)
            results[item.number] = rewriter.result
        for piece in job.part.finish():
            sink.write(job.separator)
            sink.write(piece)
    return results
