"""Standard input and output in place of files (``-``), and pipes, for commands that need whole files."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracekit.cli.terminal import print_lines
from tracekit.errors import ConfigError, StorageError
from tracekit.storage import PIPE_FOLDER, basename, is_remote, without_secrets

_ARGUMENTS: Final = ("input", "inputs", "files", "before", "after")
_STANDARD: Final = "-"
_STDIN_DESCRIPTOR: Final = 0
_PIECE_BYTES: Final = 1 << 20
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
def copied_pipes(args: argparse.Namespace) -> Iterator[None]:
    """Replace ``-`` and pipes among the inputs of a command by copies that exist until the end of the block.

    Sets ``args.piped`` to the replaced names. A command that reads each input once declares ``reads_once``, and
    receives the pipes themselves.
    """
    args.piped = []
    with contextlib.ExitStack() as stack:
        for name in _ARGUMENTS:
            given = getattr(args, name, None)
            if isinstance(given, str):
                setattr(args, name, _local(given, args, stack))
            elif isinstance(given, list):
                setattr(args, name, [_local(each, args, stack) for each in given])
        yield


def _local(path: str, args: argparse.Namespace, stack: contextlib.ExitStack) -> str:
    if path == _STANDARD:
        if _STANDARD in args.piped:
            raise ConfigError("-: standard input can be named once")
        args.piped.append(path)
        return _stdin(args, stack)
    if is_remote(path) or getattr(args, "reads_once", False) or not _is_pipe(path):
        return path
    args.piped.append(path)
    return _copied(path, basename(path), stack)


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116 - pathlib interns every part of every path
    except (OSError, ValueError):  # the command reports it
        return False


def _stdin(args: argparse.Namespace, stack: contextlib.ExitStack) -> str:
    try:
        mode = os.fstat(_STDIN_DESCRIPTOR)
    except OSError as error:
        raise ConfigError("-: standard input is closed") from error
    if os.isatty(_STDIN_DESCRIPTOR):
        raise ConfigError("-: standard input is a terminal; redirect a trace to it, for example < trace.json")
    named = os.path.realpath("/dev/stdin")
    if stat.S_ISREG(mode.st_mode):
        with contextlib.suppress(OSError):
            if os.path.samestat(mode, Path(named).stat()):
                return named
    if getattr(args, "reads_once", False) and stat.S_ISFIFO(mode.st_mode):
        return "/dev/stdin"
    return _copied(_STDIN_DESCRIPTOR, "stdin", stack)


def _copied(source: str | int, name: str, stack: contextlib.ExitStack) -> str:
    """Copy a pipe to a private file, and return its path."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PIPE_FOLDER))
    copy = Path(folder) / name
    try:
        with open(source, "rb", closefd=isinstance(source, str)) as pipe, copy.open("wb") as file:
            shutil.copyfileobj(pipe, file, _PIECE_BYTES)
    except OSError as error:
        shown = without_secrets(source) if isinstance(source, str) else "-"
        raise StorageError(
            f"{shown}: cannot be copied to {copy}, to be read more than once: {error.strerror or error}; "
            "set TMPDIR to a folder with more space, or write the trace to a file first"
        ) from error
    return str(copy)


@contextlib.contextmanager
def piped_output(args: argparse.Namespace, verb: str) -> Iterator[None]:
    """Send the output to standard output if its name is ``-``; all messages then go to standard error.

    The output is written to a private file first, since an output appears whole or not at all. Messages call it ``-``,
    and the next command, which would take that file, is left out.
    """
    if getattr(args, "output", None) != _STANDARD:
        yield
        return
    if verb == "query":
        args.output = None  # its rows go to standard output anyway
        yield
        return
    if verb not in _FILES:
        raise ConfigError(f"{verb} cannot write to standard output; name a file")
    if sys.stdout.isatty():
        raise ConfigError(f"-: standard output is a terminal; redirect it, for example > {_FILES[verb]}")
    messages = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="tracekit-output-") as folder:
        file = Path(folder) / _FILES[verb]
        args.output = str(file)
        try:
            with contextlib.redirect_stdout(messages):
                yield
        finally:
            lines = messages.getvalue().replace(str(file), _STANDARD).splitlines()
            print_lines(*(line for line in lines if not line.startswith("next: ")), stream=sys.stderr)
        if not file.exists() and verb == "recover":
            file = Path(args.inputs[0])  # a whole trace needs no repair
        if file.exists():
            with file.open("rb") as copy:
                shutil.copyfileobj(copy, sys.stdout.buffer)
