"""What the tests of the merge share."""

from __future__ import annotations

import itertools
import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from tests.both_cores import pure
from tests.merge_inputs import write
from tracekit.check.schemas import MERGE_REPORT, compile_schema
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.merge import MergeReport


@pytest.fixture
def merge(tmp_path: Path) -> Any:
    """Write files by name, merge them, and return the merged trace, with times as text, and the report."""
    numbers = itertools.count()

    def _merge(files: dict[str, Any], **options: Any) -> tuple[dict[str, Any], MergeReport]:
        folder = tmp_path / f"run{next(numbers)}"
        output = folder / "merged" / "merged.json"
        output.parent.mkdir(parents=True)
        report = merge_traces(str(output), write(folder, files), **options)
        assert compile_schema(MERGE_REPORT)(json.loads(json.dumps(report.to_json()))) is None
        merged: dict[str, Any] = json.loads(output.read_text(), parse_float=str)
        assert sum(report.events_out.values()) == len(merged["traceEvents"])
        return merged, report

    return _merge


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.core), False], ids=["core", "python"])
def core_or_python(request: pytest.FixtureRequest) -> Any:
    """Run a test with the compiled core and in pure Python."""
    context: AbstractContextManager[Any] = nullcontext() if request.param else pure()
    with context:
        yield
