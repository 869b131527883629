"""A merge as an archive: the inputs as they are, and a manifest that places them in Perfetto v58 and later.

An input is copied, unpacked where it is packed. It is rewritten as a merged trace where it needs repair, where a part of it is
selected, where its clock drifts (a manifest has offsets only), and where another process has its pids, which viewers before v58
would take for one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.formats.archive_file import MANIFEST_KEY, MANIFEST_NAME, write_tar, write_zip
from tracekit.formats.byte_stream import ByteStream
from tracekit.formats.trace_event import encode_json
from tracekit.merge.plan.plan import InputResult
from tracekit.merge.rewrite.unit import UnitRewriter
from tracekit.merge.write.event_counts import JoinedFrames, is_loss, losses_as_json, recording_losses
from tracekit.merge.write.json_output import JsonOutput
from tracekit.storage import basename
from tracekit.structs import Struct, replace
from tracekit.version import __version__
from tracekit.wording import consecutive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.merge.plan.plan import MergePlan, UnitResult
    from tracekit.merge.scan.input import Input
    from tracekit.merge.write.event_counts import EventCounts

    Progress = Callable[[int, int], None]

_MAX_NAME: Final = 80  # with what makes it unique, a tar header's 99
_PACKED: Final = re.compile(r"(?:\.gz|\.zst|\.tmp)+$")
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._+=@-]+")
# Damage that Perfetto accepts, by the form of the file.
_ACCEPTED: Final = {"array": {"cut_file", "cut_event", "trailing_comma"}, "object": {"trailing_comma"}}


class _Member(Struct):
    """An input in the archive, why it is rewritten (empty for a copy), and its pids as Perfetto reads them with the new ones."""

    item: Input
    name: str
    shift_ns: int
    reason: str
    pids: set[tuple[Any, int]]


class Archive:
    """The archive that a merge writes. Every input is read once before, to see whether it needs repair."""

    def __init__(self, output: str, plan: MergePlan, folder: str) -> None:
        self._output = output
        self._folder = folder
        self._plan = plan
        self._results: list[UnitResult] = []
        members: dict[int, _Member] = {}
        names = _names(plan.inputs)
        for unit in plan.layout.units:
            rewriter = self._rewritten(unit)
            self._results.append(replace(rewriter.result, moved=0))
            for number, found in rewriter.result.inputs.items():
                item, shift_ns = plan.inputs[number], plan.placement.shifts_ns[number]
                reason = "its clock drifts" if plan.placement.warps[number] is not None else _unfit(item, found)
                if plan.args or plan.filters[number] is not None:
                    reason = "something is selected"
                pids = {(_as_perfetto_reads(raw), new) for raw, new in rewriter.tracks.pids_of(number).items()}
                members[number] = _Member(item, names[number], shift_ns, reason, pids)
        self._members = [member for _, member in sorted(members.items())]
        _separate(self._members)

    def write(self, file: BinaryIO, counts: EventCounts, progress: Progress) -> dict[str, str]:
        """Write the archive to a seekable file, and count its events. Return why inputs are not in it as they are, by path."""
        (write_tar if self._output.endswith(".tar") else write_zip)(file, self._pieces(counts, progress))
        return {member.item.shown: member.reason for member in self._members if member.reason}

    def _pieces(self, counts: EventCounts, progress: Progress) -> Iterator[tuple[str, Iterable[bytes]]]:
        yield MANIFEST_NAME, [self._manifest()]
        for unit, result in zip(self._plan.layout.units, self._results, strict=True):
            texts: Iterable[tuple[int, bytes]] = [(number, b"") for number in unit]
            if any(self._members[number].reason for number in unit):
                first = self._rewritten(unit)
                result.moved = first.result.moved
                texts = UnitRewriter(self._plan.job(unit, None, ""), self._folder, progress).patched(first)
            for number, own in groupby(texts, itemgetter(0)):
                member, found = self._members[number], result.inputs[number]
                if member.reason:
                    yield member.name, self._joined(number, first, own)
                    result.added += first.result.added + 1
                else:
                    yield member.name, _copied(member.item, number, progress)
                    copied = InputResult(found.read, dict(found.read), repairs=found.repairs, accounts=found.accounts)
                    result.inputs[number] = copied
            counts.take(result)

    def _manifest(self) -> bytes:
        shifts = [0 if member.reason else member.shift_ns for member in self._members]
        first_ns = min(shifts)  # no file is earlier than the reference, since Perfetto drops negative times
        reference = self._members[shifts.index(first_ns)]
        files: list[dict[str, Any]] = []
        for member, shift_ns in zip(self._members, shifts, strict=True):
            first, last = min(member.item.ranks), max(member.item.ranks)
            machine = f"rank {first}" if first == last else f"ranks {first}-{last}"
            files.append({"path": member.name, "machine": {"name": machine}})
            if member is not reference:
                files[-1]["clocks"] = {"sync_to": {"file": reference.name}, "offset_ns": shift_ns - first_ns}
        attributes: dict[str, str | int] = {"tracekit.version": __version__}
        if self._plan.placement.base_ns:
            attributes["tracekit.base_time_ns"] = self._plan.placement.base_ns + first_ns
        # Perfetto recognises the document by its first bytes.
        return encode_json({MANIFEST_KEY: {"version": 1, "files": files, "attributes": attributes}}) + b"\n"

    def _rewritten(self, unit: list[int]) -> UnitRewriter:
        rewriter = UnitRewriter(self._plan.job(unit, None, ""), self._folder)
        for _ in rewriter.steps():
            rewriter.rewriter.take()
        rewriter.finish()
        return rewriter

    def _joined(self, number: int, unit: UnitRewriter, texts: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        item, found = self._plan.inputs[number], unit.result.inputs[number]
        layout = replace(self._plan.layout, ranks=consecutive(sorted(item.ranks)))
        output = JsonOutput(replace(self._plan, inputs=[item], layout=layout))
        yield output.head()
        yield from map(itemgetter(1), texts)
        yield unit.closing(number=number)
        frames = JoinedFrames()
        frames.take(found.stack_frames)
        yield output.tail(frames.text(), losses_as_json(recording_losses([item], [found])))


def _unfit(item: Input, found: InputResult) -> str:
    """Return why an input cannot be copied, even alone; empty when it can."""
    if item.kind == "xprof":
        return "its slices overlap, which viewers drop"
    if item.form not in _ACCEPTED:  # its processes and clocks follow other rules than the manifest's
        return "it is not JSON"
    damage = {finding.kind for finding in (*found.repairs, *found.drops)}
    # Files of unknown tools may hold events that only the merge repairs.
    is_odd = item.kind == "chrome" and (found.repaired or any(map(is_loss, found.dropped)))
    return "it needs repair" if damage - _ACCEPTED[item.form] or not found.read or is_odd else ""


def _separate(members: list[_Member]) -> None:
    """Mark inputs to rewrite until no pid in the archive is that of two processes, and no process has two pids."""
    is_changed = True
    while is_changed:
        copies = [member for member in members if not member.reason]
        meanings = defaultdict(set)
        for member in members:
            for pid, new in member.pids:
                meanings[new if member.reason else pid].add(new)
        rewritten = {new for member in members if member.reason for _, new in member.pids if new >= 0}
        for member in copies:
            if any(len(meanings[pid]) > 1 for pid, _ in member.pids):
                member.reason = "another process has its pid"
            elif any(new in rewritten for _, new in member.pids):
                member.reason = "a process of it is in another input that is rewritten"
        is_changed = any(member.reason for member in copies)


def _as_perfetto_reads(pid: Any) -> Any:
    return 0 if isinstance(pid, int) and not 0 <= pid < 2**32 else pid


def _names(inputs: list[Input]) -> list[str]:
    """Return names for the members: those of the inputs, as far as every reader takes them, each once."""
    plain = [_PACKED.sub("", _UNUSUAL.sub("_", basename(item.path)).lstrip(".")) for item in inputs]
    plain = [name[-_MAX_NAME:] if name.endswith(".json") else f"{name[: _MAX_NAME - 5]}.json" for name in plain]
    counts, names = Counter(plain), {MANIFEST_NAME: None}
    for number, (item, name) in enumerate(zip(inputs, plain, strict=True)):
        unique = name if counts[name] == 1 and name not in names else f"rank{item.rank}-{name}"
        names[f"{number}-{unique}" if unique in names else unique] = None
    return list(names)[1:]


def _copied(item: Input, number: int, progress: Progress) -> Iterator[bytes]:
    done_bytes = 0
    with ByteStream(item.path, item.stamp.limit_bytes) as stream:
        while piece := stream.read():
            yield piece
            done_bytes += len(piece)
            progress(number, done_bytes)
    item.check_unchanged()
