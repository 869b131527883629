"""A merge as an archive: the inputs as they are, and a manifest by which Perfetto v58 and later place them.

An input is in the archive byte for byte, unpacked where it is gzip, as Perfetto takes no archive in an archive. It is
rewritten, as for a merged trace, only where it could not stand beside the others: where it needs repair, where something is
selected from it, where its clock drifts (a manifest knows offsets only), or where another process has its pids, which viewers
before v58 would take for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.errors import MergeError
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.event_fields import raw_number
from tracekit.formats.perfetto_manifest import MANIFEST_NAME, encode_manifest, file_entry
from tracekit.formats.trace_reader import TraceReader
from tracekit.merge.joined_frames import JoinedFrames
from tracekit.merge.outputs.json_output import JsonOutput
from tracekit.merge.parts import PartResult, Rewriter
from tracekit.merge.patch import Patcher
from tracekit.merge.report import Drop
from tracekit.storage import basename
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.formats.archive_file import ArchiveFile
    from tracekit.merge.input import Input
    from tracekit.merge.namespaces import InputMap
    from tracekit.merge.outputs.merged import Merged
    from tracekit.merge.parts import PartInput
    from tracekit.merge.planning import Plan

__all__ = ["Archive", "Member"]

_MAX_NAME: Final = 80  # with what makes it unique, a tar header's 99
_MAX_ID: Final = 2**32 - 1
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._+=@-]+")
# Perfetto takes an array that is cut, or ends with a comma.
_TAKEN_AS_IS: Final = frozenset({"cut_file", "cut_event", "trailing_comma"})


@dataclass(frozen=True, slots=True)
class Member:
    """An input in the archive.

    Attributes:
        number: Of the input.
        name: Of the member.
        rewritten: Why it is not in there as it is; empty when it is.
        shift_ns: What is to be added to its times, as they stand in the archive, to get those of the merge.
    """

    number: int
    name: str
    rewritten: str
    shift_ns: int


class Archive:
    """The archive that a merge writes.

    Args:
        kind: Its form.
        merged: What is true of the whole merge.
        plan: How each input would be rewritten.
        selected: For each input whether something is selected from it.

    Attributes:
        members: The inputs, in order, as they are in the archive.
    """

    def __init__(
        self,
        kind: Callable[[BinaryIO], ArchiveFile],
        merged: Merged,
        plan: Plan,
        selected: Iterable[bool],
    ) -> None:
        self._kind = kind
        self._merged = merged
        self._plan = plan
        self._maps = maps = list(plan)
        reasons = [
            "something is selected" if chosen else _unfit(item, target)
            for chosen, item, target in zip(selected, merged.inputs, maps, strict=True)
        ]
        _separate(merged.inputs, maps, reasons)
        self.members = [
            Member(number, name, why, 0 if why else target.shift_ns)
            for number, (name, why, target) in enumerate(zip(_names(merged.inputs), reasons, maps, strict=True))
        ]

    @property
    def rewritten(self) -> dict[str, str]:
        """Why inputs are not in the archive as they are, by path."""
        inputs = self._merged.inputs
        return {inputs[member.number].scan.path: member.rewritten for member in self.members if member.rewritten}

    def manifest(self) -> bytes:
        """Return the manifest."""
        merged, members = self._merged, self.members
        # Nothing is earlier than the zero of this file's times: Perfetto would drop what has a negative time.
        reference = min(members, key=lambda member: (member.shift_ns, member.number))
        files = []
        for member in members:
            ranks = sorted(merged.inputs[member.number].ranks)
            machine = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
            sync_to = None if member is reference else reference.name
            files.append(file_entry(member.name, machine, sync_to, member.shift_ns - reference.shift_ns))
        attributes: dict[str, str | int] = {"tracekit.version": __version__}
        if merged.base_ns:
            attributes["tracekit.base_time_ns"] = merged.base_ns + reference.shift_ns
        return encode_manifest(files, attributes)

    def write(
        self, file: BinaryIO, inputs: Callable[[int], PartInput], progress: Callable[[int, int], None] | None
    ) -> Iterator[tuple[int, int, PartResult]]:
        """Write the archive.

        Args:
            file: Where to; it can be sought in.
            inputs: Returns how an input is rewritten, by its number, where it has to be.
            progress: Called with the number of an input and how many of its bytes are dealt with.

        Yields:
            The number of an input, how many metadata events were added for it, and what became of its events.

        Raises:
            MergeError: An input has changed since it was scanned, or is too large.
            StorageError: An input can no longer be read.
        """
        archive = self._kind(file)
        archive.add(MANIFEST_NAME, [self.manifest()])
        for member in self.members:
            item = self._merged.inputs[member.number]
            if not member.rewritten:
                archive.add(member.name, _copied(item, member.number, progress))
                yield member.number, 0, PartResult(item.scan.phases)
                continue
            pids = {pid for pid, _ in self._maps[member.number].processes.values()}
            own = [process for process in self._plan.processes_beside(member.number) if process.pid in pids]
            output = JsonOutput(replace(self._merged, inputs=[item], processes=own))
            head: list[bytes] = []
            count = output.head(head.append)
            rewriter = Rewriter(inputs(member.number), progress)
            archive.add(member.name, _joined(head, count, output, rewriter))
            yield member.number, count, rewriter.result
        archive.close()


def _unfit(item: Input, target: InputMap) -> str:
    """Return why an input cannot be copied, whatever the others are; empty when it can."""
    if target.warp is not None:
        return "its clock drifts"
    scan = item.scan
    if scan.kind == "xprof":
        return "its slices overlap, which viewers drop"
    if scan.form not in ("array", "object"):
        # Its processes and clocks follow other rules than those that the manifest is made for.
        return "it is no JSON"
    findings = scan.findings()
    found = {finding.kind for finding in (*findings.repairs, *findings.drops)}
    if scan.form == "object" or not scan.events:
        # An object that is cut fails the whole archive, and so does an array without any event.
        found.discard("trailing_comma")
        unfit = bool(found) or not scan.events
    else:
        unfit = not found <= _TAKEN_AS_IS
    if not unfit and scan.kind == "chrome":
        # Anybody may have written it. The patch step knows what viewers do not take.
        patcher = Patcher(target, id_args=False, epoch_only=scan.base_ns == 0)
        with TraceReader(item.path) as reader:
            for run in reader.runs():
                patcher.patch(run)
        unfit = bool(patcher.repaired) or any(map(Drop.is_loss, patcher.dropped))
    return "it needs repair" if unfit else ""


def _separate(inputs: list[Input], maps: list[InputMap], reasons: list[str]) -> None:
    """Have inputs rewritten until no pid in the archive stands for two processes, and no process has two pids."""
    while True:
        # What each pid stands for: processes by their new pids.
        meanings: dict[Any, set[int]] = {}
        split: set[int] = set()
        for number, target in enumerate(maps):
            new = {pid for pid, _ in target.processes.values()}
            if reasons[number]:
                split |= new
                for pid in new:
                    meanings.setdefault(pid, set()).add(pid)
            else:
                for raw, meaning in _raw_pids(inputs[number], target):
                    meanings.setdefault(raw, set()).add(meaning)
        changed = False
        for number, target in enumerate(maps):
            if reasons[number]:
                continue
            if any(len(meanings[raw]) > 1 for raw, _ in _raw_pids(inputs[number], target)):
                reasons[number] = "another process has its pid"
            elif not split.isdisjoint(pid for pid, _ in target.processes.values()):
                reasons[number] = "a process of it is in another input that is rewritten"
            changed = changed or bool(reasons[number])
        if not changed:
            return


def _raw_pids(item: Input, target: InputMap) -> Iterator[tuple[Any, int]]:
    """Yield the pids of an input as Perfetto takes them, each with what it stands for; -1 is a name without events."""
    for raw in item.scan.tracks()[0]:
        pid = raw if isinstance(raw, str) else raw_number(raw)
        if isinstance(pid, int) and not 0 <= pid <= _MAX_ID:
            pid = 0
        place = target.processes.get(raw)
        yield pid, -1 if place is None else place[0]


def _names(inputs: list[Input]) -> list[str]:
    """Return names for the members: those of the inputs, as far as every reader takes them, each once."""
    plain = []
    for item in inputs:
        name = _UNUSUAL.sub("_", basename(item.path)).lstrip(".").removesuffix(".gz").removesuffix(".tmp")
        plain.append(name[-_MAX_NAME:] if name.endswith(".json") else f"{name[: _MAX_NAME - 5]}.json")
    taken = {MANIFEST_NAME}
    names = []
    for number, (item, name) in enumerate(zip(inputs, plain, strict=True)):
        once = plain.count(name) == 1 and name not in taken
        unique = name if once else f"rank{item.rank}-{name}"
        if unique in taken:
            unique = f"{number}-{unique}"
        taken.add(unique)
        names.append(unique)
    return names


def _copied(item: Input, number: int, progress: Callable[[int, int], None] | None) -> Iterator[bytes]:
    """Yield the bytes of an input, as many as were scanned."""
    left = item.scan.bytes_read
    with ByteStream(item.path) as stream:
        while left and (piece := stream.read()):
            yield piece[:left]
            left -= len(piece[:left])
            if progress is not None:
                progress(number, item.scan.bytes_read - left)
    if left:
        raise MergeError(f"{item.scan.path}: the file changed while it was merged; merge it again")


def _joined(head: list[bytes], count: int, output: JsonOutput, rewriter: Rewriter) -> Iterator[bytes]:
    yield from head
    separator = output.separator if count else b""
    for piece in rewriter:
        yield separator + piece
        separator = output.separator
    frames = JoinedFrames()
    frames.take(rewriter.stack_frames)
    yield output.tail(frames.text())
