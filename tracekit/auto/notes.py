"""Notes from the processes of a run to ``tracekit run``: small files in a local folder.

Every Python process of a run imports this module, so it imports little.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

OPTIONS_VARIABLE: Final = "TRACEKIT_AUTO_OPTIONS"


def note(name: str, content: dict[str, Any] | None = None, *, exclusive: bool = False) -> bool:
    """Leave a note for ``tracekit run``, or replace it; return False for one that exists and is ``exclusive``. Never raises."""
    try:
        folder = json.loads(os.environ[OPTIONS_VARIABLE])["notes"]
        if not folder:
            return True
        path = Path(folder, name)
        if exclusive:
            with path.open("x", encoding="utf-8") as file:
                json.dump(content, file)
        elif content is not None or not path.exists():
            draft = path.with_name(f".{name}-{os.getpid()}")
            draft.write_text(json.dumps(content), encoding="utf-8")
            draft.replace(path)
    except FileExistsError:
        return False
    except (OSError, KeyError, ValueError):
        pass
    return True


def read_notes(folder: Path) -> dict[str, Any]:
    """Return the notes of a run by name; text that is not JSON as it is."""
    notes: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            notes[path.name] = json.loads(text)
        except ValueError:
            notes[path.name] = text
    return notes
