"""What tests/conftest.py promises: a clean environment, leaks that are seen, and no silent skip where none is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]

SAMPLE = """
import os, threading
import pytest

stop = threading.Event()

def test_environment_is_clean():
    assert not {"RANK", "SLURM_PROCID", "TRACEKIT_RUN_ID"} & set(os.environ)

def test_thread_is_left():
    threading.Thread(target=stop.wait, name="tracekit writer", daemon=True).start()

def test_profiler_is_left():
    stop.set()
    [thread.join() for thread in threading.enumerate() if thread.name == "tracekit writer"]
    from tracekit import MemoryTraceHandler, Profiler
    Profiler(trace_handlers=[MemoryTraceHandler()]).start()

def test_nothing_is_left():
    pass

@pytest.mark.engine
def test_engine_is_skipped():
    pytest.skip("no Node here")

@pytest.mark.core
def test_core_is_skipped():
    pass

def test_other_is_skipped():
    pytest.skip("not here")
"""


@pytest.fixture(scope="module", params=["", "1"], ids=["wanted", "required"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return how the sample's tests end: passed, skipped, failure, error; under "required" what was required."""
    folder = tmp_path_factory.mktemp("sample")
    # The thread that is left never ends, so that there is nothing to wait for.
    (folder / "conftest.py").write_text(
        "import tests.conftest\nfrom tests.conftest import *\ntests.conftest.MAX_END_S = 0.1\n"
    )
    (folder / "test_sample.py").write_text(SAMPLE)
    options = ["-c", ROOT / "pyproject.toml", "--rootdir", folder, "-p", "no:randomly", "-p", "no:cacheprovider"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--junitxml", folder / "report.xml", folder],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RANK": "3",
            "SLURM_PROCID": "3",
            "TRACEKIT_RUN_ID": "x",
            "TRACEKIT_REQUIRE_ENGINE": request.param,
            "TRACEKIT_REQUIRE_CORE": request.param,
            "TRACEKIT_PURE_PYTHON": "1",
        },
        capture_output=True,
        check=False,
    )
    found = {"required": request.param}
    for case in ET.parse(folder / "report.xml").iter("testcase"):
        # A test that passes and then fails in a fixture's end is listed with the error.
        found[case.attrib["name"]] = next((child.tag for child in case), "passed")
    return found


def test_launcher_variables_are_taken_away(outcomes: dict[str, str]) -> None:
    assert outcomes["test_environment_is_clean"] == "passed"


def test_a_thread_that_is_left_is_an_error(outcomes: dict[str, str]) -> None:
    assert outcomes["test_thread_is_left"] == "error"


def test_a_profiler_that_is_left_is_an_error_of_that_test_only(outcomes: dict[str, str]) -> None:
    assert outcomes["test_profiler_is_left"] == "error"
    assert outcomes["test_nothing_is_left"] == "passed"


def test_a_skipped_test_of_the_engine_or_the_core_fails_only_where_that_is_required(outcomes: dict[str, str]) -> None:
    assert outcomes["test_engine_is_skipped"] == ("failure" if outcomes["required"] else "skipped")
    # Skipped before it begins, which pytest calls an error.
    assert outcomes["test_core_is_skipped"] == ("error" if outcomes["required"] else "skipped")
    assert outcomes["test_other_is_skipped"] == "skipped"
