"""``tracekit top`` as a person, a script and a terminal meet it."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

from tests.watched import record, train
from tracekit.check.schemas import compile_schema
from tracekit.cli import main
from tracekit.cli import top as verb
from tracekit.testing import FakeClock
from tracekit.view.live import Watch
from tracekit.view.live.files import Machine
from tracekit.view.live.screen import run_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
EVIL = "\x1b[2J\x1b]0;owned\x07\u202eevil\r\n[bold red]markup[/]"

# A rank of a job that trains until it is told to stop; it says when it has made a step.
JOB = """
import sys, time
from pathlib import Path
from subprocess import PIPE
from tracekit import JSONTraceHandler, Profiler

folder, rank, stop = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
handler = JSONTraceHandler(folder + "/{run_id}/rank{rank}.json")
end = time.monotonic() + 600
with Profiler(handler, rank=rank, world_size=2, run_id="job", flush_interval=0.05, shutdown_timeout=120) as profiler:
    while not stop.exists() and time.monotonic() < end:
        with profiler.marker("forward"):
            time.sleep(0.004 + 0.006 * rank)
        with profiler.marker("all_reduce"):
            time.sleep(0.008 - 0.006 * rank)
        profiler.step()
"""


def start(*arguments: str, **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen([sys.executable, *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}, **options)


@contextlib.contextmanager
def job(folder: Path) -> Iterator[list[subprocess.Popen[Any]]]:
    """Run two ranks until the block ends."""
    stop = folder.with_name("stop")
    ranks = [start("-c", JOB, str(folder), str(rank), str(stop)) for rank in range(2)]
    try:
        yield ranks
        stop.touch()
        for rank in ranks:
            rank.wait(240)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks of three: one has ended, the other was killed, and the third has never come."""
    monkeypatch.setattr(Machine, "is_process_alive", lambda _self, _head: None)
    for rank in range(2):
        clock = FakeClock()
        with record(tmp_path, rank=rank, world_size=3, clock=clock) as profiler:
            train(profiler, clock, 5, slow=1 + rank)
            live = (tmp_path / "run" / f"rank{rank}.json").read_bytes()
    (tmp_path / "run" / "rank1.json").write_bytes(live)
    os.utime(tmp_path / "run" / "rank1.json", (1, 1))
    return tmp_path


