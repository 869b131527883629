"""Start the hooks of ``tracekit run`` in a Python process, then import the ``sitecustomize`` that Python would have imported.

Without a run it imports the standard library only. No failure reaches the process.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _start() -> None:
    try:
        from tracekit.auto.start import start

        start()
    except BaseException as error:  # noqa: BLE001 - the process is not ours
        _note_failure(error)


def _note_failure(error: BaseException) -> None:
    try:
        import json
        from pathlib import Path

        folder = json.loads(os.environ["TRACEKIT_AUTO_OPTIONS"])["notes"]
        text = f"{sys.executable}: {type(error).__name__}: {error}"
        Path(folder, f"failed-{os.getpid()}").write_text(text, encoding="utf-8")
    except BaseException:  # noqa: BLE001
        return


def _import_next() -> None:
    here = os.path.dirname(__file__)  # noqa: PTH120 - pathlib is not imported in every process
    sys.path[:] = [entry for entry in sys.path if entry.rstrip(os.sep) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("TRACEKIT_AUTO", "").lower() not in ("", "0", "false"):
    _start()
_import_next()
