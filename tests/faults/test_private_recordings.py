"""What may not get out: secrets never, and names of hosts, users and folders not in a private recording."""

from __future__ import annotations

import gzip
import os
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import Child, in_process_writer, opened
from tracekit import ConfigError, FlightRecorder, JSONTraceHandler, Profiler, StorageError, merge_traces, storage
from tracekit.cli import main
from tracekit.statistics import DurationStatistics
from tracekit.timers import JSONLinesSink, TimerTable

if TYPE_CHECKING:
    from tests.perfetto import Engine

HOST, USER, FOLDER = "plantedhost", "planteduser", "plantedfolder"

# The host's name is planted in the process: setting the machine's own would be felt by everybody.
RECORDS = """
import socket
socket.gethostname = lambda: "plantedhost.example"
from tracekit import FlightRecorder, JSONTraceHandler, Profiler, SystemProfiler, TorchProfiler
sources = [SystemProfiler(interval=0.05)]
if os.environ["TORCH"] == "1":
    import torch
    sources.append(TorchProfiler("torch-{rank}-{batch}.json", record_shapes=True, with_stack=True))
recorder = FlightRecorder("dump-{rank}-{host}-{dump}.json", on_signal=signal.SIGUSR1)
profiler = Profiler(
    [JSONTraceHandler("rank{rank}-{host}-{run_id}.json"), JSONTraceHandler("packed-{rank}.json.gz"), recorder],
    sources=sources, rank=0, world_size=2, sigterm_grace=5.0, **eval(os.environ["OPTIONS"]),
)
def load(path):
    with open(path):
        pass
try:
    with profiler:
        if os.environ["TORCH"] == "1":
            torch.ones(3) + 1
        with profiler.marker("work"):
            pass
        profiler.step()
        os.kill(os.getpid(), signal.SIGUSR1)
        profiler.flush(), profiler.flush(), profiler.flush()
        load(os.path.join(os.getcwd(), "no such file"))
except FileNotFoundError:
    pass
say("ended")
"""

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cr3t-of-the-store",
    "HF_TOKEN": "hf_plantedtokenplantedtoken",
    "WANDB_API_KEY": "0123456789plantedkey0123456789",
}


