"""Answer coding agents: a Model Context Protocol server over stdio that runs tracekit's commands on the folders it is given.

Each tool runs one command as a separate process. An agent thus reads the words that a person reads, and a query that takes too
much time or memory does not end the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import ConfigError, MissingExtraError
from tracekit.markup import visible
from tracekit.table.schema import schema_text
from tracekit.traces.inputs import find_runs
from tracekit.version import __version__

try:
    import anyio
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
except ImportError as error:
    raise MissingExtraError("mcp 2 or later", "mcp", "tracekit mcp") from error
from collections.abc import AsyncIterator, Sequence

if TYPE_CHECKING:
    from anyio.abc import Process

PAGE_CHARS: Final = 20_000
"""Maximum number of characters that a tool returns; the rest is on further pages."""

_TIME_LIMIT_S: Final = 600
_FINDINGS: Final = (0, 3)
"""Exit codes of a command that has answered."""

_INSTRUCTIONS: Final = (
    "tracekit reads traces of ML training. Call list_runs first; the other tools take the name of a run from it, or the path "
    "of a trace. summary says where the time goes, stragglers which rank is slow, outlier_steps which steps were long, diff "
    "what changed between two runs, top_kernels what the GPUs did. query asks anything else in SQL; its tables are described "
    "in the resource tracekit://schema."
)


class AgentServer:
    """Offers tracekit's answers to an agent. Changes nothing, and reads nothing outside the folders.

    Raises ConfigError if one of them is not a folder.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        for given, folder in zip(folders, self._folders, strict=True):
            if not folder.is_dir():
                raise ConfigError(f"{given}: not a folder on this machine; give folders that hold runs")
        self._links: list[Process] = []
        self.server = MCPServer(
            "tracekit", version=__version__, instructions=_INSTRUCTIONS, lifespan=self._lifespan, log_level="WARNING"
        )
        read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        answers = (self.list_runs, self.summary, self.stragglers, self.outlier_steps, self.diff, self.top_kernels)
        for tool in (*answers, self.query, self.open_link):
            self.server.add_tool(tool, annotations=read_only, structured_output=False)
        self.server.resource("tracekit://schema", name="schema", description="The tables and columns of query.")(
            schema_text
        )

    def run(self) -> None:
        """Answer on stdin and stdout until the agent closes them, or a signal ends the process."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        try:
            self.server.run("stdio")
        except Exception as error:
            # Groups of one error, such as a closed pipe.
            while inner := getattr(error, "exceptions", ()):
                error = inner[0]
            raise error from None

    def _stop(self, number: int, _: object) -> None:
        # The thread that reads stdin would keep the process alive.
        self._end_links()
        os._exit(128 + number)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._end_links()
            for process in self._links:
                await process.aclose()

    def _end_links(self) -> None:
        for process in self._links:
            if process.returncode is None:
                process.terminate()

    # ---- the tools: their docstrings are what the agent reads -----------------------------------------------------------

    def list_runs(self, search: str = "", page: int = 1) -> str:
        """List the runs: folders that hold traces, the newest first. ``search`` selects names that contain it."""
        named = [(run, visible(self._name(run.path))) for folder in self._folders for run in find_runs(folder)]
        runs = sorted(((run, name) for run, name in named if search.lower() in name.lower()), reverse=True)
        if not runs:
            return f"no run{f' with {search!r} in its name' if search else ''} in {', '.join(map(str, self._folders))}"
        lines = [
            f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(run.modified_s))}  {run.files:5d} files  "
            f"{run.size_bytes / 1e6:10.1f} MB  {name}"
            for run, name in runs
        ]
        return _page("\n".join(lines), page)

    async def summary(self, run: str, page: int = 1) -> str:
        """Say where the time of a run goes: steps, stages, data loading, GPUs, gaps."""
        return _page(await self._command("summary", self._place(run)), page)

    async def stragglers(self, run: str, page: int = 1) -> str:
        """Find the ranks that are slower than the others, the stage, and steps that took longer than usual."""
        return _page(await self._command("stragglers", self._place(run)), page)

    async def outlier_steps(self, run: str, page: int = 1) -> str:
        """Give the steps that took longer than usual as JSON, with the late rank, its stage and the cost."""
        document = await self._command("stragglers", "--json", self._place(run))
        return _page(json.dumps(json.loads(document)["outliers"], indent=1), page)

    async def diff(self, before: str, after: str, page: int = 1) -> str:
        """Compare two runs. Say whether the step became slower, and name the stages."""
        return _page(await self._command("diff", self._place(before), self._place(after)), page)

    async def top_kernels(self, run: str, count: int = 20, page: int = 1) -> str:
        """Show where the time of the GPUs goes: idle time, kernels, launches, collectives, memory."""
        return _page(await self._command("gpu", "--top", str(max(1, count)), self._place(run)), page)

    async def query(self, run: str, sql: str, page: int = 1) -> str:
        """Ask the event table of a run: one SELECT in DuckDB's SQL. Returns CSV. Read tracekit://schema for the tables."""
        limits = ("--max-rows", "10000", "--max-seconds", str(_TIME_LIMIT_S))
        rows = await self._command("query", "--quiet", "--format", "csv", *limits, "--", self._place(run), sql)
        return _page(rows, page, heads=1)

    async def open_link(self, trace: str) -> str:
        """Give a link that opens a trace in Perfetto, in a browser on this machine. It works for an hour at most."""
        command = _program("open", "--no-browser", "--json", "--timeout", "3600", "--", self._place(trace))
        process = await anyio.open_process(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=_environment())
        self._links.append(process)
        return str(json.loads(await _first_document(process))["address"])

    # ---- how they do it -------------------------------------------------------------------------------------------------

    def _name(self, path: Path) -> str:
        """Return the path below the only folder; else the whole path."""
        folder = self._folders[0]
        return str(path.relative_to(folder)) if len(self._folders) == 1 else str(path)

    def _place(self, name: str) -> str:
        """Return the path of a run or trace; raise ToolError if it does not exist, or is outside the folders."""
        for folder in self._folders:
            try:
                path = (folder / name).resolve()
                is_there = self._holds(path) and path.exists()
            except (OSError, ValueError):  # too long, or with a NUL
                continue
            if is_there:
                # A command would follow a link to the outside.
                for link in filter(Path.is_symlink, path.rglob("*") if path.is_dir() else ()):
                    if not self._holds(link.resolve()):
                        raise ToolError(
                            f"{visible(str(link))}: this link leads out of the folders that may be read; name another run"
                        )
                return str(path)
        folders = ", ".join(map(str, self._folders))
        raise ToolError(f"{name}: there is no such run or trace in {folders}; list_runs shows those that are")

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(allowed) for allowed in self._folders)

    async def _command(self, *arguments: str) -> str:
        """Return what a command prints; raise ToolError with its message if it failed, or took too long."""
        with anyio.move_on_after(_TIME_LIMIT_S):
            done = await anyio.run_process(_program(*arguments), stdin=DEVNULL, check=False, env=_environment())
            if done.returncode in _FINDINGS:
                return done.stdout.decode(errors="replace")
            raise ToolError(_message(done.stderr) or f"tracekit {arguments[0]} ended with {done.returncode}")
        raise ToolError(
            f"tracekit {arguments[0]} took longer than {_TIME_LIMIT_S} s; ask about fewer ranks or a shorter part"
        )


