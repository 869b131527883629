"""Merge and summarize what a command has recorded, and name the reason where nothing was."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tracekit import storage
from tracekit.errors import MissingExtraError, StorageError, TracekitError
from tracekit.merge import merge_traces
from tracekit.merge.selection.selection import Selection
from tracekit.structs import Struct
from tracekit.traces.rank_ends import wait_for_ranks
from tracekit.version import DISTRIBUTION
from tracekit.wording import size_words

MAX_MERGED_BYTES: Final = 500_000_000
"""Above it a browser takes long to load a trace."""

_IDS_SHARE: Final = 0.5  # what --args ids leaves of a trace of torch.profiler, about
_ISOLATED: Final = re.compile(r"-[A-Za-z]*([IES])[A-Za-z]*")


class RecordedRun(Struct, frozen=True):
    """The reports of the processes of a command."""

    notes: Mapping[str, Any]  # their notes by name; see `tracekit.auto.notes`

    @property
    def processes(self) -> list[dict[str, Any]]:
        """The notes of processes that were recorded."""
        found = [content for name, content in self.notes.items() if name.startswith("recorded-")]
        return [content for content in found if isinstance(content, dict) and "rank" in content]

    @property
    def ranks(self) -> list[int]:
        """The ranks that were recorded on this machine."""
        return sorted({int(content["rank"]) for content in self.processes})

    @property
    def world_size(self) -> int:
        """The number of ranks of the run."""
        return max((int(content["world_size"]) for content in self.processes), default=0)

    @property
    def run_id(self) -> str | None:
        """The name of the run; None if nothing was recorded."""
        return next((str(content["run_id"]) for content in self.processes), None)

    @property
    def steps(self) -> int | None:
        """The largest number of steps of a rank; None if no rank has reported its end."""
        return max((int(content["steps"]) for content in self.processes if "steps" in content), default=None)

    def losses(self) -> Iterator[str]:
        """Yield a sentence for each kind of lost events and failures, and for removed segments."""
        totals: dict[str, int] = {}
        removed_bytes = 0
        for content in self.processes:
            removed_bytes += int(content.get("removed_bytes", 0))
            for reason, count in content.get("lost", {}).items():
                totals[reason] = totals.get(reason, 0) + int(count)
        for reason, count in totals.items():
            yield f"Lost or failed: {count:,} {reason}."
        if removed_bytes:
            yield f"The oldest {size_words(removed_bytes)} were removed, because of --limit."

    @property
    def stated_reason(self) -> str | None:
        """The reason that a process has noted for not being recorded."""
        failed = [content for name, content in self.notes.items() if name.startswith("failed-")]
        if failed:
            return str(failed[0]["error"] if isinstance(failed[0], dict) else failed[0])
        if any(isinstance(content, dict) and content.get("own_profiler") for content in self.notes.values()):
            return "the script records with a Profiler of its own"
        return None

    def why_nothing(self, command: Sequence[str]) -> str:
        """Return the reason why no process was recorded."""
        if self.stated_reason is not None:
            return self.stated_reason
        if "jax.profiler" in self.notes and "torch" not in self.notes:
            return "jax was imported, but there was no jax.profiler.StepTraceAnnotation"
        if "torch" in self.notes:
            return "torch was imported, but there was no step of an optimizer, no backward pass and no DataLoader"
        if "python" in self.notes:
            return "no process imported torch or jax"
        return _why_unseen(command)


def _why_unseen(command: Sequence[str]) -> str:
    name = os.path.basename(command[0])  # noqa: PTH119 - a word of a command line
    if name == "env" and any(word in ("-i", "-", "--ignore-environment") for word in command[1:]):
        return "env -i removes PYTHONPATH and TRACEKIT_AUTO, by which the recording starts"
    python = next((at for at, word in enumerate(command) if re.search(r"(^|/)python[0-9.]*$", word)), None)
    for word in () if python is None else command[python + 1 :]:
        if not word.startswith("-") or word in ("-c", "-m"):
            break
        if match := _ISOLATED.fullmatch(word):
            return f"python was started with -{match[1]}, and does not import sitecustomize from PYTHONPATH"
    return (
        "no Python process has seen the variables PYTHONPATH and TRACEKIT_AUTO: there was none, or it was started with -I, "
        "-E or -S, with a cleaned environment, or on another machine"
    )


class MergePlan(Struct, frozen=True):
    """Options of a merge with a result that a browser can load."""

    args: str = "all"  # see `merge_traces`
    select: Selection | None = None  # see `merge_traces`
    reason: str = ""  # a sentence on what is left out; empty if nothing is


def plan_merge(files: Sequence[str], steps: int | None, limit_bytes: int = MAX_MERGED_BYTES) -> MergePlan:
    """Decide what to leave out of a merged trace that would be larger than ``limit_bytes`` as plain JSON.

    ``steps`` is the number of steps of the run, if it is known.
    """
    sizes = {name: _plain_bytes(name) for name in files}
    total = sum(sizes.values())
    if total <= limit_bytes:
        return MergePlan()
    of_torch = sum(size for name, size in sizes.items() if storage.basename(name).startswith("torch-"))
    large = f"The traces are {size_words(total)} together, and a browser loads {size_words(limit_bytes)}"
    small = total - (1 - _IDS_SHARE) * of_torch
    args = "ids" if of_torch else "all"
    if small <= limit_bytes or not steps:
        return MergePlan(args, None, f"{large}: merged with --args {args}." if of_torch else f"{large}.")
    first = steps - max(1, int(steps * limit_bytes / small))
    return MergePlan(
        args, Selection(steps=(first, None)), f"{large}: only the steps from {first} on are merged (--steps {first}:)."
    )


def _plain_bytes(name: str) -> int:
    """Return the size of a trace without compression; 0 if it cannot be read."""
    size = storage.size_bytes(name) or 0
    if name.endswith(".gz") and not storage.is_remote(name) and size >= struct.calcsize("I"):
        with storage.open_read(name) as file:
            file.seek(-4, os.SEEK_END)
            return max(size, int(struct.unpack("<I", file.read(4))[0]))  # wraps beyond 4 GB
    return size


def has_new_files(folder: str, start_ns: int) -> bool:
    """Return True if a local folder has a rank trace that was written since."""
    try:
        names = storage.expand(folder, (".json", ".json.gz"))
    except StorageError:
        return False
    times = (storage.modified_ns(name) for name in names if storage.basename(name).startswith("rank"))
    return any(time_ns is not None and time_ns >= start_ns for time_ns in times)


def merge_run(
    run: RecordedRun, folder: str, output: str, timeout_s: float, *, overwrite: bool, since_ns: int = 0
) -> list[str]:
    """Merge the traces of a run, after its ranks on other machines have ended; return lines to print. Raises TracekitError.

    In a local folder that earlier runs used too, files from before ``since_ns`` are theirs.
    """
    lines = []
    if len(run.ranks) == run.world_size:
        inputs, files = [folder], storage.expand(folder, (".json", ".json.gz"))
        new = [name for name in files if (time_ns := storage.modified_ns(name)) is None or time_ns >= since_ns]
        if new and len(new) < len(files):
            inputs = files = new
    else:
        ends = wait_for_ranks([folder], run.world_size, timeout_s, run_id=run.run_id)
        inputs = files = ends.traces
        lines += [f"{sentence}." for sentence in ends.missing()]
    plan = plan_merge(files, run.steps)
    report = merge_traces(output, inputs, overwrite=overwrite, args=plan.args, select=plan.select)
    if plan.reason:
        lines.append(plan.reason)
    if not report.complete:
        lines += list(report.lines())
    return lines


def summary_sentences(trace: str) -> list[str]:
    """Return the verdict on a run: at most five sentences, the last with the next command."""
    from tracekit.explain.summary import summarize_traces

    try:
        return list(summarize_traces([trace]).verdict.sentences)
    except MissingExtraError:
        return [
            f"For a summary: pip install '{DISTRIBUTION}[explain]', then tracekit summary {storage.shell_word(trace)}"
        ]
    except TracekitError as error:
        return [f"There is no summary: {error}."]
