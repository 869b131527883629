"""The real JAX on the CPU: its traces stand where they belong on tracekit's timeline.

JAX runs in child processes: once it is imported, it warns of every later fork of its process.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import merge_traces, validate_trace
from tracekit.errors import MergeError
from tracekit.formats.xprof import MOST_EVENTS, start_in_xplane, start_of_anchors

if TYPE_CHECKING:
    from tests.perfetto import Engine
    from tracekit import MergeReport

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed"),
]

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}

LOOPS = """
import contextlib, sys
import jax, jax.numpy as jnp
from tracekit import JSONTraceHandler, Profiler
from tracekit.integrations.jax import JaxAnnotations, JaxProfiler, JaxProfilerConfig

folder = sys.argv[1]

@jax.jit
def compute(x):
    return (x @ x).sum()

def train(profiler, jax_profiler, steps, fail_at=None):
    x = jnp.ones((300, 300))
    for step in steps:
        with profiler.marker("compute"):
            loss = compute(x).block_until_ready()
        if step == fail_at:
            raise ZeroDivisionError
        jax_profiler.on_training_step({"loss": loss}, 0, step)

config = JaxProfilerConfig(profile_first_step=2, profile_n_steps=3)
name = "/rank{rank}.json"
with Profiler([JSONTraceHandler(folder + "/loop" + name), JaxAnnotations()]) as profiler:
    with JaxProfiler(config, log_path=folder + "/loop") as jax_profiler:
        train(profiler, jax_profiler, range(1, 9))
        print(dict(jax_profiler.failures))
# Without JaxProfiler, as many a script has it.
with Profiler(JSONTraceHandler(folder + "/plain" + name)) as profiler:
    with jax.profiler.trace(folder + "/plain/logs", create_perfetto_trace=True):
        with profiler.marker("compute"):
            compute(jnp.ones((300, 300))).block_until_ready()
# On another thread, and ended by an exception in the step.
with Profiler(JSONTraceHandler(folder + "/failed" + name)) as profiler, contextlib.suppress(ZeroDivisionError):
    with JaxProfiler(config, log_path=folder + "/failed", background=True) as jax_profiler:
        train(profiler, jax_profiler, range(1, 9), fail_at=4)
# More events than JAX's JSON holds, without those of Python's functions, and private.
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
with Profiler(private=True), JaxProfiler(config, log_path=folder + "/many", profiler_options=options) as jax_profiler:
    for step in range(1, 6):
        for _ in range(400_000 * (3 <= step)):
            with jax.profiler.TraceAnnotation("spam"):
                pass
        jax_profiler.on_training_step(None, 0, step)
# Nobody ends it but the interpreter.
at_exit = JaxProfiler(config, log_path=folder + "/at_exit")
with Profiler(JSONTraceHandler(folder + "/at_exit" + name)) as profiler:
    train(profiler, at_exit, range(1, 5))
"""


def run(code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error::UserWarning:tracekit", "-c", code, *arguments]
    return subprocess.Popen(
        command, env={**ENVIRONMENT, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(child: subprocess.Popen[str]) -> str:
    output, errors = child.communicate(timeout=240)
    assert child.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What some loops on the real JAX have written, each into a folder."""
    folder = tmp_path_factory.mktemp("jax")
    assert finish(run(LOOPS, str(folder))) == "{}\n"
    return folder


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def the_trace(folder: Path) -> Path:
    (path,) = folder.rglob("*.trace.json.gz")
    return path


def merged(folder: Path, **options: Any) -> tuple[Path, MergeReport]:
    output = folder.parent / f"{folder.name}-merged.json"
    return output, merge_traces(str(output), [str(folder)], overwrite=True, **options)


OUTSIDE = """
    with found as (
      select s.ts, s.dur, s.name, p.name as process from slice s join thread_track t on t.id = s.track_id
      join thread using (utid) join process p using (upid))
    select op.ts,
      (select min(max(marker.ts - op.ts, 0) + max(op.ts + op.dur - marker.ts - marker.dur, 0)) from found marker
       where marker.name = 'compute' and marker.process = 'rank 0') as outside_ns
    from found op where op.process = 'rank 0 · XLA /host:CPU' and op.name glob '{pattern}'
"""


