"""``tracekit mcp`` as an agent uses it: through the client of the protocol's own Python SDK, over stdio."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import mcp
import orjson
import pytest

from tracekit.view.mcp_server import PAGE_CHARS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of two runs."""
    root = tmp_path / "traces"
    for name in ("slow", "fast"):
        (root / name).mkdir(parents=True)
        for path in (DATA / "torch_2.13_gloo").glob("full_rank*.json.gz"):
            shutil.copy(path, root / name)
    return root


def ask(root: Path, questions: Callable[[mcp.Client], Awaitable[None]]) -> None:
    """Start the server on a folder, and let a client ask."""

    async def session() -> None:
        server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "tracekit", "mcp", str(root)])
        async with mcp.Client(mcp.stdio_client(server)) as client:
            await questions(client)

    anyio.run(session)


async def call(client: mcp.Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    text: str = result.content[0].text  # type: ignore[union-attr]
    assert not result.is_error, text
    return text


async def refusal(client: mcp.Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    text: str = result.content[0].text  # type: ignore[union-attr]
    return text


def test_agent_gets_the_answers_of_the_commands(runs: Path) -> None:
    shutil.copytree(runs / "fast", runs / os.fsdecode(b"od\nd\xff"))

    async def questions(client: mcp.Client) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {
            "list_runs", "summary", "stragglers", "outlier_steps", "diff", "top_kernels", "query", "open_link",
        }  # fmt: skip
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        listed = (await call(client, "list_runs")).splitlines()
        assert sorted(line.split()[-1] for line in listed) == ["fast", "od\ufffdd\ufffd", "slow"]
        assert (await call(client, "list_runs", search="fas")).endswith("fast")
        assert "steps" in await call(client, "summary", run="fast")
        assert "rank" in await call(client, "stragglers", run="fast")
        assert isinstance(orjson.loads(await call(client, "outlier_steps", run="fast")), list)
        assert "step" in await call(client, "diff", before="slow", after="fast")
        assert await call(client, "top_kernels", run="fast")
        rows = await call(
            client, "query", run="fast", sql="-- ranks\nselect rank, count(*) n from events group by 1 order by 1"
        )
        assert [row.split(",")[0] for row in rows.splitlines()] == ["rank", "0", "1"]
        schema = await client.read_resource("tracekit://schema")
        assert "events" in schema.contents[0].text  # type: ignore[union-attr]

    ask(runs, questions)


def test_agent_reads_nothing_outside_of_the_folders(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("[]")
    (runs / "link.json").symlink_to(tmp_path / "secret.json")

    async def questions(client: mcp.Client) -> None:
        outside = ("../secret.json", str(tmp_path / "secret.json"), "link.json", "/etc")
        for name in (*outside, "none", "--help", "a\0b", "x" * 300):
            assert "there is no such run or trace in" in await refusal(client, "summary", run=name)
        assert "this link leads out of the folders" in await refusal(client, "summary", run=".")
        for sql in ("select * from read_text('/etc/passwd')", "copy events to '/tmp/x'", "select 1; select 2"):
            assert await refusal(client, "query", run="fast", sql=sql)
        assert "nonsense" in await refusal(client, "query", run="fast", sql="select nonsense from events")

    ask(runs, questions)


def test_long_answers_come_in_pages_and_longer_lines_say_what_is_cut(runs: Path) -> None:
    async def questions(client: mcp.Client) -> None:
        sql = "select i, repeat('x', 90) as text from range(1000) t(i) order by i"
        pages = [await call(client, "query", run="fast", sql=sql, page=page) for page in range(1, 6)]
        assert all(len(page) <= PAGE_CHARS + 100 and page.startswith("i,text") for page in pages)
        assert pages[0].endswith("[page 1 of 5]")
        rows = [row for page in pages for row in page.splitlines()[1:] if not row.startswith("[page")]
        assert [int(row.split(",")[0]) for row in rows if row] == list(range(1000))
        told = await refusal(client, "query", run="fast", sql=sql, page=6)
        assert told.endswith("page 6 does not exist; the last page is 5")
        text = await call(client, "query", run="fast", sql=f"select repeat('x', {PAGE_CHARS + 500}) as text")
        assert text.splitlines()[0] == "text"
        assert re.search(r"x \[50\d more characters\]", text)
        assert len(text) < PAGE_CHARS + 100

    ask(runs, questions)


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_link_serves_the_trace_until_the_agent_leaves_or_a_signal_comes(runs: Path, number: int | None) -> None:
    addresses = []

    async def questions(client: mcp.Client) -> None:
        address = await call(client, "open_link", trace="fast/full_rank0_step4.json.gz")
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as page:
            assert b"full_rank0_step4.json.gz" in page.read()
        addresses.append(address)
        if number is not None:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            os.kill(int(children[-1]), number)  # while it waits for the agent
            with contextlib.suppress(OSError):
                while True:
                    urllib.request.urlopen(address).close()

    ask(runs, questions)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(addresses[0])


def test_folder_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "mcp", str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tracekit: {tmp_path}/none: not a folder on this machine; give folders that hold runs\n"
