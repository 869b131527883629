"""The JSON Schemas of results: ``python -m tests.result_schemas`` writes them to ``schemas/``."""

from __future__ import annotations

import json
from pathlib import Path

from tracekit import StragglerReport, TraceDiff, TraceSummary
from tracekit.explain.gpu import GPUReport
from tracekit.explain.results import Result, schema_of
from tracekit.explain.run_report import WrittenReport
from tracekit.view.live.states import LookDocument

FOLDER = Path(__file__).resolve().parents[1] / "schemas"
RESULTS: dict[str, type[Result]] = {
    "summary": TraceSummary,
    "stragglers": StragglerReport,
    "diff": TraceDiff,
    "report": WrittenReport,
    "gpu": GPUReport,
    "top": LookDocument,
}


def schema_text(command: str) -> str:
    """Return the schema of what a command prints with ``--json``."""
    return json.dumps(schema_of(RESULTS[command], command), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in RESULTS:
        (FOLDER / f"{name}.schema.json").write_text(schema_text(name), encoding="utf-8")
