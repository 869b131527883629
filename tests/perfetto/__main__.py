"""``python -m tests.perfetto``: install the engine, the UI and the browser, and say in a line what is missing."""

from __future__ import annotations

import sys

from tests.perfetto.install import UnavailableError, browser_files, engine_files


def main() -> int:
    """Return 1 when something cannot be installed."""
    problems = []
    for install in (engine_files, browser_files):
        try:
            install()
        except UnavailableError as error:
            problems.append(str(error))
    for problem in problems:
        print(f"Tests that need Perfetto's engine or its UI will be skipped: {problem}.", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
