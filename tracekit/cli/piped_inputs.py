"""Copy standard input (``-``) and pipes to private files, for commands that read an input more than once."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import CommandError, StorageError
from tracekit.storage import PIPE_FOLDER, basename, is_remote, without_secrets

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_ARGUMENTS: Final = ("input", "inputs", "files", "before", "after")
_STDIN: Final = "-"
_STDIN_DESCRIPTOR: Final = 0
_PIECE_BYTES: Final = 1 << 20


@contextlib.contextmanager
def copied_pipes(args: argparse.Namespace) -> Iterator[None]:
    """Replace ``-`` and pipes among the inputs of a command by copies that exist until the end of the block.

    Sets ``args.piped`` to the replaced names. A command that reads each input once declares ``reads_once``, and
    receives the pipes themselves.

    Raises:
        CommandError: Standard input is a terminal, or named twice.
        StorageError: A pipe cannot be read, or its copy not be written.
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
    if path == _STDIN:
        if _STDIN in args.piped:
            raise CommandError("-: standard input can be named once", exit_code=2)
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
        raise CommandError("-: standard input is closed", exit_code=2) from error
    if os.isatty(_STDIN_DESCRIPTOR):
        raise CommandError(
            "-: standard input is a terminal; redirect a trace to it, for example < trace.json", exit_code=2
        )
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
