"""``--log-to``: the real libraries of Weights & Biases and MLflow, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from tests.report_pages import rank_trace
from tracekit import JSONTraceHandler, Profiler
from tracekit.cli import main
from tracekit.errors import ConfigError, MissingExtraError, StorageError
from tracekit.view.experiments import log_files

pytest.importorskip("wandb", reason="wandb is not installed")
pytest.importorskip("mlflow", reason="mlflow is not installed")

ROOT = Path(__file__).resolve().parents[2]
TRAINING = """
from tracekit import JSONTraceHandler, Profiler

handler = JSONTraceHandler("rank{rank}.json", merged_filename="merged.json", merge_timeout=200, log_to="SERVICE")
with Profiler(handler, rank=0, world_size=1, run_id="nightly") as profiler:
    for _ in range(3):
        with profiler.marker("forward"):
            pass
        profiler.step()
"""
SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
raise SystemExit(7)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with both services, and work in it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_DATA_DIR": str(tmp_path / "data"),
        "MLFLOW_TRACKING_URI": "mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "PYTHONPATH": str(ROOT),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def in_mlflow(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("mlruns/*/*/artifacts/tracekit/*"))


def in_wandb(folder: Path) -> list[str]:
    """Return the names that the record of the single run holds."""
    (record,) = folder.glob("wandb/offline-run-*/*.wandb")
    data = record.read_bytes()
    return [name for name in ("merged.json", "report.html", "trace-nightly") if name.encode() in data]


@pytest.mark.parametrize("service", ["wandb", "mlflow"])
def test_the_process_that_merges_for_a_handler_logs_the_trace_and_the_report(service: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING.replace("SERVICE", service)],
        # The service of a library that has ended with its process.
        env={**os.environ, "WANDB_SERVICE": "3-1-unix-/none/socket"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "WARNING" in done.stderr, "not " in done.stderr) == (0, False, False), done.stderr
    if service == "wandb":
        assert in_wandb(folder) == ["merged.json", "report.html", "trace-nightly"]
    else:
        assert in_mlflow(folder) == ["merged.json", "report.html"]


@pytest.mark.slow
def test_run_logs_after_its_merge_and_a_failure_costs_a_line_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "tracekit", "run", "--log-to", "mlflow", "-o"]
    script = ["--", sys.executable, "script.py"]
    done = subprocess.run([*command, "merged.json", *script], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert "Logged merged.json and report.html to mlflow: run " in done.stderr
    assert in_mlflow(folder) == ["merged.json", "report.html"]

    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    done = subprocess.run([*command, "other.json", *script], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert "mlflow: other.json and report.html not logged: MlflowException: The filesystem" in lines[-2]
    assert lines[-1] == "tracekit: Next: tracekit open other.json"


@pytest.mark.slow
def test_report_logs_to_a_given_run_and_leaves_its_state_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = rank_trace(folder / "rank0.json", 0)
    program = "import mlflow; print(mlflow.MlflowClient().create_run('0').info.run_id)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    meta = folder / "mlruns" / "0" / run / "meta.yaml"
    state = meta.read_text()
    monkeypatch.setenv("MLFLOW_RUN_ID", run)
    assert main(["report", str(trace), "--log-to", "mlflow"]) == 0
    assert f"Logged report.html and rank0.json to mlflow: run {run} of mlruns." in capsys.readouterr().err
    assert in_mlflow(folder) == ["rank0.json", "report.html"]
    assert meta.read_text() == state

    monkeypatch.setenv("MLFLOW_RUN_ID", "none")
    assert main(["report", str(trace), "--log-to", "mlflow", "-o", "again.html"]) == 3
    error = capsys.readouterr().err
    assert "again.html and rank0.json not logged: MlflowException: Run 'none' not found. The report is in" in error


def test_a_service_that_does_not_answer_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = folder / "modules"
    modules.mkdir()
    (modules / "mlflow.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", f"{modules}{os.pathsep}{ROOT}")
    (folder / "report.html").write_text("page")
    with pytest.raises(StorageError, match=r"mlflow: report.html not logged: no answer in 0.5 s"):
        log_files("mlflow", "nightly", ["report.html"], timeout_s=0.5)


def test_a_trace_on_a_remote_storage_is_fetched_first(folder: Path) -> None:
    with fsspec.open("memory://log-to/merged.json", "wb") as file:
        file.write(b"[]")
    assert "Logged merged.json to mlflow" in log_files("mlflow", "nightly", ["memory://log-to/merged.json"])
    assert in_mlflow(folder) == ["merged.json"]


def test_a_wrong_service_or_a_missing_library_is_an_error_at_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="log_to= needs merged_filename="):
        JSONTraceHandler("rank{rank}.json", log_to="wandb")
    with pytest.raises(ConfigError, match="log_to must be one of 'wandb', 'mlflow', not 'comet'"):
        JSONTraceHandler("rank{rank}.json", merged_filename="merged.json", log_to="comet")
    assert main(["run", "--log-to", "comet", "--", "true"]) == 2
    assert main(["run", "--log-to", "wandb", "--no-merge", "--", "true"]) == 2
    assert "--log-to logs the merged trace; leave --no-merge out" in capsys.readouterr().err

    (folder / "wandb").mkdir()  # as the library makes it; Python takes it for a package
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    handler = JSONTraceHandler("rank{rank}.json", merged_filename="merged.json", log_to="wandb")
    with (
        pytest.raises(MissingExtraError, match=r"log_to=wandb needs wandb: pip install 'tracekit-ml\[wandb\]'"),
        Profiler(handler, rank=0, world_size=1, run_id="nightly"),
    ):
        pass
    assert main(["run", "--log-to", "wandb", "--", "true"]) == 1
    assert "pip install 'tracekit-ml[wandb]'" in capsys.readouterr().err


def test_report_logs_to_wandb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = rank_trace(folder / "rank0.json", 0)
    assert main(["report", str(trace), "--log-to", "wandb"]) == 0
    assert "Logged report.html and rank0.json to wandb" in capsys.readouterr().err
    (record,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert all(name in record.read_bytes() for name in (b"report.html", b"rank0.json"))
