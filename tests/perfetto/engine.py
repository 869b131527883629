"""Loads traces into Perfetto's own trace processor and asks it questions in SQL."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tests.perfetto.install import EngineFiles, UnavailableError, engine_files

if TYPE_CHECKING:
    from types import TracebackType

CHUNK_BYTES = 16 << 20
START_TIMEOUT_S = 200.0
LOAD_TIMEOUT_S = 300.0
QUERY_TIMEOUT_S = 300.0

Cell = Any
"""A value of a row: None, int, float, str or bytes."""


class EngineError(Exception):
    """The engine crashed or ran out of time."""


class LoadError(EngineError):
    """The engine refuses a trace, crashes on it or never ends with it; the message is the engine's own."""


class QueryError(EngineError):
    """The engine cannot run a query."""


class Engine:
    """Loads traces. One process of the engine serves many traces, one after the other.

    Traces that are open at the same time have a process each. Not safe to use from several threads.
    """

    def __init__(self) -> None:
        self._files = engine_files()
        self._messages = _messages()
        self._idle: list[_Process] = []

    def load(self, path: str | os.PathLike[str], *, timeout_s: float = LOAD_TIMEOUT_S) -> LoadedTrace:
        """Load a trace of any format that Perfetto knows; use the result in a ``with`` block.

        The engine never finishes some files (NaN in a counter), and is killed after the time-out.
        """
        process = self._idle.pop() if self._idle else _Process(self._files, self._messages)
        try:
            process.load(Path(path), timeout_s)
        except LoadError:
            self._release(process)
            raise
        except BaseException:
            process.kill()
            raise
        return LoadedTrace(process, self._release)

    def close(self) -> None:
        """End the engine's processes."""
        while self._idle:
            self._idle.pop().kill()

    def _release(self, process: _Process) -> None:
        if process.usable:
            self._idle.append(process)
        else:
            process.kill()


