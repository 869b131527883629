"""The tests of the compiled core under valgrind: ``python -m tests.faults.under_valgrind``, as scripts/sanitize does.

The core is built with debug information and without optimisation that would move code away from its lines. Counted are errors
in which a function of the core takes part, and memory that it lost: Python's own are not ours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.native import cores
from tests.perfetto.install import UnavailableError, program

FLAGS = ["-O1"]
VALGRIND = ["--quiet", "--xml=yes", "--leak-check=full", "--show-leak-kinds=definite", "--num-callers=40"]
# Plugins and what tests get from conftest.py would take most of the time.
PYTEST = ["-c", "/dev/null", "--rootdir", str(cores.ROOT), "--noconftest", "--import-mode=importlib", "-q"]
PYTEST += ["-p", "no:cacheprovider", "-p", "no:warnings", "-m", "core"]


def errors(report: Path, folder: Path) -> list[str]:
    """Return the errors of a report in which a module of a folder takes part."""
    found = []
    for error in ET.parse(report).getroot().iter("error"):
        frames = [{part.tag: part.text or "" for part in frame} for frame in error.iter("frame")]
        if any(Path(frame.get("obj", "/")).is_relative_to(folder) for frame in frames):
            what = error.findtext("what") or error.findtext("xwhat/text")
            places = [f"{frame.get('fn', '?')} ({frame.get('file', '?')}:{frame.get('line', '?')})" for frame in frames]
            found.append(f"{error.findtext('kind')}: {what}\n    " + "\n    ".join(places[:10]))
    return found


def run(tests: list[str]) -> int:
    """Build the core, run tests with it under valgrind and print what it found; returns 0, 1, or 77 if it cannot be done here."""
    compiler = cores.find_compiler()
    if compiler is None:
        print("no C compiler is here")
        return cores.CANNOT
    try:
        valgrind = program(["valgrind"], packages=["valgrind", "libc6-dbg"])
    except UnavailableError as error:
        print(error)
        return cores.CANNOT
    with tempfile.TemporaryDirectory() as name:
        folder, report = Path(name).resolve(), Path(name) / "report.xml"
        try:
            for extension in cores.extensions():
                cores.build(extension, folder, compiler, FLAGS)
        except subprocess.CalledProcessError as error:
            print(f"the core cannot be built: {error}")
            return cores.CANNOT
        command = ["-m", "pytest", *PYTEST, f"--basetemp={folder / 'tests'}", *tests]
        under = [valgrind, *VALGRIND, f"--xml-file={report}"]
        done = cores.run_with(folder, command, under, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        print(done.stdout.strip()[-5000:])
        found = errors(report, folder)
    for each in found:
        print(each)
    print(f"valgrind: {len(found)} errors in the core" if found else "valgrind: nothing found")
    return 1 if found or done.returncode else 0


def main() -> int:
    """Return 0 if nothing was found, 1 if something was, 77 if it cannot be done here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="which tests (default: all of tests/unit/core)")
    told = parser.parse_args()
    tests = told.tests or [str(path) for path in sorted((cores.ROOT / "tests" / "unit" / "core").glob("test_*.py"))]
    return run(tests)


if __name__ == "__main__":
    sys.exit(main())