@pytest.mark.parametrize(("folder", "steps"), [("loop", 3), ("plain", 1), ("failed", 2), ("at_exit", 2)])
def test_what_a_marker_surrounds_lies_in_it_after_the_merge(
    loops: Path, engine: Engine, folder: str, steps: int
) -> None:
    output, report = merged(loops / folder, strict=True)
    assert report.complete
    assert validate_trace(str(output)).counts == {}
    (rank,) = report.ranks
    assert rank.aligned
    assert rank.processes == ["rank 0", "rank 0 · XLA /host:CPU"]
    assert rank.error_ns is not None
    assert rank.error_ns < 50_000_000
    with engine.load(output) as trace:
        assert trace.errors() == []
        # The call on Python's thread, and the product itself on one of XLA's.
        calls = trace.rows(OUTSIDE.format(pattern="PjitFunction(compute)"))
        products = trace.rows(OUTSIDE.format(pattern="*dot*")) + trace.rows(OUTSIDE.format(pattern="*fusion*"))
    for rows in (calls, products):
        assert len(rows) >= steps
        assert all(int(outside_ns) <= rank.error_ns for _, outside_ns in rows), rows


def test_the_start_that_tracekit_records_is_that_of_the_xplane(loops: Path) -> None:
    """Two ways to the same time: they agree within their errors."""
    path = the_trace(loops / "loop")
    anchors = [
        (round(event["ts"] * 1000), round(event["dur"] * 1000), event["args"])
        for event in events(path)
        if event.get("name") == "tracekit_clock_anchor"
    ]
    recorded, written = start_of_anchors(anchors), start_in_xplane(str(path))
    assert recorded is not None
    assert recorded.start_ns is not None
    assert written.start_ns is not None
    assert abs(recorded.start_ns - written.start_ns) <= recorded.error_ns + written.error_ns
    assert recorded.identity["pid"] == written.identity["pid"]
    assert written.identity["host"] == recorded.identity["host"] == socket.gethostname()


def test_the_report_says_what_places_the_trace_and_how_exactly(loops: Path) -> None:
    _, report = merged(loops / "loop")
    assert re.search(r"the XLA profile ± [\d.]+ µs, from a reading of the clock in the trace", report.ranks[0].clock)
    assert [(item.kind, item.rank_source) for item in report.inputs] == [
        ("tracekit", "tracekit_metadata"),
        ("xprof", "tracekit_clock_anchor"),
    ]
    _, report = merged(loops / "plain")
    assert re.search(r"the XLA profile ± [\d.]+ µs, from the start in its xplane.pb", report.ranks[0].clock)
    assert [(item.kind, item.rank_source) for item in report.inputs] == [
        ("tracekit", "tracekit_metadata"),
        ("xprof", "the only one of its process"),
    ]
    assert [item.reason for item in report.omitted] == ["JAX's copy of the trace beside it"]


def test_without_a_start_a_trace_is_flagged(loops: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(loops / "plain", folder)
    for path in folder.rglob("*.xplane.pb"):
        path.unlink()
    _, report = merged(folder)
    assert not report.ranks[0].aligned
    assert "no reading of the clock by tracekit, no xplane.pb beside it" in report.warnings[0]
    with pytest.raises(MergeError, match="does not tell its clock"):
        merged(folder, strict=True)


def test_steps_and_markers_are_in_jax_s_own_trace(loops: Path) -> None:
    """For XProf and TensorBoard, which know nothing of the rank trace."""
    found = events(the_trace(loops / "loop"))
    assert [event["args"]["step_num"] for event in found if event.get("name") == "train"] == ["3", "4", "5"]
    assert sum(event.get("name") == "compute" for event in found) == 3
    assert any(event.get("name", "").startswith("$") for event in found), "the Python functions are there"
    folder = the_trace(loops / "loop").parent
    assert folder.name == "step_00000003"
    assert sorted(path.name for path in folder.iterdir()) == [
        f"process0-{socket.gethostname()}.{kind}" for kind in ("trace.json.gz", "xplane.pb")
    ]


def test_jax_keeps_the_first_million_events(loops: Path) -> None:
    """Of 1.2 million; the reading of the clock is among the first."""
    text = gzip.decompress(the_trace(loops / "many").read_bytes())
    assert text.count(b'"ph":"X"') == MOST_EVENTS
    assert text.count(b'"name":"tracekit_clock_anchor"') == 3


def test_a_private_trace_names_no_host(loops: Path) -> None:
    host = socket.gethostname()
    found = sorted(path for path in (loops / "many").rglob("*") if path.is_file())
    assert [path.name for path in found] == ["process0.trace.json.gz", "process0.xplane.pb"]
    names = re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])".encode())
    for path in found:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        assert host.encode() not in content or not names.search(content), path
    written = start_in_xplane(str(found[0]))
    assert written.start_ns is not None
    assert "host" not in written.identity