def _program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tracekit", *arguments]


def _environment() -> dict[str, str]:
    # An agent wants plain lines, of any width.
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}


def _message(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("tracekit: ") if lines else ""


def _short(line: str) -> str:
    """Return a line that fits on a page, with the number of characters that are cut."""
    cut = len(line) - PAGE_CHARS
    return line if cut <= 0 else f"{line[:PAGE_CHARS]} [{cut:,} more characters]\n"


def _page(text: str, page: int, heads: int = 0) -> str:
    """Return one page of a text, cut between lines; each page begins with the first ``heads`` lines."""
    lines = text.splitlines(keepends=True)
    head, pages = "".join(lines[:heads]), [""]
    for line in map(_short, lines[heads:]):
        if pages[-1] and len(head) + len(pages[-1]) + len(line) > PAGE_CHARS:
            pages.append("")
        pages[-1] += line
    if not 1 <= page <= len(pages):
        raise ToolError(f"page {page} does not exist; the last page is {len(pages)}")
    more = f"\n[page {page} of {len(pages)}]" if len(pages) > 1 else ""
    return head + pages[page - 1].rstrip() + more


async def _first_document(process: Process) -> str:
    """Return the JSON object that a process prints first; raise ToolError with its message if it ended before."""
    text = b""
    if process.stdout is not None:
        async for piece in process.stdout:
            text += piece
            if text.endswith(b"\n}\n"):
                return text.decode()
    stderr = b"" if process.stderr is None else b"".join([piece async for piece in process.stderr])
    raise ToolError(_message(stderr) or "tracekit open ended before it had an address")
