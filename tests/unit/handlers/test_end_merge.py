"""The merge options of a handler: refused arguments, and the files in the merge command."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import JSONTraceHandler, Profiler
from tracekit.distributed import detect_process
from tracekit.errors import ConfigError
from tracekit.handlers import merge_process
from tracekit.handlers.merge_process import MergeCommand
from tracekit.naming import FileName
from tracekit.storage import expand
from tracekit.timestamp import Timestamp

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "merged", "options", "message"),
    [
        ("rank{rank}.json", "{run}/m.json", {}, "there is no field {run}"),
        ("rank{rank}.json", "m-{part}.json", {}, "there is no field {part}"),
        ("rank{rank}.json", "m{rank}.json", {}, "one file holds all ranks; take {rank} out of it"),
        ("rank{rank}.json", "merged.txt", {}, "must end with .json, .json.gz, .pftrace"),
        ("rank{rank}.json", 7, {}, "merged_filename must be a path or URL"),
        ("rank{rank}.json", "m.json", {"merge_timeout": 0}, "merge_timeout must be a number of seconds above 0"),
        ("rank{rank}.json", "m{batch}.json", {}, "pass merge_every_window=True"),
        ("rank{rank}.json", "m.json", {"merge_every_window": True}, "put {epoch} or {batch} into filename"),
        ("{batch}-{rank}.json", "m.json", {"merge_every_window": True}, "put {epoch} or {batch} into merged_filename"),
        (
            "{batch}-{rank}-{part}.json",
            "m{batch}.json",
            {"merge_every_window": True, "rotate_bytes": 9},
            "rotation and remote",
        ),
        ("s3://b/{batch}-{rank}.json", "m{batch}.json", {"merge_every_window": True}, "rotation and remote names"),
        ("rank{rank}.json", None, {"merge_every_window": True}, "needs merged_filename"),
        ("t.json", "t.json", {}, "can be the name of a rank trace"),
        ("t.json", "./x/../t.json", {}, "can be the name of a rank trace"),
        ("t.json.gz", "t.json", {}, "can be the name of a rank trace"),
        ("{run_id}/rank{rank:03d}.json", "{run_id}/rank000.json.gz", {}, "can be the name of a rank trace"),
        ("s3://b/{run_id}/{rank}.json", "s3://b/{run_id}/7-part0001.json", {}, "can be the name of a rank trace"),
    ],
)
def test_wrong_options_are_refused_when_the_handler_is_made(
    name: str, merged: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        JSONTraceHandler(name, merged_filename=merged, **options)


@pytest.mark.parametrize(
    "merged", ["m.json", "{run_id}/{world_size}-{attempt}.pftrace.gz", "{node}{host}{pid}.zip", "rank.json"]
)
def test_other_names_are_taken(merged: str) -> None:
    JSONTraceHandler("rank{rank}.json", merged_filename=merged)


def test_attempts_do_not_share_a_merged_trace(tmp_path: Path) -> None:
    handler = JSONTraceHandler(tmp_path / "rank{rank}-{attempt}.json", merged_filename=tmp_path / "m.json")
    with pytest.raises(ConfigError, match=r"put \{attempt\} into it"):
        Profiler(handler, attempt=1).start()


@pytest.mark.parametrize("why", ["other rank", "child", "not started"])
def test_nothing_is_merged_by(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_process, "start_merge", lambda *_: pytest.fail("a merge was started"))
    handler = JSONTraceHandler(tmp_path / "rank{rank}.json", merged_filename=tmp_path / "m.json")
    process = detect_process(rank=1, world_size=2)
    if why == "child":
        process = detect_process(rank=0).as_child("worker")
    profiler = Profiler(handler, process=process)
    if why == "not started":
        (tmp_path / "rank1.json").write_text("taken")
        with pytest.raises(ConfigError, match="exists already"):
            profiler.start()
        return
    with profiler:
        profiler.marker("m").instant()
    assert handler.merged_path is None


def test_children_do_not_merge_and_copies_do() -> None:
    handler = JSONTraceHandler(
        "{batch}-{rank}.json", merged_filename="m{batch}.json", merge_timeout=9, merge_every_window=True
    )
    copy = pickle.loads(pickle.dumps(handler))
    assert copy.__reduce__()[0].keywords == handler.__reduce__()[0].keywords
    assert handler.__reduce__()[0].keywords["merge_timeout"] == 9
    assert handler.for_children()("worker 0").__reduce__()[0].keywords["merged_filename"] is None


def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[MergeCommand, float]]:
    """Return the list that commands are added to, instead of being run."""
    commands: list[tuple[MergeCommand, float]] = []
    monkeypatch.setattr(merge_process, "start_merge", lambda *command: commands.append(command) or 1)
    return commands


def test_the_command_names_the_files_of_all_ranks_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = started(monkeypatch)
    here = tmp_path / "a [1]"
    here.mkdir()
    monkeypatch.chdir(here)
    handler = JSONTraceHandler(
        "{run_id}/{host}/rank{rank:03d}-{attempt}.json", merged_filename="{run_id}/m.json", merge_wait=False
    )
    with Profiler(handler, run_id="RUN", rank=0, world_size=8) as profiler:
        profiler.marker("m").instant()
    ((command, timeout_s),) = commands
    inputs = [f"{tmp_path}/a [[]1]/RUN/*/rank*-0.json", f"{tmp_path}/a [[]1]/RUN/*/rank*-0-*.json"]
    assert command.arguments == ["--wait-for-ranks", "8", "--timeout", "60", "-o", f"{here}/RUN/m.json", *inputs]
    assert timeout_s == 0
    assert expand(inputs[0], (".json",)) == [str(here / handler.paths[0])]
    assert str(command).startswith("tracekit merge --wait-for-ranks 8 --timeout 0 -o '")
    (here / "RUN" / "m.json").write_text("a part of it")
    assert str(command).startswith("tracekit merge --force --wait-for-ranks 8 ")
    assert handler.merged_path == "RUN/m.json"


def test_the_command_names_the_run_where_the_names_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = started(monkeypatch)
    with Profiler(
        JSONTraceHandler(tmp_path / "{rank}.json", merged_filename=tmp_path / "m.json"), run_id="A B", rank=0
    ):
        pass
    assert commands[0][0].arguments[2:4] == ["--run", "A B"]


def test_globs_match_no_other_window_and_no_folder() -> None:
    process, at = detect_process(run_id="RUN", rank=0, world_size=2), Timestamp(epoch=1, batch=2)
    assert FileName("{run_id}/{host}{pid}/{rank}.json").globs(process, at) == ["RUN/*/*.json"]
    assert FileName("e{epoch}/b{batch:03d}.json").globs(process, at, window=True) == ["e1/b002.json", "e1/b002-*.json"]
    assert FileName("e{epoch}/b{batch}.json").globs(process, at) == ["e*/b*.json"]
    assert FileName("s3://b/{run_id}/r{rank}-{part}.json.gz", "part").globs(process, at) == ["s3://b/RUN/r*-*.json.gz"]
    assert FileName("{{x}}/[{rank}].json").globs(process, at) == ["{x}/[[]*].json", "{x}/[[]*]-*.json"]


def test_a_secret_in_a_url_is_not_shown_to_other_users(caplog: pytest.LogCaptureFixture) -> None:
    url = "ftp://user:word@host/m.json"
    assert merge_process.start_merge(MergeCommand(url, ["-o", url], ["-o", url]), 1) is None
    assert "tracekit: ftp://host/m.json is not merged (the URL holds a secret" in caplog.text
    assert "word" not in caplog.text


def test_a_process_that_cannot_be_started_is_logged_with_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with Profiler(JSONTraceHandler(tmp_path / "{rank}.json", merged_filename=tmp_path / "m.json"), rank=0) as profiler:
        pass
    assert "m.json is not merged (Resource temporarily unavailable). To merge it: tracekit merge " in caplog.text
    assert not profiler.stats.failures
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]


def test_windows_that_end_faster_than_they_are_merged_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runs:
        pid = 1

        def poll(self) -> None:
            return None

    merges: list[Any] = []
    monkeypatch.setattr(merge_process, "_merges", merges)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Runs())
    monkeypatch.setattr("os.setpriority", lambda *_: None)
    for number in range(6):
        output = str(tmp_path / f"{number}.json")
        merge_process.start_merge(MergeCommand(output, ["-o", output], ["-o", output]), 1)
    assert len(merges) == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "5.json is not merged (4 merges are running). To merge it: tracekit merge -o " in caplog.text
