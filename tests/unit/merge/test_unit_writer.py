"""A unit is written in one of several ways; the bytes are the same."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from tests.merge_inputs import event, meta, rank_trace, torch_trace, write
from tracekit import core
from tracekit.cli import main
from tracekit.errors import MergeError
from tracekit.merge import merge_traces
from tracekit.merge.rewrite import unit
from tracekit.merge.scan.input import FileStamp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.merge.plan.plan import UnitResult


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """Traces of two ranks: slices that overlap, halves of slices out of order, an end without a begin, and arrows."""
    slices = [event(f"s{n}", 10 * n, 15 if n % 3 else 5) for n in range(400)]
    halves = [event("half", 7 + 30 * n, ph=phase) for n in range(50) for phase in "EB"]
    arrows = [event("go", 10 * n, ph=phase, id=n, cat="c") for n in range(40) for phase in "sf"]
    files = {
        "rank0.json": rank_trace(*slices, *halves, *arrows),
        "torch0.json": torch_trace(
            *arrows, *slices[::-1], distributedInfo={"rank": 0}, tracekit={"rank": 0, "pid": 100}
        ),
        "rank1.json": rank_trace(meta("process_name", 100, name="one"), *slices[:20], event("nothing", ph="E"), rank=1),
    }
    return write(tmp_path, files)


@pytest.fixture
def results() -> Iterator[list[UnitResult]]:
    """The results of the units that are written."""
    found: list[UnitResult] = []

    def noted(*args: Any, **options: Any) -> UnitResult:
        found.append(unit.write_unit(*args, **options))
        return found[-1]

    with mock.patch("tracekit.merge.execute.executor.write_unit", noted):
        yield found


class FullLater(io.BytesIO):
    """A file that is full after the first write."""

    def fileno(self) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.usefixtures("core_or_python")
@pytest.mark.parametrize("disk", ["with room", "full", "full later"])
@pytest.mark.parametrize("name", ["out.json", "out.json.gz", "out.pftrace", "out.pftrace.gz"])
def test_output_is_the_same_whether_it_is_held_or_patched_or_rewritten(
    inputs: list[str], tmp_path: Path, results: list[UnitResult], name: str, disk: str
) -> None:
    merge_traces(tmp_path / f"held.{name}", inputs)
    assert [result.twice for result in results] == [False, False]
    assert all(result.moved for result in results)
    results.clear()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(unit, "_HELD_BYTES", 0))
        if disk != "with room":
            full = OSError(errno.ENOSPC, "No space left on device")
            effect = full if disk == "full" else [FullLater(), FullLater()]
            stack.enter_context(mock.patch.object(unit, "TemporaryFile", side_effect=effect))
        report = merge_traces(tmp_path / f"streamed.{name}", inputs)
    # A plain file can be patched. The core knows of overlaps early, so that the text is put aside.
    twice = name != "out.json" and (core.merge is None or disk != "with room")
    assert [result.twice for result in results] == [twice] * 2
    assert report.written_twice == ([0, 1] if twice else [])
    held = (tmp_path / f"held.{name}").read_bytes()
    assert (tmp_path / f"streamed.{name}").read_bytes() == held
    if name.endswith(".gz"):
        plain = tmp_path / f"plain.{name.removesuffix('.gz')}"
        merge_traces(plain, inputs)
        assert plain.read_bytes() == gzip.decompress(held)


@pytest.mark.parametrize(
    ("name", "reason"), [("out.json.gz", "a packed output"), ("out.pftrace", "a .pftrace"), ("out.json", None)]
)
def test_verbose_report_names_ranks_that_were_written_twice_and_the_reason(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str | None
) -> None:
    arguments = ["merge", "--workers", "1", "-f", "-o", str(tmp_path / name), *inputs]
    with mock.patch.object(unit, "_HELD_BYTES", 0), mock.patch.object(unit, "TemporaryFile", side_effect=OSError):
        assert main(arguments) == 0
        assert "written twice" not in capsys.readouterr().out
        assert main([*arguments, "--verbose"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "written twice" in line]
    said = f"written twice: ranks 0-1: slices overlap, and {reason} cannot be patched"
    assert lines == ([] if reason is None else [said])


def test_a_file_that_was_replaced_while_it_was_merged_is_refused(inputs: list[str], tmp_path: Path) -> None:
    stamps = iter(range(1, 1000))

    def changing(path: str) -> FileStamp:
        return FileStamp(1000, next(stamps), 7)

    with (
        mock.patch("tracekit.merge.scan.input.stamp_of", changing),
        pytest.raises(MergeError, match=r"rank0\.json: the file changed while it was merged"),
    ):
        merge_traces(tmp_path / "out.json", inputs)
    assert not (tmp_path / "out.json").exists()


def test_a_file_that_grows_is_merged_as_far_as_it_was_planned() -> None:
    planned = FileStamp(1000, 5, 7)
    assert planned.limit_bytes == 1000
    assert not planned.differs(FileStamp(2000, 9, 7))
    assert planned.differs(FileStamp(900, 9, 7))
    assert planned.differs(FileStamp(1000, 9, 7))
    assert planned.differs(FileStamp(2000, 9, 8))