def written_in(folder: Path) -> bytes:
    """Return every byte that was written below a folder, unpacked, and the names of the files."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "tally.bin":
            data = path.read_bytes()
            found += [path.name.encode(), gzip.decompress(data) if path.suffix == ".gz" else data]
    assert len(found) >= 6, "there is nothing to look at"
    return b"\n".join(found)


PRIVATE = "{'private': True}"
"""The options of a private recording."""


def run(folder: Path, torch: bool, **environment: str) -> Child:
    folder = folder / USER / FOLDER
    (folder / "tmp").mkdir(parents=True)
    if torch:
        pytest.importorskip("torch", reason="torch is not installed")
    usual = {"TORCH": str(int(torch)), "OPTIONS": "{}", "TMPDIR": str(folder / "tmp"), "USER": USER, "LOGNAME": USER}
    place = {"MASTER_ADDR": f"{HOST}.example", "MASTER_PORT": "29500"}
    return Child(RECORDS, folder, environment={**usual, **place, **environment})


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_a_private_recording_has_no_host_user_or_folder_in_any_byte(tmp_path: Path, engine: Engine, way: str) -> None:
    switch = {"OPTIONS": PRIVATE} if way == "argument" else {"TRACEKIT_PRIVATE": "1"}
    with run(tmp_path, way == "argument", **switch) as child:
        child.hear("ended")
        assert child.end() == 0, child.errors
        folder = tmp_path / USER / FOLDER
        data = written_in(folder)
        for word in (HOST, USER, FOLDER, str(tmp_path)):
            assert word.encode() not in data, word
        boot = Path("/proc/sys/kernel/random/boot_id")
        if boot.exists():
            assert boot.read_bytes().strip() not in data
        assert "Traceback" not in child.errors
        assert {mode for name, mode in modes(folder).items() if ".json" in name} == {0o600}
        traces = [path for path in folder.glob("*.json") if not path.name.startswith("torch")]
        assert len(traces) == 3  # the rank trace, a dump for the signal and one for the exception
        for path in traces:
            remains = opened(engine, path)
            assert remains.metadata["host"].startswith("host-")
        if way == "argument":
            assert "records no stacks" in child.errors
            assert b'"exception: FileNotFoundError"' in data
            whole = [str(path) for path in folder.glob("*.json") if "dump" not in path.name]
            merge_traces(str(tmp_path / "merged.json"), whole)
            with engine.load(tmp_path / "merged.json") as trace:
                assert trace.errors() == []
                assert trace.scalar("select count(*) from slice where name = 'aten::add'") >= 1
            merged = (tmp_path / "merged.json").read_bytes()
            assert not any(word.encode() in merged for word in (HOST, USER, FOLDER))


def test_no_secret_of_the_environment_or_the_command_line_gets_into_a_file_or_a_log_line(tmp_path: Path) -> None:
    with run(tmp_path, False, **SECRETS) as child:
        child.hear("ended")
        assert child.end() == 0, child.errors
        data = written_in(tmp_path) + child.errors.encode()
        for secret in SECRETS.values():
            assert secret.encode() not in data
        assert b"sys.argv" not in data
        assert os.fsencode(Child.__module__) not in data


URLS = """
import logging
logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s")
import tempfile
from tracekit import JSONTraceHandler, Profiler, TracekitError, merge_traces
import fsspec
class Refuses(fsspec.AbstractFileSystem):
    protocol = "refuses"
    def _refuse(self, path, *args, **options):
        raise OSError(5, "no such bucket")
    put_file = makedirs = info = ls = exists = pipe_file = _refuse
fsspec.register_implementation("refuses", Refuses)
url = "refuses://key:plantedsecret@bucket/{run_id}/t.json"
for form in (url, url + "?signature=plantedsecret&x=1", url.replace("json", "json.gz")):
    try:
        with Profiler(JSONTraceHandler(form), rank=0, shutdown_timeout=0.5) as profiler:
            with profiler.marker("work"):
                pass
        merge_traces("merged.json", [form.format(run_id="x")])
    except TracekitError as error:
        logging.error("%s", error)
say("ended")
"""


def test_secrets_in_urls_are_in_no_log_line_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    with Child(URLS, tmp_path, environment={"TMPDIR": str(tmp_path / "tmp")}) as child:
        child.hear("ended")
        assert child.end() == 0, child.errors
        assert "plantedsecret" not in child.errors
        assert child.errors.count("refuses://bucket/") >= 3
        for path in (tmp_path / "tmp").rglob("*"):
            assert "plantedsecret" not in str(path)
            assert not path.is_file() or b"plantedsecret" not in path.read_bytes()


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in folder.rglob("*")
        if path.name != "tally.bin"
    }


MODES = """
os.umask(int(os.environ["MASK"], 8))
from tracekit import FlightRecorder, JSONTraceHandler, Profiler
options = {"mode": int(os.environ["MODE"], 8)} if os.environ["MODE"] else {}
with Profiler(
    [
        JSONTraceHandler("a/b/t.json", **options), JSONTraceHandler("a/b/t2.json.gz", **options),
        FlightRecorder("a/c/dump{dump}.json", on_close=True, **options),
        JSONTraceHandler("a/d/part{part}.json.gz", rotate_seconds=0.0001, **options),
    ],
    rank=0,
) as profiler:
    for _ in range(3):
        with profiler.marker("work"):
            time.sleep(0.001)
        profiler.flush()
