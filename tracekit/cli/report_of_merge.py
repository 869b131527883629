"""Output of a merge report, for all verbs that write a trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tracekit.cli.terminal import print_json, print_lines, printable

if TYPE_CHECKING:
    from tracekit.merge import MergeReport

OK: Final = 0
INCOMPLETE: Final = 3


def show(report: MergeReport, *, as_json: bool, quiet: bool, action: str = "merged", verbose: bool = False) -> int:
    """Print a report as text or JSON. Return its exit code. See `MergeReport.lines` for ``action`` and ``verbose``."""
    if as_json:
        print_json(report.to_json())
    elif not quiet or not report.complete:
        lines = report.lines(action, verbose=verbose)
        if not quiet:
            print_lines(lines, has_tables=False)
            return OK if report.complete else INCOMPLETE
        for line in lines:
            print(printable(line, sys.stderr), file=sys.stderr)
    return OK if report.complete else INCOMPLETE
