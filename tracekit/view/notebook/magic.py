"""The cell magic ``%%tracekit``."""

from __future__ import annotations

import argparse
import importlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tracekit.arguments import resolve_path
from tracekit.errors import ConfigError, TracekitError
from tracekit.handlers.chrome_json import JSONTraceHandler
from tracekit.handlers.memory import MemoryTraceHandler
from tracekit.recording.profiler import Profiler
from tracekit.storage import is_remote
from tracekit.view.notebook.timeline import RecordedCell, spans_of

if TYPE_CHECKING:
    from tracekit.handlers.base import TraceHandler

_NAME = "tracekit"


class _OneLineError(TracekitError):
    """An error that IPython shows as a sentence without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class CellFailedError(_OneLineError):
    """A recorded cell raised. IPython has shown that already; this keeps it from running the cells after it."""


class WrongUsageError(_OneLineError, ConfigError):
    """The line of ``%%tracekit`` cannot be understood."""


def load_ipython_extension(ipython: Any) -> None:
    """Add ``%%tracekit`` to IPython; called by ``%load_ext tracekit``.

    ``%%tracekit`` at the top of a cell records the cell while it runs, and shows the timeline of its markers and a table
    of where the time went. Markers are those of `tracekit.marker` and of every thread; ``%%tracekit -o cell.json`` also keeps
    the trace, for ``tracekit open cell.json``.
    """
    written: dict[str, set[str]] = {}

    def record(line: str, cell: str) -> None:
        """Record a cell and show where its time goes: ``%%tracekit [-o FILE]``; ``-o`` also keeps the trace."""
        _record(ipython, line, cell, written)

    ipython.register_magic_function(record, magic_kind="cell", magic_name=_NAME)


def unload_ipython_extension(ipython: Any) -> None:
    """Take ``%%tracekit`` away again; called by ``%unload_ext tracekit``."""
    ipython.magics_manager.magics["cell"].pop(_NAME, None)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would end the kernel.
        raise WrongUsageError(f"%%tracekit: {message}; it is used as: %%tracekit [-o FILE]")


def _record(ipython: Any, line: str, cell: str, written: dict[str, set[str]]) -> None:
    parser = _Parser(prog="%%tracekit", add_help=False, allow_abbrev=False)
    parser.add_argument("-o", "--output", type=resolve_path)
    try:
        output = parser.parse_args(shlex.split(line)).output
    except WrongUsageError:
        raise
    except ValueError as error:  # an open quote
        raise WrongUsageError(f"%%tracekit {line}: {error}") from None
    memory = MemoryTraceHandler()
    key = "" if output is None else _absolute(output)
    try:
        kept = None if output is None else JSONTraceHandler(output)
        # Cells are run again and again; what is replaced is only what this cell, or one of its kind, has written.
        for path in written.pop(key, ()):
            Path(path).unlink(missing_ok=True)
        handlers: list[TraceHandler] = [memory] if kept is None else [memory, kept]
        profiler = Profiler(handlers, record_batches=False)
        profiler.start()
    except TracekitError as error:
        raise WrongUsageError(f"%%tracekit: {error}") from None
    if kept is not None:
        # Now: the cell may change the folder.
        written[key] = {_absolute(path) for path in kept.paths if not is_remote(path)}
    try:
        with profiler.marker("cell"):
            result = ipython.run_cell(cell, store_history=False)
    finally:
        profiler.stop()
    lost = memory.dropped + (0 if memory.stats is None else sum(memory.stats.dropped.values()))
    shown = RecordedCell(spans_of(memory.events), lost=lost, file=None if kept is None else kept.paths[0])
    importlib.import_module("IPython.display").display(shown)
    failure = result.error_before_exec or result.error_in_exec
    if failure is not None:
        raise CellFailedError(f"the cell ended with {type(failure).__name__}; what was recorded until then is above")


def _absolute(path: str) -> str:
    return path if is_remote(path) else str(Path(path).resolve())