class LoadedTrace:
    """A trace inside the engine, until `close`."""

    def __init__(self, process: _Process, release: Any) -> None:
        self._process: _Process | None = process
        self._release = release

    def rows(self, sql: str, *, timeout_s: float = QUERY_TIMEOUT_S) -> list[Any]:
        """Return the rows of a query; of several statements, the rows of the last one."""
        if self._process is None:
            raise QueryError("this trace is closed; query it inside its with block")
        return self._process.query(sql, timeout_s)

    def scalar(self, sql: str) -> Cell:
        """Return the only value of a query that has one row with one value."""
        rows = self.rows(sql)
        if len(rows) != 1 or len(rows[0]) != 1:
            raise QueryError(f"expected one value, got {len(rows)} rows: {rows[:3]} from {sql}")
        return rows[0][0]

    def errors(self) -> list[tuple[str, int | None, str, int]]:
        """Return (name, index, severity, value) of each stat about errors and dropped data."""
        wrong = "from stats where severity != 'info' and value != 0 order by name, idx"
        return self.rows(f"select name, idx, severity, value {wrong}")

    def close(self) -> None:
        """Give the engine back."""
        process, self._process = self._process, None
        if process is not None:
            self._release(process)

    def __enter__(self) -> LoadedTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class _Process:
    """One Node process with one engine in it."""

    files: EngineFiles
    messages: Any
    usable: bool = field(default=True, init=False)
    """False after a crash or a time-out: such an engine cannot be reset."""

    def __post_init__(self) -> None:
        self._stderr: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        program = Path(__file__).with_name("engine.js")
        self._popen = subprocess.Popen(
            [self.files.node, str(program), str(self.files.version_folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
        )
        try:
            self._read_frame(time.monotonic() + START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def load(self, path: Path, timeout_s: float) -> None:
        rpc = self.messages.TraceProcessorRpc
        deadline = time.monotonic() + timeout_s
        try:
            self._call(deadline, request=rpc.TPM_RESET_TRACE_PROCESSOR)
            with path.open("rb") as trace:
                while chunk := trace.read(CHUNK_BYTES):
                    for reply in self._call(deadline, request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=chunk):
                        if reply.append_result.error:
                            raise LoadError(f"{path}: {reply.append_result.error}")
            # Files that end too early are only noticed here; the stock Python client throws this answer away.
            for reply in self._call(deadline, request=rpc.TPM_FINALIZE_TRACE_DATA):
                if reply.finalize_data_result.error:
                    raise LoadError(f"{path}: {reply.finalize_data_result.error}")
        except LoadError:
            raise
        except EngineError as error:
            raise LoadError(f"{path}: {error}") from error

    def query(self, sql: str, timeout_s: float) -> list[Any]:
        rpc = self.messages.TraceProcessorRpc
        result = self.messages.QueryResult()
        for reply in self._call(
            time.monotonic() + timeout_s, request=rpc.TPM_QUERY_STREAMING, query_args={"sql_query": sql}
        ):
            result.MergeFrom(reply.query_result)
        if result.error:
            raise QueryError(f"{result.error.strip()}\nin: {sql}")
        cells = [cell for batch in result.batch for cell in self._cells(batch)]
        width = len(result.column_names)
        return [tuple(cells[start : start + width]) for start in range(0, len(cells), width)] if width else []

    def kill(self) -> None:
        self.usable = False
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout, self._stderr):
            assert stream is not None
            # Closing a pipe without a reader may still flush it.
            with contextlib.suppress(OSError):
                stream.close()

    def _cells(self, batch: Any) -> list[Cell]:
        kinds = self.messages.CellsBatch
        # Strings of a batch lie in one text, each ended by a NUL.
        strings = batch.string_cells
        if isinstance(strings, bytes):
            strings = strings.decode("utf-8", "replace")
        sources = {
            kinds.CELL_VARINT: iter(batch.varint_cells),
            kinds.CELL_FLOAT64: iter(batch.float64_cells),
            kinds.CELL_STRING: iter(strings.split("\0")),
            kinds.CELL_BLOB: iter(batch.blob_cells),
        }
        return [None if kind == kinds.CELL_NULL else next(sources[kind]) for kind in batch.cells]

    def _call(self, deadline: float, **request: Any) -> list[Any]:
        """Send one request and return the replies to it."""
        stream = self.messages.TraceProcessorRpcStream(msg=[self.messages.TraceProcessorRpc(**request)])
        payload = stream.SerializeToString()
        assert self._popen.stdin is not None
        try:
            self._write(len(payload).to_bytes(4, "little") + payload, deadline)
            answer = self._read_frame(deadline)
        except OSError as error:
            self.usable = False
            raise EngineError(f"the engine's process has ended: {self._last_words()}") from error
        if not answer:
            self.usable = False
            raise EngineError(f"the engine crashed: {self._last_words()}")
        replies = list(self.messages.TraceProcessorRpcStream.FromString(answer).msg)
        for reply in replies:
            if reply.fatal_error:
                self.usable = False
                raise EngineError(reply.fatal_error)
        return replies

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._popen.stdin is not None
        rest = memoryview(data)
        while rest:
            self._wait(deadline, write=True)
            rest = rest[os.write(self._popen.stdin.fileno(), rest[: select.PIPE_BUF]) :]

    def _read_frame(self, deadline: float) -> bytes:
        length = int.from_bytes(self._read(4, deadline), "little")
        return self._read(length, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._popen.stdout is not None
        pieces = bytearray()
        while len(pieces) < size:
            self._wait(deadline, write=False)
            piece = os.read(self._popen.stdout.fileno(), size - len(pieces))
            if not piece:
                self.usable = False
                raise EngineError(f"the engine's process has ended: {self._last_words()}")
            pieces += piece
        return bytes(pieces)

    def _wait(self, deadline: float, *, write: bool) -> None:
        left_s = max(0.0, deadline - time.monotonic())
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        readers, writers = ([], [self._popen.stdin]) if write else ([self._popen.stdout], [])
        if not any(select.select(readers, writers, [], left_s)):
            self.usable = False
            raise EngineError("the engine did not finish in time; it never finishes some files")

    def _last_words(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace").strip()[-1000:] or "it left no message"


def _messages() -> Any:
    """Return the classes of the engine's protocol, from the wheel ``perfetto``."""
    try:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
    except ImportError as error:
        raise UnavailableError(f"the Python package perfetto is not installed: {error}") from error
    return ProtoFactory(PlatformDelegate())
