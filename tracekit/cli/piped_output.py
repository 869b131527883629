"""Write the output of a command to standard output (``-o -``)."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.cli.terminal import USAGE, print_lines
from tracekit.errors import CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_STDOUT: Final = "-"
_FILES: Final = {
    "anonymise": "anonymous.json",
    "convert": "converted.json",
    "merge": "merged.json",
    "recover": "recovered.json",
    "report": "report.html",
    "trim": "trimmed.json",
}
"""The verbs that can write to standard output, and the name of the file whose bytes they write."""


@contextlib.contextmanager
def piped_output(args: argparse.Namespace, verb: str) -> Iterator[None]:
    """Send the output to standard output if its name is ``-``; all messages then go to standard error.

    The output is written to a private file first, since an output appears whole or not at all. Messages call it ``-``,
    and the next command, which would take that file, is left out.

    Raises:
        CommandError: The verb cannot write to standard output, or that is a terminal.
    """
    if getattr(args, "output", None) != _STDOUT:
        yield
        return
    if verb == "query":
        args.output = None  # its rows go to standard output anyway
        yield
        return
    if verb not in _FILES:
        raise CommandError(f"{verb} cannot write to standard output; name a file", USAGE)
    if sys.stdout.isatty():
        raise CommandError(f"-: standard output is a terminal; redirect it, for example > {_FILES[verb]}", USAGE)
    messages = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="tracekit-output-") as folder:
        file = Path(folder) / _FILES[verb]
        args.output = str(file)
        try:
            with contextlib.redirect_stdout(messages):
                yield
        finally:
            lines = messages.getvalue().replace(str(file), _STDOUT).splitlines()
            print_lines(*(line for line in lines if not line.startswith("next: ")), stream=sys.stderr)
        if not file.exists() and verb == "recover":
            file = Path(args.inputs[0])  # a whole trace needs no repair
        if file.exists():
            with file.open("rb") as copy:
                shutil.copyfileobj(copy, sys.stdout.buffer)