"""


@pytest.mark.parametrize(
    ("mask", "mode", "files", "folders"),
    [("000", "", 0o600, 0o700), ("077", "", 0o600, 0o700), ("077", "640", 0o640, 0o750)],
)
def test_files_are_for_their_user_alone_whatever_the_umask_says(
    tmp_path: Path, mask: str, mode: str, files: int, folders: int
) -> None:
    with Child(MODES, tmp_path, environment={"MASK": mask, "MODE": mode}) as child:
        assert (child.end(), child.errors) == (0, "")
        found = modes(tmp_path)
        assert len(found) >= 8
        assert {found.pop(name) for name in ("a", "a/b", "a/c", "a/d")} == {folders}
        assert set(found.values()) == {files}


@pytest.mark.parametrize("mode", [0o200, 0o400, 0o755, 0o1600, -1, True, "640", None])
def test_a_mode_that_is_none_is_refused(mode: Any) -> None:
    for make in (JSONTraceHandler, FlightRecorder):
        with pytest.raises(ConfigError, match="mode must say who may read and write"):
            make(mode=mode)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_outputs_of_commands_are_for_their_user_alone_whatever_the_umask_and_the_file_before(
    tmp_path: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        source = tmp_path / "recorded" / "t.json"
        with Profiler(JSONTraceHandler(source), rank=0) as profiler:
            for _ in range(3):
                with profiler.marker("a"):
                    pass
                profiler.step()
        torn = tmp_path / "recorded" / "torn.json"
        torn.write_bytes(source.read_bytes()[:-20])
        torn.chmod(0o644)
        commands = {
            **{f"merged.{form}": "merge -f" for form in ("json", "json.gz", "pftrace", "zip", "tar")},
            "trimmed.json": "trim -f --ranks 0",
            "anonymous.json": "anonymise -f",
            "report.html": "report -f",
            "recovered.json": "recover -f",
            "part-{part}.json": "split -f --by-rank",
        }
        there = tmp_path / "there"
        there.mkdir(mode=0o755)
        for name, arguments in commands.items():
            overwritten = there / name.format(part="rank0")
            overwritten.write_text("before")
            overwritten.chmod(0o644)
            for output in (there / name, tmp_path / "new" / "folders" / name):
                trace = torn if arguments.startswith("recover") else source
                assert main([*arguments.split(), str(trace), "-o", str(output)]) == 0, arguments
        assert main(["convert", str(source), str(tmp_path / "new" / "converted.pftrace")]) == 0
        JSONLinesSink(tmp_path / "new" / "timers" / "timers.jsonl").write(
            TimerTable({0: {"x": DurationStatistics([1])}}), 1
        )
        with storage.atomic_write(str(tmp_path / "new" / "others" / "x"), mode=0o640) as file:
            file.write(b"x")
    finally:
        os.umask(before)
    found = modes(tmp_path / "new") | {f"there/{name}": mode for name, mode in modes(there).items()}
    assert (found.pop("others"), found.pop("others/x")) == (0o750, 0o640)
    assert len([name for name in found if "." in name]) == 2 * len(commands) + 2
    assert {name for name, mode in found.items() if mode != (0o600 if "." in name else 0o700)} == set()


@pytest.mark.parametrize("place", ["final", "live", "dangling"])
def test_a_link_that_somebody_planted_is_not_followed(tmp_path: Path, place: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "traces"
    if place != "dangling":
        victim.write_text("precious")
    folder.mkdir()
    link = folder / ("t.json.gz" if place == "final" else "t.json")
    link.symlink_to(victim)
    with (
        pytest.raises((ConfigError, StorageError), match=r"t\.json"),
        Profiler(in_process_writer(folder / "t.json.gz"), rank=0),
    ):
        pass
    assert victim.exists() == (place != "dangling")
    assert place == "dangling" or victim.read_text() == "precious"
    assert link.readlink() == victim


def test_a_dump_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "dump0.json").symlink_to(tmp_path / "victim")
    recorder = FlightRecorder(tmp_path / "dump{dump}.json", on_close=True, on_signal=signal.SIGUSR1)
    with Profiler(recorder, rank=0):
        pass
    assert (tmp_path / "victim").read_text() == "precious"
    assert [Path(path).name for path in recorder.paths] == ["dump1.json"]
