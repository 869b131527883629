"""`tracekit run` on real processes: unmodified scripts, ranks of torchrun, signals, exit codes, reasons."""

from __future__ import annotations

import gzip
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.object_store import BUCKET, ObjectStore, free_port
from tests.scripts import repeat_if_torch_aborts
from tests.served import rank_trace
from tracekit.check.validation import validate_trace

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "auto_scripts"
PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SLOW = pytest.mark.slow
KEPT = ("0x", "stats", "graph_break", "compiled", "recompiled", "True", "in between")
"""How the lines of the scripts begin or what they hold that a recording must not change."""


def environment(**variables: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT_")}
    for name in ("PYTHONPATH", "KINETO_LOG_LEVEL"):
        own.pop(name, None)
    return {**own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1", **variables}


def execute(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return repeat_if_torch_aborts(
        folder,
        lambda: subprocess.run(
            command,
            cwd=folder,
            env=environment(**variables),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        ),
    )


def recorded(folder: Path, *command: str, options: tuple[str, ...] = (), **variables: str) -> Any:
    """Run a command under `tracekit run`, with the merged trace in ``merged.json.gz`` of the folder."""
    output = () if "--no-merge" in options else ("-o", "merged.json.gz")
    return execute(folder, PYTHON, "-m", "tracekit", "run", *output, *options, "--", *command, **variables)


def started(folder: Path, *command: str, **options: Any) -> subprocess.Popen[str]:
    """Start `tracekit run` with these arguments."""
    return subprocess.Popen(
        [PYTHON, "-m", "tracekit", "run", *command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    prefix = "tracekit: "
    return [line.removeprefix(prefix) for line in done.stderr.splitlines() if line.startswith(prefix)]


def events(path: Path) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    return document["traceEvents"] if isinstance(document, dict) else document


def slices(path: Path) -> Counter[str]:
    return Counter(event["name"] for event in events(path) if event["ph"] in "XB")


def results(text: str) -> list[str]:
    # "2.0" is a whole line: the speeds that the Trainer prints may hold it.
    return [line for line in text.splitlines() if line == "2.0" or any(kept in line for kept in KEPT)]


def write(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


LOOP = """
import os, signal, sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""

MODULES = {
    "accelerate": ["-m", "accelerate.test_utils.scripts.test_script"],
    "accelerate_sync": ["-m", "accelerate.test_utils.scripts.test_sync"],
}

SINGLE = {
    "plain_loop": {"batch": 12, "optimizer": 12, "forward": 24, "backward": 24, "evaluation": 6, "save checkpoint": 4},
    "data_loaders": {"batch": 20, "optimizer": 40, "forward": 40, "fetch": 62},
    "generator_loop": {"batch": 10, "forward": 10, "backward": 10, "zero_grad": 9},
    "forks": {"batch": 15, "forward": 15, "optimizer": 15},
    "compiled": {"batch": 8, "forward": 16, "evaluation": 1, "backward": 32},
    "hf_trainer": {"batch": 6, "forward": 2 + 12, "evaluation": 2, "save": 2, "train": 2},
    "lightning_demo": {"batch": 3, "run_training_batch": 6, "train_dataloader_next": 6},
    "jax_steps": {"batch": 5, "train": 5, "wait": 5, "load": 4},
    "accelerate": {"batch": 120, "forward": 120, "optimizer": 120},
    "accelerate_sync": {"batch": 5, "forward": 10, "backward": 16},
}


@pytest.mark.parametrize("name", [name if name == "plain_loop" else pytest.param(name, marks=SLOW) for name in SINGLE])
def test_an_unmodified_script_is_recorded_and_its_results_are_the_same(tmp_path: Path, name: str) -> None:
    expected = SINGLE[name]
    command = [PYTHON, *MODULES.get(name, [str(SCRIPTS / f"{name}.py")])]
    plain = execute(tmp_path / "plain", *command)
    done = recorded(tmp_path / "recorded", *command)

    assert done.returncode == plain.returncode == 0, done.stderr
    assert results(done.stdout) == results(plain.stdout)
    assert results(plain.stdout) or name in MODULES
    found = slices(tmp_path / "recorded" / "merged.json.gz")
    assert {name: found[name] for name in expected} == expected
    report = validate_trace(tmp_path / "recorded" / "merged.json.gz")
    assert report.errors == 0
    lines = said(done)
    assert lines[-1] == "Next: tracekit open merged.json.gz"
    assert 2 <= len(lines) <= 6
    assert "steps of" in lines[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "ddp",
            {**dict.fromkeys(("batch", "forward", "backward", "optimizer", "all_reduce", "fetch"), 16), "barrier": 1},
        ),
        pytest.param("fsdp2", dict.fromkeys(("batch", "forward", "backward", "zero_grad"), 6), marks=SLOW),
    ],
)
def test_both_ranks_of_torchrun_are_in_one_trace_and_no_process_without_training(
    tmp_path: Path, name: str, expected: dict[str, int]
) -> None:
    command = [*TORCHRUN, str(SCRIPTS / f"{name}.py")]
    plain = execute(tmp_path / "plain", *command)
    done = recorded(tmp_path / "recorded", *command, options=("--steps", "3:5", "--ranks", "1"))

    assert (done.returncode, plain.returncode) == (0, 0), done.stderr + plain.stderr
    assert results(done.stdout) == results(plain.stdout) != []
    found = slices(tmp_path / "recorded" / "merged.json.gz")
    assert {name: found[name] for name in expected} == {name: 2 * count for name, count in expected.items()}
    assert [found[f"ProfilerStep#{number}"] for number in (2, 3, 4, 5)] == [0, 1, 1, 0]
    assert validate_trace(tmp_path / "recorded" / "merged.json.gz").errors == 0
    files = [path.name for path in (tmp_path / "recorded").glob("traces/*/*")]
    of_ranks = [name for name in files if name.startswith(("rank0", "rank1")) and "worker" not in name]
    assert len(of_ranks) == 2
    assert [name[:11] for name in files if name.startswith("torch")] == ["torch-rank1"]


@SLOW
def test_each_of_several_nodes_runs_the_command_and_one_merges(tmp_path: Path) -> None:
    command = ["--run-id", "job7", "--folder", "shared/{run_id}", "--", PYTHON, "-m", "torch.distributed.run"]
    command += ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port"]
    command += [str(free_port()), "--node-rank"]
    script = str(SCRIPTS / "ddp.py")
    nodes = [started(tmp_path, *command, node, script, stdout=subprocess.DEVNULL) for node in "01"]
    texts = [node.communicate()[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], texts
    assert slices(tmp_path / "shared" / "job7" / "merged.json.gz")["batch"] == 32
    assert "Next: tracekit open shared/job7/merged.json.gz" in texts[0]
    assert "recorded rank 1 of 2" in texts[1]
    assert "the node of rank 0 merges them" in texts[1]


def test_a_script_that_is_killed_ends_the_command_by_the_same_signal_and_is_merged(tmp_path: Path) -> None:
    killed = "import tracekit\ntrain(3)\ntracekit.active_profiler().flush()\nos.kill(os.getpid(), 9)"
    done = recorded(tmp_path, PYTHON, write(tmp_path, LOOP + killed))
    assert done.returncode == -signal.SIGKILL
    assert slices(tmp_path / "merged.json.gz")["optimizer"] == 3


COUNTS_SIGNALS = """
import signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
while not seen:
    signal.sigtimedwait([], 0.05)
for _ in range(20):
    signal.sigtimedwait([], 0.02)
print(*map(int, seen), flush=True)
sys.exit(5)
"""


@pytest.mark.parametrize(
    ("number", "to_group"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
    ids=["SIGINT to the process", "SIGTERM to the process", "SIGTERM to its group"],
)
def test_a_signal_reaches_the_script_once(tmp_path: Path, number: signal.Signals, to_group: bool) -> None:
    script = write(tmp_path, COUNTS_SIGNALS)
    with started(tmp_path, "--", PYTHON, script, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (os.killpg if to_group else os.kill)(process.pid, number)
        out, err = process.communicate()
    assert (out, process.returncode) == (f"{int(number)}\n", 5), err
    assert "no process imported torch or jax" in err


def test_ctrl_c_of_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    script = write(tmp_path, COUNTS_SIGNALS)
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execve(PYTHON, [PYTHON, "-m", "tracekit", "run", "--", PYTHON, script], environment())
    text = b""
    while b"ready" not in text:
        text += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"tracekit: " not in text:
        text += os.read(terminal, 1000)
    status = os.waitpid(child, 0)[1]
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5
    heard = text.partition(b"ready")[2].partition(b"tracekit: ")[0].replace(b"^C", b"")
    assert heard.split() == [b"2"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ([PYTHON, "-I", "-c", "import torch"], "python was started with -I"),
        ([PYTHON, "-c", "import torch"], "torch was imported, but there was no step of an optimizer"),
    ],
)
def test_a_run_without_a_recording_gets_the_reason(tmp_path: Path, command: list[str], reason: str) -> None:
    done = recorded(tmp_path, *command)
    assert done.returncode == 0
    (line,) = said(done)
    assert line.startswith(f"no process of this run was recorded: {reason}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "variables", "level"),
    [((), {}, ""), (("--steps", "1:2"), {}, "6"), (("--steps", "1:2"), {"KINETO_LOG_LEVEL": "1"}, "1")],
    ids=["not used", "used", "asked to"],
)
def test_torch_profiler_reports_nothing_unless_it_is_asked_to(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, str], level: str
) -> None:
    done = recorded(tmp_path, "sh", "-c", 'echo "$KINETO_LOG_LEVEL"', options=options, **variables)
    assert done.stdout == f"{level}\n"


@pytest.mark.parametrize(
    ("command", "options", "file", "code", "message"),
    [
        ([], (), {}, 2, "name the command to run behind --"),
        (["no-such-command"], (), {}, 127, "tracekit: no-such-command: no such command\n"),
        (["a.py"], (), {}, 127, "a.py: no such command; python runs a script: tracekit run -- python a.py\n"),
        (["touch", "started"], ("-o", "merged.txt"), {}, 2, "merged.txt: the output must end with .json or"),
        (["touch", "started"], ("--folder", ""), {}, 2, "argument --folder: the path is empty"),
        (["touch", "started"], ("--shapes",), {}, 2, "--shapes is for torch.profiler; add --steps A:B or --on-demand"),
        (["touch", "started"], ("--folder", "a/{rank}"), {}, 2, "folder a/{rank}: {run_id} is the only field"),
        (["touch", "started"], (), {"tracekit.toml": "step = 1"}, 2, "step is not an option; did you mean steps?"),
        (["touch", "started"], (), {"merged.json.gz": "precious"}, 1, "merged.json.gz"),
    ],
    ids=[
        "no command",
        "unknown command",
        "script",
        "name of the output",
        "unset variable",
        "missing option",
        "field of a folder",
        "option of a file",
        "output that exists",
    ],
)
def test_wrong_options_are_refused_before_the_command_starts(
    tmp_path: Path, command: list[str], options: tuple[str, ...], file: dict[str, str], code: int, message: str
) -> None:
    for name, text in file.items():
        (tmp_path / name).write_text(text)
    done = recorded(tmp_path, *command, options=options)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == file


@pytest.mark.parametrize("when", [pytest.param("early", marks=SLOW), "late"])
def test_a_profiler_of_the_script_wins_also_when_it_starts_late(tmp_path: Path, when: str) -> None:
    script = write(
        tmp_path,
        LOOP
        + """
from tracekit import JSONTraceHandler, Profiler
if sys.argv[1] == "late":
    train(2)
with Profiler(JSONTraceHandler("own.json")) as profiler:
    train(2)
    profiler.step()
train(2)
""",
    )
    folder = tmp_path / when
    done = recorded(folder, PYTHON, script, when)
    assert (done.returncode, done.stdout) == (0, "")
    assert said(done) == ["no process of this run was recorded: the script records with a Profiler of its own."]
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["own.json"]


def test_markers_of_the_script_are_there_and_neither_hooks_nor_the_finder_of_imports_stay(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        LOOP
        + """
import tracekit
def watches():
    return any(type(finder).__module__.startswith("tracekit") for finder in sys.meta_path)
assert watches()
train(1)
assert not watches()
with tracekit.marker("mine"):
    train(1)
    assert not torch.nn.modules.module._has_any_global_hook()
tracekit.marker("mine").counter({"loss": 1.0})
torch.jit.script(model)
assert "torch.distributed.checkpoint" not in sys.modules
import torch.distributed.checkpoint as dcp
train(1)
dcp.save({"weight": model.weight}, checkpoint_id="checkpoint", no_dist=True)
assert not watches()
""",
    )
    done = recorded(tmp_path, PYTHON, "-W", "ignore", script)
    assert done.returncode == 0, done.stderr
    found = slices(tmp_path / "merged.json.gz")
    assert (found["mine"], found["forward"], found["batch"]) == (1, 3, 3)
    assert found["save checkpoint"] == 2, "dcp.save, whose import came late, and torch.save inside it"


COPIES = """
import copy, gc, io, pickle, weakref
from torch._dynamo.utils import counters
train(2)
x = torch.ones(2, 4)
def show(what, found):
    print(what, found(x).sum().item().hex(), flush=True)
hook = model.register_forward_hook(lambda module, args, output: output * 2)
@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    return model(x) + 1
for _ in range(3):
    show("compiled", compiled)
    train(1)
hook.remove()
show("without the hook", compiled)
for name in ("stats", "graph_break"):
    print(name, sorted(counters[name].items()))
saved = io.BytesIO()
torch.save(model, saved)
saved.seek(0)
show("deep copy", copy.deepcopy(model))
show("copy", copy.copy(model))
show("pickle", pickle.loads(pickle.dumps(model)))
show("saved", torch.load(saved, weights_only=False))
replica = model._replicate_for_data_parallel()
replica.weight, replica.bias = torch.ones(4, 4), torch.zeros(4)
show("replica", replica)
show("scripted", torch.jit.script(model))
show("traced", torch.jit.trace(model, x))
show("exported", torch.export.export(model, (x,)).module())
print("nodes 0x", len(torch.fx.symbolic_trace(model).graph.nodes))
gc.disable()
other = torch.nn.Linear(4, 4)
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
show("other", other)
is_alive = weakref.ref(other)
del other, other_optimizer
print("freed 0x", is_alive() is None)
train(1)
"""


@SLOW
def test_copies_and_graphs_of_a_recorded_module_are_those_of_a_plain_one(tmp_path: Path) -> None:
    script = write(tmp_path, LOOP.replace("model =", "torch.manual_seed(0)\nmodel =") + COPIES)
    plain = execute(tmp_path / "plain", PYTHON, "-W", "ignore", script)
    done = recorded(tmp_path / "recorded", PYTHON, "-W", "ignore", script)
    assert (done.returncode, plain.returncode) == (0, 0), done.stderr + plain.stderr
    assert done.stdout == plain.stdout
    assert "freed 0x True" in plain.stdout
    assert slices(tmp_path / "recorded" / "merged.json.gz")["batch"] == 6


def test_torch_profiler_records_stacks_memory_and_shapes_beside_the_counters_of_the_system(tmp_path: Path) -> None:
    options = ("--steps", "1:2", "--with-stack", "--memory", "--shapes", "--folder", "here")
    wrapped = """
class Outer(torch.optim.Optimizer):
    def step(self, inner=optimizer):
        inner.step()
optimizer = Outer(model.parameters(), {})
train(4)
"""
    done = recorded(tmp_path, PYTHON, write(tmp_path, LOOP + wrapped), options=options)
    assert done.returncode == 0, done.stderr
    (trace,) = (tmp_path / "here").glob("torch-rank0-*.json.gz")
    found = events(trace)
    assert any(event.get("cat") == "python_function" for event in found)
    assert any(event["name"] == "[memory]" for event in found)
    assert any("Input Dims" in event.get("args", {}) for event in found)
    ends = {event["name"]: event["ts"] + event["dur"] for event in found if event.get("cat") == "user_annotation"}
    assert ends["Optimizer.step#SGD.step"] < ends["Optimizer.step#Outer.step"] <= ends["ProfilerStep#1"], (
        "the step ends when torch's slice has"
    )
    counters = {event["name"] for event in events(tmp_path / "merged.json.gz") if event["ph"] == "C"}
    assert any(name.startswith("process memory") for name in counters)


def test_a_broken_tracekit_leaves_the_script_alone(tmp_path: Path) -> None:
    hooks = ROOT / "tracekit" / "auto" / "bootstrap"
    (tmp_path / "tracekit").mkdir()
    (tmp_path / "tracekit" / "__init__.py").write_text("raise SystemExit('broken')", encoding="utf-8")
    path = os.pathsep.join([str(hooks), str(tmp_path)])
    options = json.dumps({"notes": str(tmp_path)})
    variables = {"TRACEKIT_AUTO": "1", "TRACEKIT_AUTO_OPTIONS": options, "PYTHONPATH": path}
    done = execute(tmp_path / "in", PYTHON, "-c", "print('fine')", **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
    (note,) = tmp_path.glob("failed-*")
    assert note.read_text(encoding="utf-8").endswith("SystemExit: broken")


def test_the_next_sitecustomize_is_imported_and_an_empty_entry_stays_the_current_folder(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys; sys.seen = __file__", encoding="utf-8")
    code = "import sys; print(sys.seen, sys.modules['sitecustomize'].__file__, any('bootstrap' in p for p in sys.path))"
    code += "; print(*sys.path[1:3])"
    done = recorded(tmp_path, PYTHON, "-c", code, PYTHONPATH=os.pathsep.join(["", str(ROOT), str(other)]))
    expected = str(other / "sitecustomize.py")
    assert done.stdout.split() == [expected, expected, "False", str(tmp_path), str(ROOT)]


@SLOW
def test_a_limit_removes_the_oldest_segments_and_says_so(tmp_path: Path) -> None:
    script = write(tmp_path, LOOP + "train(4000)")
    done = recorded(tmp_path, PYTHON, script, options=("--limit", "1MB"))
    assert done.returncode == 0
    assert said(done)[0].endswith(" were removed, because of --limit."), done.stderr
    kept = sum(path.stat().st_size for path in tmp_path.glob("traces/*/rank*"))
    assert kept <= 1_000_000
    assert 0 < slices(tmp_path / "merged.json.gz")["batch"] < 4000


def test_the_flight_recorder_writes_the_last_seconds_over_an_output_that_exists_when_asked(tmp_path: Path) -> None:
    """And merges nothing of an earlier run in the same folder."""
    (tmp_path / "merged.json.gz").write_bytes(b"precious")
    (tmp_path / "rank0.json").write_text(rank_trace(0, run="earlier"))
    os.utime(tmp_path / "rank0.json", (0, 0))
    script = write(tmp_path, LOOP + "train(3)\nraise SystemExit('over')")
    options = ("-f", "--folder", ".", "--flight-recorder", "30", "--steps", "90:95")
    done = recorded(tmp_path, PYTHON, script, options=options)
    assert done.returncode == 1
    assert said(done)[0] == "torch.profiler did not run: --steps begin at 90, and the run had 3 steps."
    assert slices(tmp_path / "merged.json.gz")["optimizer"] == 3


SPAWNS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


@SLOW
def test_spawned_ranks_record_into_an_object_store_and_are_merged_there(tmp_path: Path) -> None:
    pytest.importorskip("moto", reason="moto is not installed")
    store = ObjectStore()
    try:
        command = [PYTHON, "-m", "tracekit", "run", "--run-id", "job7", "--folder", f"s3://{BUCKET}/{{run_id}}", "--"]
        done = execute(tmp_path, *command, PYTHON, write(tmp_path, SPAWNS), str(free_port()), **store.environment())
        assert done.returncode == 0, done.stderr
        assert said(done)[-1] == f"Next: tracekit open s3://{BUCKET}/job7/merged.json.gz"
        (tmp_path / "merged.json.gz").write_bytes(
            store.client.get_object(Bucket=BUCKET, Key="job7/merged.json.gz")["Body"].read()
        )
    finally:
        store.stop()
    assert slices(tmp_path / "merged.json.gz")["batch"] == 6


@SLOW
def test_the_attempts_of_an_elastic_restart_are_in_one_trace(tmp_path: Path) -> None:
    fail = "\ntrain(3)\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    sys.exit(3)\n"
    done = recorded(tmp_path, *TORCHRUN, "--max-restarts", "1", write(tmp_path, LOOP + fail))
    assert done.returncode == 0, done.stderr
    names = [path.name for path in tmp_path.glob("traces/*/*")]
    assert {name[:14] for name in names} >= {"rank0-attempt1", "rank1-attempt1"}
    assert any("attempt0" in name for name in names)
    # torchrun may end the other rank of the first attempt before it has trained.
    assert 9 <= slices(tmp_path / "merged.json.gz")["batch"] <= 12


def capture_three_steps(tmp_path: Path, script: str) -> Counter[str]:
    """Run a script that ends with a file ``done`` under --on-demand, capture three steps; return the merged slices."""
    with started(tmp_path, "--on-demand", "--folder", "here", "--", PYTHON, script) as process:
        assert process.stderr is not None
        assert "tracekit capture" in process.stderr.readline()
        capture = [PYTHON, "-m", "tracekit", "capture", "here/control", "--steps", "3"]
        while (done := execute(tmp_path, *capture)).returncode != 0:
            assert process.poll() is None, done.stderr
        (tmp_path / "done").touch()
        process.communicate()
    found = slices(tmp_path / "here" / "merged.json.gz")
    assert found["batch"] == 4  # with one of warm-up
    return found


@SLOW
def test_on_demand_records_the_steps_that_a_capture_asks_for(tmp_path: Path) -> None:
    script = write(tmp_path, LOOP + "from pathlib import Path\nwhile not Path('done').exists():\n    train(1)\n")
    found = capture_three_steps(tmp_path, script)
    assert sum(count for name, count in found.items() if name.startswith("ProfilerStep#")) == 3


JAX_LOOP = """
import itertools, jax, jax.numpy as jnp
from pathlib import Path
train = jax.jit(lambda weights: weights * 0.5)
weights = jnp.ones(8)
for step in itertools.takewhile(lambda _: not Path("done").exists(), itertools.count()):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights = train(weights)
        weights.block_until_ready()
"""


@SLOW
@pytest.mark.parametrize("imports", ["", "import torch\n"])
def test_on_demand_runs_jax_profiler_in_the_steps_of_a_jax_script(tmp_path: Path, imports: str) -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    found = capture_three_steps(tmp_path, write(tmp_path, imports + JAX_LOOP))
    (trace,) = (tmp_path / "here" / "jax").glob("plugins/profile/*/*.trace.json.gz")
    numbers = [int(event["args"]["step_num"]) for event in events(trace) if event.get("name") == "train"]
    assert len(numbers) == 3
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert found["jax.profiler.start_trace"] == 1
    assert found["train"] == 4 + 3  # annotations as markers, and those in the trace of JAX
    assert list((tmp_path / "here").glob("torch-*")) == []


@SLOW
@pytest.mark.parametrize(
    ("name", "steps", "numbers"),
    [("jax_steps", "2:4", {2, 3}), ("jax_steps", "0:1", set()), ("jax_loader", "2:4", {2, 3})],
)
def test_the_steps_of_a_jax_script_have_a_trace_of_jax_only(
    tmp_path: Path, name: str, steps: str, numbers: set[int]
) -> None:
    """Also where the loader is torch's. The first annotation is made before the trace begins, and is not in it."""
    pytest.importorskip("jax", reason="jax is not installed")
    script = str(SCRIPTS / f"{name}.py")
    plain = execute(tmp_path / "plain", PYTHON, script)
    done = recorded(tmp_path, PYTHON, script, options=("--steps", steps, "--folder", "here"))
    assert (done.returncode, results(done.stdout)) == (0, results(plain.stdout)), done.stderr
    (trace,) = (tmp_path / "here" / "jax").glob("plugins/profile/*/*.trace.json.gz")
    assert {int(event["args"]["step_num"]) for event in events(trace) if event.get("name") == "train"} == numbers
    assert list((tmp_path / "here").glob("torch-*")) == []
    if name == "jax_steps":
        assert sum(event.get("name") == "wait" for event in events(trace)) == len(numbers or {0})
        merged = slices(tmp_path / "merged.json.gz")
        assert (merged["batch"], merged["jax.profiler.start_trace"], merged["jax.profiler.stop_trace"]) == (5, 1, 1)
        assert merged["wait"] > 5  # also those of JAX
        assert validate_trace(tmp_path / "merged.json.gz").errors == 0


def with_hook(folder: Path) -> str:
    """Return a program that trains, in a Python that imports what the package installs beside itself."""
    site = folder / "site"
    site.mkdir()
    shutil.copy(ROOT / "tracekit" / "auto" / "tracekit-auto.pth", site)
    script = write(folder, LOOP + "train(3)")
    return f"import site, runpy; site.addsitedir({str(site)!r}); runpy.run_path({script!r})"


def test_the_variable_does_the_same_without_the_command(tmp_path: Path) -> None:
    code = with_hook(tmp_path)
    done = execute(tmp_path / "on", PYTHON, "-c", code, TRACEKIT_AUTO="1", TRACEKIT_RUN_ID="run")
    assert done.returncode == 0, done.stderr
    assert "Next: tracekit open traces/run/merged-0.json.gz" in done.stderr
    assert slices(tmp_path / "on" / "traces" / "run" / "merged-0.json.gz")["batch"] == 3


@SLOW
def test_without_the_variable_or_with_a_wrong_file_nothing_is_recorded_and_a_right_one_has_options(
    tmp_path: Path,
) -> None:
    code = with_hook(tmp_path)
    assert execute(tmp_path / "off", PYTHON, "-c", code).returncode == 0
    assert list((tmp_path / "off").iterdir()) == []

    (tmp_path / "tracekit.toml").write_text("folder = 'traces/{rank}'\n")
    done = execute(tmp_path / "wrong", PYTHON, "-c", code, TRACEKIT_AUTO="1")
    assert (done.returncode, list((tmp_path / "wrong").iterdir())) == (0, [])
    assert "tracekit: this process is not recorded: folder traces/{rank}: {run_id} is the only field" in done.stderr
    (tmp_path / "tracekit.toml").write_text('folder = "of_file/{run_id}"\nrecord_batches = false\nsteps = "1:2"\n')
    variables = {"TRACEKIT_AUTO": "1", "TRACEKIT_RUN_ID": "run", "TRACEKIT_STEPS": "0:1", "TRACEKIT_MERGE": "0"}
    done = execute(tmp_path / "file", PYTHON, "-c", code, **variables)
    assert done.returncode == 0, done.stderr
    (trace,) = (tmp_path / "file" / "of_file" / "run").glob("rank0*")
    assert b'"name":"optimizer"' in trace.read_bytes()
    assert b'"name":"batch"' not in trace.read_bytes()
    assert [path.name[-10:] for path in trace.parent.glob("torch-*")] == ["-0.json.gz"]
    assert list(trace.parent.glob("merged*")) == []


@SLOW
def test_the_variable_records_without_the_library_of_a_service(tmp_path: Path) -> None:
    code = "import sys; sys.modules['wandb'] = None; " + with_hook(tmp_path)
    variables = {"TRACEKIT_AUTO": "1", "TRACEKIT_RUN_ID": "run", "TRACEKIT_LOG_TO": "wandb"}
    done = execute(tmp_path / "on", PYTHON, "-c", code, **variables)
    assert done.returncode == 0, done.stderr
    assert "the merged trace will not be logged: log_to=wandb needs wandb: pip install" in done.stderr
    assert slices(tmp_path / "on" / "traces" / "run" / "merged-0.json.gz")["batch"] == 3


@SLOW
def test_options_come_from_the_command_line_then_the_environment_then_the_file(tmp_path: Path) -> None:
    script = write(tmp_path, LOOP + "train(6)")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tracekit]\nfolder = "of_file"\nsteps = "1:2"\nmerge = false\nrecord_batches = false\nwith_stack = true\n'
    )
    variables = {"TRACEKIT_FOLDER": "of_environment", "TRACEKIT_STEPS": "2:3"}
    done = recorded(tmp_path, PYTHON, script, options=("--no-merge", "--steps", "3:4"), **variables)
    assert done.returncode == 0, done.stderr
    first, last = said(done)
    assert first == "options of pyproject.toml"
    assert last.startswith("recorded rank 0 of 1 in ")
    assert "Next: tracekit merge -o " in last
    (trace,) = (tmp_path / "of_environment").glob("rank0*.json")
    assert b'"name":"optimizer"' in trace.read_bytes()
    assert b'"name":"batch"' not in trace.read_bytes()
    assert list(trace.parent.glob("torch-rank0-*-3.json.gz"))


NOTING = """
import tracekit
class Handler(tracekit.MemoryTraceHandler):
    def batch_end(self, timestamp):
        print("batch", int(timestamp.batch), file=open("noted", "a"))
class Source(tracekit.Source):
    def open(self, recorder, action):
        self.marker = recorder.marker("counting")
    def step(self, finished, action):
        self.marker.counter({"steps": 1.0})
    def close(self):
        pass
"""
ENTRY_POINTS = """
[tracekit.handlers]
noting = noting:Handler
broken = nothing_there:Handler
wrong = noting:Source
[tracekit.sources]
counting = noting:Source
"""


def test_handlers_and_sources_of_other_packages_record_and_broken_ones_are_left_out(tmp_path: Path) -> None:
    package = tmp_path / "site"
    info = package / "noting-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (package / "noting.py").write_text(NOTING)
    (tmp_path / "tracekit.toml").write_text('sources = ["counting"]')
    script = write(tmp_path, LOOP + "train(3)")
    by_name = ("--handler", "noting,broken,wrong,absent")
    done = recorded(tmp_path, PYTHON, script, options=by_name, PYTHONPATH=f"{ROOT}{os.pathsep}{package}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "noted").read_text().splitlines() == ["batch 1", "batch 2", "batch 3"]
    found = events(tmp_path / "merged.json.gz")
    assert sum(event["ph"] == "C" and event["name"].startswith("counting") for event in found) == 3
    broken, wrong, absent = (line for line in done.stderr.splitlines() if "is left out: " in line)
    assert broken.endswith(
        "'broken' of tracekit.handlers is left out: ModuleNotFoundError: No module named 'nothing_there'"
    )
    assert "'wrong' of tracekit.handlers is left out: ConfigError: trace_handlers must be a TraceHandler" in wrong
    assert absent.endswith("ConfigError: no installed package has it; there are: broken, noting, wrong")
