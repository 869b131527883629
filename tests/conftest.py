"""Fixtures for all tests: a clean environment, real traces, Perfetto's engine and UI, and a check for leaks."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import hypothesis
import pytest

from tests.examples import ALL, QUICK
from tests.native import cores
from tests.perfetto import Browser, Engine, UnavailableError
from tests.real_traces import OWN, RealTraces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

ROOT = Path(__file__).resolve().parent.parent


def is_set(variable: str) -> bool:
    """Return True if a variable of the environment is set and not 0."""
    return os.environ.get(variable, "0") not in {"", "0"}


REQUIRED = {
    "engine": is_set("TRACEKIT_REQUIRE_ENGINE"),
    "browser": is_set("TRACEKIT_REQUIRE_ENGINE"),
    "core": is_set("TRACEKIT_REQUIRE_CORE"),
}
"""By marker: whether a test that has it fails where it would be skipped elsewhere."""

# Launchers set these variables. Tests that need them set them themselves.
LAUNCHER_VARIABLES = {
    "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK",
    "WORLD_SIZE",
}  # fmt: skip
LAUNCHER_PREFIXES = ("MPI_", "OMPI_", "PMI", "ROLE_", "SLURM_", "TORCHELASTIC_", "TRACEKIT_")

MAX_END_S = 60.0
"""How long a thread of tracekit may take to end after its test."""

NUMBERS = itertools.count()
"""Numbers of the tests that a process runs."""

# Hypothesis draws this many examples for a property. "quick" is the default; scripts/test --all selects "all". In .ci/run the
# examples are the same each time, so that only a change can make it fail; elsewhere they are new each time.
for profile, examples in {"quick": QUICK, "all": ALL}.items():
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        derandomize="TRACEKIT_REQUIRE_ENGINE" in os.environ,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],  # says how busy the machine is
    )
hypothesis.settings.load_profile("quick")


# pytest compiles every test module anew where PYTHONDONTWRITEBYTECODE is set; what the tests start keeps to the variable.
sys.dont_write_bytecode = False

# A shell that starts the tests in the background has Ctrl-C ignored, by them and by every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the engine or the browser, and skip those that need a core that is not there."""
    missing = missing_core()
    for item in items:
        for name in ("engine", "browser"):
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(name)
        if missing and item.get_closest_marker("core") is not None:
            item.add_marker(pytest.mark.skip(reason=missing))


def missing_core() -> str | None:
    """Return why the compiled core is not used here, or None."""
    if is_set("TRACEKIT_PURE_PYTHON"):
        return "TRACEKIT_PURE_PYTHON asks for pure Python"
    names = [each.name for each in cores.extensions() if importlib.util.find_spec(each.name) is None]
    return f"not built here (is there a C compiler?): {', '.join(names)}" if names else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail instead of skip where the engine, the browser or the core are required, as in continuous integration."""
    report = yield
    required = [name for name, yes in REQUIRED.items() if yes and item.get_closest_marker(name)]
    if required and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"here the {required[0]} is required, and this test was skipped: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Take away what says something about ranks, the launcher and tracekit; keep spools and caches among the tests' files."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        # Child processes must test the same core.
        if name != "TRACEKIT_PURE_PYTHON" and (name in LAUNCHER_VARIABLES or name.startswith(LAUNCHER_PREFIXES)):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRACEKIT_QUIET", "1")  # no report at the end of each recording; test_end_report tests it
    monkeypatch.setenv("TRACEKIT_SPOOL", str(tmp_path_factory.getbasetemp() / "spool"))
    # The tests of a whole run would leave thousands of entries in the cache of the user.
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache" / str(next(NUMBERS))))


@pytest.fixture(scope="session", autouse=True)
def cache_of_shared_fixtures(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what fixtures of more than one test put into the cache of event tables among the tests' files."""
    os.environ["TRACEKIT_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache" / "shared")


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail a test that leaves an active profiler or a thread of tracekit behind."""
    yield
    lifecycle = sys.modules.get("tracekit.recording.lifecycle")
    profiler = None if lifecycle is None else lifecycle.running_profiler()
    if profiler is not None:
        # Stop it, or all later tests fail.
        profiler.stop()
    assert profiler is None, "the test left a profiler active; stop it, or use it in a with block"
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("tracekit")]
    for thread in threads:
        thread.join(MAX_END_S)  # one that is about to end is not left running
    left = sorted(thread.name for thread in threads if thread.is_alive())
    assert left == [], f"the test left threads running: {left}"


class Printed(NamedTuple):
    """The output of a command."""

    out: str
    err: str


class Cli(Protocol):
    """Run a command, and check its exit code."""

    def __call__(self, arguments: str | list[str], code: int | tuple[int, ...] = 0) -> Printed: ...


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in the folder of the test, and check its exit code: ``cli("merge -o m.json a.json", 3).out``."""
    from tracekit.cli import main

    monkeypatch.chdir(tmp_path)

    def run(arguments: str | list[str], code: int | tuple[int, ...] = 0) -> Printed:
        found = main(arguments.split() if isinstance(arguments, str) else arguments)
        printed = Printed(*capsys.readouterr())
        assert found in (code if isinstance(code, tuple) else (code,)), printed
        return printed

    return run


@pytest.fixture(scope="session")
def own_traces() -> Path:
    """The folder of the real traces that were recorded for tracekit; see tests/data/README.md."""
    return OWN


@pytest.fixture(scope="session")
def traces() -> RealTraces:
    """All real traces, also those of others: ``traces / "torch_2.13_gloo"`` is a path; see `RealTraces`."""
    return RealTraces()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Perfetto's own trace processor: ``with engine.load(path) as trace: trace.rows("select ...")``."""
    try:
        engine = Engine()
    except UnavailableError as error:
        pytest.skip(f"Perfetto's engine: {error}")
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def browser() -> Browser:
    """Perfetto's real UI in a headless browser: ``browser.screenshot(trace, png).names``."""
    try:
        return Browser()
    except UnavailableError as error:
        pytest.skip(f"Perfetto's UI: {error}")
