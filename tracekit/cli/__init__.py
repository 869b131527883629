"""The ``tracekit`` command: one module a verb, loaded when that verb is used.

A verb's module has ``prepare_parser(parser)``, which adds its arguments, and ``run(args, parser)``, which returns the exit
code: 0 done, 1 failed, 2 wrong usage, 3 problems found.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, Final, Protocol, cast

from tracekit.cli.terminal import printable
from tracekit.errors import CommandError, ConfigError, TracekitError
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Verb", "entry_point", "main"]

VERBS: Final = {
    "anonymise": "take the names of people, machines and files out of a trace",
    "capture": "have a running job record a few batches, and say where they are",
    "convert": "write a trace in another format",
    "diff": "say what became slower between two runs, or two ranks",
    "doctor": "say what tracekit finds on this machine, and what is wrong with it",
    "merge": "merge the traces of all ranks into one for Perfetto",
    "open": "show traces in Perfetto in a browser",
    "query": "ask a trace a question in Perfetto's SQL",
    "recover": "make a clean trace of a cut or damaged one",
    "report": "write all about a run as one HTML file: steps, ranks, stages, counters, clocks, losses",
    "serve": "show the runs of a folder or bucket in a browser, for a team",
    "split": "cut a trace into parts by time or rank",
    "stragglers": "say which rank holds the others up, and in which stage",
    "summary": "say where the time goes: markers, steps, devices, waiting for data, gaps",
    "top": "show a running job: its ranks, steps and stages, who is slow, what is lost",
    "trim": "take a part of a trace",
    "upload": "upload what a recording could not",
    "validate": "check that a trace is one that Perfetto shows whole",
}
_FAILURE: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141


class Verb(Protocol):
    """What a verb's module offers."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments."""

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Do it; return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every failure is one sentence on standard error.

    Args:
        argv: The arguments after the program's name; those of the process by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except SystemExit as stop:
        # argparse ends this way, after --help and after a usage error.
        return stop.code if isinstance(stop.code, int) else _USAGE
    except CommandError as error:
        _complain(str(error))
        return error.exit_code
    except ConfigError as error:
        _complain(str(error))
        return _USAGE
    except TracekitError as error:
        _complain(str(error))
        return _FAILURE
    except KeyboardInterrupt:
        _complain("interrupted; nothing was left half done")
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has stopped. Python must not try to flush it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:
        if os.environ.get("TRACEKIT_DEBUG", "0") not in ("", "0"):
            raise
        _complain(
            f"unexpected {type(error).__name__}: {error}. This is a fault of tracekit: please report it, "
            "with what TRACEKIT_DEBUG=1 prints"
        )
        return _FAILURE


def entry_point() -> None:
    """Run the command line as a program."""
    sys.exit(main())


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tracekit", description="Record, merge and check traces of ML training.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"tracekit {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in VERBS.items():
        verb_parser = verbs.add_parser(name, help=summary, description=f"{summary.capitalize()}.", allow_abbrev=False)
        if name == wanted:
            _load(name).prepare_parser(verb_parser)
            verb_parser.set_defaults(verb_parser=verb_parser)
    args = parser.parse_args(arguments)
    code = _load(args.verb).run(args, args.verb_parser)
    # Here, where a reader that has stopped listening is handled; not at the interpreter's end, where it is not.
    sys.stdout.flush()
    return code


def _load(verb: str) -> Verb:
    return cast("Verb", importlib.import_module(f"tracekit.cli.{verb}"))


def _complain(message: str) -> None:
    # One line, whatever names from a trace or a path are in it.
    print(printable(f"tracekit: {' '.join(message.split())}", sys.stderr), file=sys.stderr)
