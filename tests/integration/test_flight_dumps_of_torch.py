"""Real dumps of torch's flight recorder: two ranks on gloo, one of which never joins the last all-reduce."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tracekit.cli import main

if TYPE_CHECKING:
    from pathlib import Path

torch_c10d = pytest.importorskip("torch._C._distributed_c10d")
if not hasattr(torch_c10d, "_dump_fr_trace"):
    pytest.skip("this torch has no flight recorder for gloo", allow_module_level=True)

CHILD = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "store"), rank=rank, world_size=2)
pair = dist.new_group([0, 1], group_desc="pair")

def done():
    # Two threads of gloo's note for each process group what is done, a little later and in any order; the last one that
    # does so says what was the last to complete.
    while not all(entry["retired"] for entry in json.loads(_dump_fr_trace_json(includeCollectives=True))["entries"]):
        time.sleep(0.01)

for _ in range(3):
    dist.all_reduce(torch.ones(4, 4))
    done()
dist.broadcast(torch.ones(2), 0, group=pair)
dist.barrier()
done()
if rank == 0:
    hung = dist.all_reduce(torch.ones(7), async_op=True)
with open(os.path.join(folder, f"json_rank_{rank}"), "wb") as file:
    file.write(_dump_fr_trace_json(includeCollectives=True))
with open(os.path.join(folder, f"pickle_rank_{rank}"), "wb") as file:
    file.write(_dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False))
print("ready", flush=True)
sys.stdin.read()  # the other rank may still exchange with this one
os._exit(0)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dumps of both ranks."""
    folder = tmp_path_factory.mktemp("dumps")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "2000"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(rank)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready, or has ended
    errors = [process.communicate(timeout=240)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    return folder


def test_real_dumps_are_merged(dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    merged = tmp_path / "merged.json"
    assert main(["merge", "-o", str(merged), str(dumps / "pickle_rank_*")]) == 0
    assert "rank 0: pickle_rank_0, flight recorder" in capsys.readouterr().out
    events = json.loads(merged.read_text())["traceEvents"]
    events = [event for event in events if event["ph"] != "M" and event.get("cat") != "clock"]
    of_rank = {rank: [event for event in events if event["pid"] // 100_000 == rank] for rank in range(2)}
    names = [event["name"] for event in of_rank[1]]
    assert names == ["gloo:all_reduce"] * 3 + ["gloo:broadcast", "gloo:barrier"]
    assert [event["name"] for event in of_rank[0]][:-1] == [*names, "gloo:all_reduce (not completed)"]
    hung = of_rank[0][-2]
    assert (hung["ph"], hung["args"]["completed"], hung["args"]["Seq"]) == ("B", "no", 5)
    assert hung["args"]["last_completed_collective of the group"] == 4
    assert hung["args"]["input_sizes"] == [[7]]
    assert any(frame.startswith("all_reduce (") for frame in hung["args"]["frames"])
    assert of_rank[0][-1]["name"] == "dump written"


@pytest.mark.parametrize("form", ["json", "pickle"])
def test_a_real_dump_is_converted(dumps: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "x.json"
    assert main(["convert", str(dumps / f"{form}_rank_0"), str(output)]) == 0
    assert "nothing lost" in capsys.readouterr().out
    tracks = {
        event["args"]["name"]
        for event in json.loads(output.read_text())["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert {"process group 0 (default_pg)", "process group 1 (pair)"} <= tracks


def test_a_dump_is_summarised_and_opened_like_a_trace(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(dumps / "pickle_rank_0")]) == 0
    assert "1 slice not counted: they begin and never end" in capsys.readouterr().out
    assert main(["stragglers", str(dumps / "pickle_rank_0")]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err
