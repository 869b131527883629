"""tests/conftest.py cleans the environment, reports leaks, and fails skipped tests in continuous integration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import tests.conftest
from tests.conftest import *
tests.conftest.MAX_END_S = 0.1  # the thread that is left never ends
"""
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


@pytest.mark.parametrize("required", ["", "1"], ids=["wanted", "required"])
def test_leaks_are_errors_and_skips_fail_where_the_engine_and_the_core_are_required(
    tmp_path: Path, required: str
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    options = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:randomly", "-p", "no:cacheprovider"]
    told = {"RANK": "3", "SLURM_PROCID": "3", "TRACEKIT_RUN_ID": "x", "TRACEKIT_PURE_PYTHON": "1"}
    told |= {"TRACEKIT_REQUIRE_ENGINE": required, "TRACEKIT_REQUIRE_CORE": required, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *options, "--junitxml", tmp_path / "report.xml", tmp_path]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **told}, capture_output=True, check=False)
    # A test that passes and then fails in a fixture's end is listed with the error.
    cases = ET.parse(tmp_path / "report.xml").iter("testcase")
    assert {
        case.attrib["name"].removeprefix("test_"): next((child.tag for child in case), "passed") for case in cases
    } == {
        "environment_is_clean": "passed",
        "thread_is_left": "error",
        "profiler_is_left": "error",
        "nothing_is_left": "passed",
        "engine_is_skipped": "failure" if required else "skipped",
        "core_is_skipped": "error" if required else "skipped",  # skipped before it begins, which pytest calls an error
        "other_is_skipped": "skipped",
    }
