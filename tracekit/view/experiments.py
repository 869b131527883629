"""Log traces and reports as artifacts to Weights & Biases and MLflow, only when somebody asks for it.

The libraries work in a separate process: it ends in time where a service does not answer, and their output and exit handlers
stay there. They read the service, the project and the credentials from their usual environment variables.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tracekit import storage
from tracekit.arguments import check_service
from tracekit.errors import StorageError, TracekitError
from tracekit.explain.run_report import report_run
from tracekit.handlers.merge_process import child_environment
from tracekit.view.report.page import report_page
from tracekit.wording import one_line

MAX_LOGGING_S: Final = 600.0
"""Then the process that logs is killed."""

_MAX_CHARACTERS: Final = 600
_NOT_IN_WANDB: Final = re.compile(r"[^\w.-]", re.ASCII)
"""Characters that Weights & Biases refuses in the name of an artifact."""


def log_trace(service: str, trace: str, *, run: str | None = None, folder: str | None = None) -> list[str]:
    """Log a merged trace, and the report on it, as artifacts of one run; return what was logged, where, and what was left out.

    The name of the run is by default the one that the trace states, else the name of the file. Raises the errors of `log_files`.
    """
    with tempfile.TemporaryDirectory(prefix="tracekit-report-") as made:
        page = Path(made, "report.html")
        files, sentences = [trace], []
        try:
            report = report_run([trace], cache=False)
            page.write_text(report_page(report), encoding="utf-8")
        except TracekitError as error:
            sentences.append(f"There is no report for {service}: {error}.")
        else:
            files.append(os.fspath(page))
            run = run or next(iter(report.runs), None)
        return [log_files(service, run or storage.basename(trace), files, folder=folder), *sentences]


def log_files(
    service: str, run: str, files: Sequence[str], *, folder: str | None = None, timeout_s: float = MAX_LOGGING_S
) -> str:
    """Log files (paths or URLs) as artifacts of one run; return a sentence that says where they are.

    ``WANDB_RUN_ID`` or ``MLFLOW_RUN_ID`` in the environment choose an existing run instead of a new one named ``run``. The
    library works in ``folder``, by default the current one. Raises MissingExtraError without the library, and StorageError if
    a file cannot be read or the service does not take it.
    """
    check_service(service, "--log-to ")
    names = " and ".join(storage.basename(file) for file in files)
    with tempfile.TemporaryDirectory(prefix="tracekit-log-") as made:
        words = [os.path.abspath(folder or os.curdir), service, run]  # noqa: PTH100
        for file in files:
            local = os.path.abspath(file)  # noqa: PTH100
            if storage.is_remote(file):
                local = os.fspath(Path(made, storage.basename(file)))
                storage.download(file, local)
            words.append(local)
        code, answer, problems = _in_process(words, timeout_s)
    if code is None:
        raise StorageError(f"{service}: {names} not logged: no answer in {timeout_s:g} s")
    if code:
        reason = next((line for line in reversed(problems.splitlines()) if line.strip()), f"exit code {code}")
        raise StorageError(f"{service}: {names} not logged: {one_line(reason, _MAX_CHARACTERS)}")
    return f"Logged {names} to {service}: {json.loads(answer)}."


def _in_process(words: Sequence[str], timeout_s: float) -> tuple[int | None, str, str]:
    """Run `_main` in a process; return its exit code, None after the timeout, and its output."""
    process = subprocess.Popen(  # noqa: S603 - this Python, and no shell
        [sys.executable, "-m", "tracekit.view.experiments", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=os.sep,  # Python would import modules of another folder
        env=_environment(),
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        answer, problems = process.communicate(timeout=timeout_s)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the helpers of the library
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, "", ""
        raise
    return process.returncode, answer, problems


def _environment() -> dict[str, str]:
    # A wandb service that a training process has started ends with it.
    return {name: value for name, value in child_environment().items() if name != "WANDB_SERVICE"}


def _log_to_wandb(name: str, files: Sequence[str]) -> str:
    wandb: Any = importlib.import_module("wandb")
    is_given = bool(os.environ.get("WANDB_RUN_ID"))
    with wandb.init(
        name=None if is_given else name,
        job_type=None if is_given else "tracekit",
        group=None if is_given or os.environ.get("WANDB_RUN_GROUP") else name,
        resume="allow" if is_given else None,
        settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True),
    ) as run:
        artifact = wandb.Artifact(_NOT_IN_WANDB.sub("_", f"trace-{name}")[:128], type="trace")
        for file in files:
            artifact.add_file(file)
        logged = run.log_artifact(artifact)
        if not run.offline:
            logged.wait()
        return str(run.dir if run.offline else run.url)


def _log_to_mlflow(name: str, files: Sequence[str]) -> str:
    mlflow: Any = importlib.import_module("mlflow")
    given = os.environ.get("MLFLOW_RUN_ID")
    # A run that is given keeps its state: it may still train.
    with contextlib.nullcontext() if given else mlflow.start_run(run_name=name):
        run_id = given or mlflow.active_run().info.run_id
        for file in files:
            mlflow.log_artifact(file, "tracekit", run_id=run_id)
        return f"run {run_id} of {storage.without_secrets(mlflow.get_tracking_uri())}"


_LOGGERS: Final[dict[str, Callable[[str, Sequence[str]], str]]] = {"wandb": _log_to_wandb, "mlflow": _log_to_mlflow}


def _main(folder: str, service: str, run: str, *files: str) -> int:
    """Log files in this process. The last line of standard error has the reason of a failure."""
    try:
        os.chdir(folder)
        with contextlib.redirect_stdout(sys.stderr):
            where = _LOGGERS[service](run, files)
    except Exception as error:  # noqa: BLE001 - of the library
        sys.stderr.write(f"\n{one_line(f'{type(error).__name__}: {error}', _MAX_CHARACTERS)}\n")
        return 1
    sys.stdout.write(json.dumps(where))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