def look_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["top", "--once", "--json", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    (line,) = out.splitlines()
    document: dict[str, Any] = json.loads(line)
    assert compile_schema("top")(document) is None
    return code, document


def test_person_and_script_are_told_who_is_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(folder), "--once"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("run: cut, 2 of 3 ranks")
    assert lines[1] == "step 5, 45.0 ms a step, 22.2 a second"
    assert lines[2] == "slowest: rank 1, 10.0 ms a step more than the others (31%), in forward"
    assert lines[4].split() == ["rank", "state", "step", "last", "median", "own", "stages", "of", "a", "step"]
    assert lines[5].split()[:4] == ["0", "finished", "5", "40.0"]
    assert lines[5].endswith("backward 50%, forward 25%, backward > all_reduce 20%, dataloader 5%")
    assert lines[6].split()[:3] == ["1", "cut", "5"]
    assert "nothing came for" in lines[6]
    assert lines[7] == "lost: no file of rank 2"

    code, look = look_of(capsys, str(folder))
    assert (code, look["other_runs"]) == (3, [])
    run = look["run"]
    assert (run["run_id"], run["state"], run["missing"], run["unhealthy"]) == ("run", "cut", [2], True)
    assert [rank["state"] for rank in run["ranks"]] == ["finished", "cut"]
    assert run["slowest"]["rank"] == 1


def test_of_many_runs_newest_or_named_one_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("first", "second")):
        clock = FakeClock(wall_ns=(1_800_000_000 + number) * 10**9)
        with record(tmp_path, run_id=name, clock=clock) as profiler:
            train(profiler, clock, 2 + number)
    _, look = look_of(capsys, str(tmp_path))
    assert (look["run"]["run_id"], [run["run_id"] for run in look["other_runs"]]) == ("second", ["first"])
    _, look = look_of(capsys, str(tmp_path), "--run", "first")
    assert (look["run"]["run_id"], look["run"]["ranks"][0]["steps_seen"]) == ("first", 2)
    assert main(["top", str(tmp_path), "--once", "--run", "third"]) == 2
    assert "no run is named 'third'; there are: 'second', 'first'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{}/nowhere"], 1, "no such folder"),
        (["{}"], 1, "no rank trace is there (yet)"),
        (["{}/file.json"], 2, "is a file; name the folder"),
        (["{}", "--interval", "0"], 2, "is not a number of seconds from 0.1 on"),
        (["{}", "--interval", "nan"], 2, "is not a number of seconds from 0.1 on"),
        (["{}", "--sort", "name"], 2, "invalid choice"),
        (["nothing-of-the-kind://x/y"], 1, "nothing-of-the-kind"),
    ],
)
def test_wrong_usage_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "file.json").write_text("[]")
    assert main(["top", "--once", *(argument.format(tmp_path) for argument in arguments)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_names_cannot_speak_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    with record(tmp_path, clock=clock, run_id=EVIL) as profiler:
        for _ in range(3):
            with profiler.marker(EVIL):
                clock.advance(1_000_000)
            profiler.step()
    assert main(["top", str(tmp_path), "--once"]) == 0
    out = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in out)
    assert len(out.splitlines()) == 6
    _, look = look_of(capsys, str(tmp_path))
    assert look["run"]["run_id"] == EVIL


def test_counters_epoch_and_evaluation_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    with record(tmp_path, clock=clock) as profiler:
        profiler.next_epoch()
        profiler.marker("train loss").counter({"value": 2.5})
        profiler.marker("memory").counter({"free": 7, "used": 1e6})
        train(profiler, clock, 2)
        with profiler.marker("evaluation"):
            clock.advance(10**9)
            profiler.flush()
            assert main(["top", str(tmp_path), "--once"]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert "epoch" in lines[3]
            assert "train loss" in lines[3]
            assert lines[4].split()[:4] == ["0", "recording", "1", "2"]
            assert " 2.5 " in lines[4]
            assert "in evaluation 1, backward 50%" in lines[4]
    assert main(["top", str(tmp_path), "--once", "--counter", "memory.used", "--counter", "unknown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "memory.used  unknown" in lines[3]
    assert " 1e+06 " in lines[4]


@pytest.mark.parametrize("order", ["auto", "rank", "slowest", "step", "state", "lost", "quiet"])
def test_ranks_are_sorted_as_asked(folder: Path, capsys: pytest.CaptureFixture[str], order: str) -> None:
    assert main(["top", str(folder), "--once", "--sort", order]) == 3
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[5:7]]
    assert rows == (["1", "0"] if order in ("slowest", "state", "quiet") else ["0", "1"])


def test_job_is_watched_while_it_runs_and_a_killed_rank_is_named(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    with job(traces) as ranks:
        arguments = ("-m", "tracekit", "top", str(traces), "--json", "--interval", "0.1")
        top = start(*arguments, stdout=PIPE, stderr=PIPE, text=True)
        assert top.stdout is not None
        looks = (json.loads(line) for line in top.stdout)
        # At first a pause of one rank may count for more than its steps.
        both = next(
            look["run"]
            for look in looks
            if look["run"] and has_stages(look["run"], 2) and look["run"]["slowest"]["rank"] == 1
            if look["run"]["slowest"]["stage"] == "forward"
        )
        assert [rank["state"] for rank in both["ranks"]] == ["recording", "recording"]
        later = next(look["run"] for look in looks if look["run"]["step"] > both["step"] + 10)
        assert {stage["name"] for stage in later["ranks"][0]["stages"]} == {"forward", "all_reduce"}
        ranks[1].send_signal(signal.SIGKILL)
        ranks[1].wait()
        after = next(look["run"] for look in looks if look["run"]["ranks"][1]["state"] != "recording")
        assert (after["ranks"][0]["state"], after["ranks"][1]["state"]) == ("recording", "cut")
        assert after["ranks"][1]["reason"] == "its process is gone"
        top.send_signal(signal.SIGINT)
        _, err = top.communicate(timeout=240)
        assert (top.returncode, err) == (0, "")
    with start("-m", "tracekit", "top", "--once", str(traces), "--cut-after", "0.1", stdout=PIPE, text=True) as once:
        out, _ = once.communicate(timeout=240)
    assert once.returncode == 3
    assert [line.split()[:2] for line in out.splitlines()[5:7]] == [["0", "finished"], ["1", "cut"]]


def has_stages(run: dict[str, Any], ranks: int) -> bool:
    return len(run["ranks"]) == ranks and all(rank["steps_seen"] > 10 and rank["stages"] for rank in run["ranks"])


class Terminal:
    """A terminal of a size, in which top runs."""

    def __init__(self, *arguments: str, lines: int, columns: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tracekit", "top", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # what is read may end within a character

    def read_until(self, words: str) -> None:
        """Read until some words have come; fails when nothing comes any more."""
        end = time.monotonic() + 120
        while words not in self.seen:
            assert time.monotonic() < end, self.seen[-3000:]
            self._read()

    def _read(self) -> None:
        if select.select([self._master], [], [], 1)[0]:
            self.seen += self._decoder.decode(os.read(self._master, 65536))

    def end(self) -> int:
        """Press Ctrl-C; return the exit code."""
        os.kill(self.process.pid, signal.SIGINT)
        end = time.monotonic() + 120
        with contextlib.suppress(OSError):  # its other end is closed
            while time.monotonic() < end:
                self._read()
        return self.process.wait(240)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


ALTERNATE, BACK, HOME, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H", "\x1b[?25h"


def pictures(seen: str) -> list[list[str]]:
    """Return the lines of each picture that was drawn on the whole screen."""
    screen = seen.partition(ALTERNATE)[2].partition(BACK)[0]
    plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", picture) for picture in screen.split(HOME)]
    return [[line.rstrip() for line in picture.split("\r\n")] for picture in plain if picture.strip()]


def test_terminal_is_drawn_anew_within_its_size_and_given_back(tmp_path: Path) -> None:
    clock = FakeClock()
    own = {"world_size": 70, "run_id": "[red]a\x1b[2J", "name": "rank{rank}.json"}
    for rank in range(1, 60):
        ended = FakeClock()
        with record(tmp_path, rank=rank, clock=ended, **own) as profiler:
            train(profiler, ended, 1)
    with record(tmp_path, clock=clock, **own) as profiler:
        train(profiler, clock, 2)
        terminal = Terminal(str(tmp_path), "--interval", "0.1", lines=12, columns=80)
        try:
            terminal.read_until("step 2")
            train(profiler, clock, 5)
            terminal.read_until("step 7,")
            assert terminal.end() == 0
        finally:
            terminal.close()
    drawn = pictures(terminal.seen)
    assert len(drawn) >= 2
    for lines in drawn:
        assert len(lines) <= 12
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("[red]a\ufffd[2J: recording, 60 of 70 ranks")
    ending = terminal.seen.partition(BACK)
    assert CURSOR in ending[0] + ending[2]
    assert "step 7," in ending[2]  # what was seen last stays
    assert "Traceback" not in terminal.seen


@pytest.mark.parametrize(("height", "width"), [(5, 80), (9, 80), (10, 80), (24, 80), (24, 40), (24, 130), (50, 200)])
def test_of_many_ranks_worst_are_shown_and_table_fits_screen(folder: Path, height: int, width: int) -> None:
    for rank in range(2, 60):
        clock = FakeClock()
        with record(folder, rank=rank, world_size=70, clock=clock) as profiler:
            train(profiler, clock, 3, slow=1 + rank / 100)
    look = Watch(str(folder)).look()
    table = run_table(look, look.runs[0], width=width, height=height)
    assert len(table.title) + 1 + len(table.rows) + len(table.below) <= height
    assert max(map(len, table.title + table.below)) <= width
    cells = zip(table.head, *table.rows, strict=True)
    assert sum(max(map(len, column)) for column in cells) + 2 * (len(table.head) - 1) <= width
    assert [row[:2] for row in table.rows[:2]] == [("1", "cut"), ("59", "finished")]
    assert table.below[0].startswith(f"and {60 - len(table.rows)} ranks more; of all: 1 cut, 59 fi")


def test_without_rich_there_is_no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert verb.open_screen() is None


def test_looks_go_on_when_the_storage_fails_for_a_moment(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = folder.with_name("away")
    pauses: Iterator[Callable[[], object]] = iter([lambda: folder.rename(away), lambda: away.rename(folder)])

    def sleep(_seconds: float) -> None:
        act = next(pauses, None)
        if act is None:
            raise KeyboardInterrupt
        act()

    monkeypatch.setattr(verb.time, "sleep", sleep)  # type: ignore[attr-defined]
    assert main(["top", str(folder), "--json"]) == 0
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [bool(look["notes"]) for look in looks] == [False, True, False]
    assert "no such folder" in looks[1]["notes"][0]
    assert looks[1]["run"] == looks[0]["run"]