PROCESSES = """
import sys
import jax
folder, port, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
import jax.numpy as jnp
from tracekit import JSONTraceHandler, Profiler
from tracekit.integrations.jax import JaxProfiler, JaxProfilerConfig, windows

windows._AHEAD_NS = 1_000_000_000  # these two are on one machine, and their steps are short
compute = jax.jit(lambda x: (x @ x).sum())
x = jnp.ones((64, 64), device=jax.local_devices()[0])
client = jax._src.distributed.global_state.client

def barrier(step):
    # What the collectives of a real step do: no process is more than a step ahead of another.
    client.wait_at_barrier(f"step {step}", 60_000)

config = JaxProfilerConfig(
    main_process_only=False, profile_first_step=3, profile_n_steps=2, profile_every_n_minutes=0.002
)
with Profiler(JSONTraceHandler(folder + "/rank{rank}.json"), run_id="run") as profiler:
    print(profiler.process.rank, profiler.process.world_size, profiler.process.source)
    with JaxProfiler(config, log_path=folder) as jax_profiler:
        step = 0
        while len(jax_profiler.traces) < 2:
            step += 1
            compute(x).block_until_ready()
            barrier(step)
            jax_profiler.on_training_step(None, 0, step)
"""


def test_processes_of_one_machine_record_the_same_steps_into_one_folder(tmp_path: Path, engine: Engine) -> None:
    """jax.distributed on the CPU: by number, and by the time of process 0."""
    with socket.socket() as held:
        # Held until the end, so that the system gives it to nobody else while JAX is imported; JAX shares it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
        children = [run(PROCESSES, str(tmp_path), port, str(index)) for index in range(2)]
        outputs = [finish(child) for child in children]
    assert outputs == ["0 2 jax.distributed\n", "1 2 jax.distributed\n"]
    sessions: dict[str, set[str]] = {}
    for path in tmp_path.rglob("*.trace.json.gz"):
        sessions.setdefault(path.parent.name, set()).add(path.name.split("-")[0])
    assert list(sessions.values()) == [{"process0", "process1"}] * 2, sessions
    assert "step_00000004" in sessions, "by number; the other one by time"
    output = tmp_path / "merged.json"
    report = merge_traces(str(output), [str(tmp_path)], strict=True)
    assert [rank.aligned for rank in report.ranks] == [True, True]
    assert {item.rank for item in report.inputs if item.kind == "xprof"} == {0, 1}
    with engine.load(output) as trace:
        assert trace.errors() == []


def test_the_example_merges_and_opens(tmp_path: Path, engine: Engine) -> None:
    source = ROOT / "examples" / "jax_loop.py"
    command = [sys.executable, str(source)]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split()
    assert printed[:4] == ["tracekit", "merge", "-o", "merged.json.gz"]
    report = merge_traces(str(tmp_path / "merged.json.gz"), [str(tmp_path / printed[4])], strict=True)
    assert [item.kind for item in report.inputs] == ["tracekit", "xprof"]
    with engine.load(tmp_path / "merged.json.gz") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'train step'") == 10
        assert trace.scalar("select count(*) from slice where name = 'train'") == 3
