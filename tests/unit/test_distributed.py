"""Which process this is, from every launcher's environment."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit import ConfigError
from tracekit.distributed import detect_process

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "job-7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
}
SLURM = {
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "3",
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "1",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize(
    ("environ", "rank", "local_rank", "world_size", "node", "attempt", "source"),
    [
        ({}, 0, 0, 1, 0, 0, "default"),
        (TORCHRUN, 5, 1, 8, 1, 2, "torchrun"),
        (SLURM, 6, 2, 16, 3, 0, "slurm"),
        (OPENMPI, 3, 1, 4, 1, 0, "openmpi"),
        (PMI, 2, 2, 4, 0, 0, "pmi"),
        ({**SLURM, **TORCHRUN}, 5, 1, 8, 1, 2, "torchrun"),
        ({**SLURM, "SLURM_JOB_NAME": "bash"}, 0, 0, 1, 0, 0, "default"),
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3, 3, 4, 0, 0, "torchrun"),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}, 3, 0, 4, 1, 0, "torchrun"),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 3, 1, 4, 1, 0, "torchrun"),
        ({"RANK": ""}, 0, 0, 1, 0, 0, "default"),
    ],
)
def test_the_launchers_environment_says_who_this_is(
    environ: dict[str, str], rank: int, local_rank: int, world_size: int, node: int, attempt: int, source: str
) -> None:
    found = detect_process(environ=environ)
    assert (found.rank, found.local_rank, found.world_size, found.node, found.attempt, found.source) == (
        rank, local_rank, world_size, node, attempt, source,
    )  # fmt: skip
    assert found.pid == os.getpid()


def test_arguments_come_before_everything() -> None:
    found = detect_process(rank=1, world_size=2, local_rank=0, node=9, attempt=4, run_id="mine", environ=TORCHRUN)
    assert (found.rank, found.world_size, found.local_rank, found.node, found.attempt, found.run_id, found.source) == (
        1, 2, 0, 9, 4, "mine", "arguments",
    )  # fmt: skip


def test_an_initialised_torch_distributed_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 7, get_world_size=lambda: 8
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    found = detect_process(environ=TORCHRUN)
    assert (found.rank, found.source) == (7, "torch.distributed")
    assert "torch.distributed says rank 7 of 8, torchrun says rank 5 of 8" in caplog.text
    alone = detect_process(environ={})
    assert (alone.rank, alone.local_rank, alone.world_size) == (7, 7, 8), "not 0, which is another rank's GPU"


def test_a_torch_distributed_that_is_not_initialised_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(is_available=lambda: False))
    assert detect_process(environ=TORCHRUN).source == "torchrun"


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        ({"RANK": "first"}, {}, "RANK must be a whole number, not 'first'"),
        ({}, {"rank": 2, "world_size": 2}, "rank 2 is not below world_size 2"),
        ({}, {"rank": -1}, "rank must be a whole number"),
        ({}, {"world_size": 0}, "not below world_size 0"),
        ({}, {"local_rank": "1"}, "local_rank must be a whole number"),
        ({}, {"node": True}, "node must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(environ: dict[str, str], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detect_process(environ=environ, **arguments)


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        ({"TRACEKIT_RUN_ID": "named", **TORCHRUN}, "named"),
        (TORCHRUN, "job-7"),
        (SLURM, "4242.1"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "1"},
            "node7-29500",
        ),
    ],
)
def test_the_ranks_of_a_run_agree_on_its_id(environ: dict[str, str], run_id: str) -> None:
    assert detect_process(environ=environ).run_id == run_id


def test_ranks_of_one_host_without_any_id_share_that_of_their_launcher() -> None:
    environ = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost"}
    first, second = (detect_process(environ={**environ, "RANK": rank}) for rank in "01")
    assert first.run_id == second.run_id
    assert first.run_id.endswith(f"-{os.getppid()}")


def test_a_single_process_gets_an_id_of_its_own() -> None:
    assert detect_process(environ={}).run_id.endswith(f"-{os.getpid()}")


def test_restarts_are_known_to_be_possible_before_the_first_one() -> None:
    assert detect_process(environ=TORCHRUN).restartable
    assert not detect_process(environ={**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "0"}).restartable
