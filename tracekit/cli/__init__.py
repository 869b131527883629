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

from tracekit.cli.terminal import message_of, printable
from tracekit.errors import CommandError, ConfigError, TracekitError
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Verb", "entry_point", "main"]

VERBS: Final = {
    "anonymise": ("replace the names of people, machines and files in traces", "merged.json.gz -o shared.json.gz"),
    "capture": ("record a few batches of a running job", "traces/RUN/control --steps 5 -o merged.json.gz"),
    "convert": ("write a trace in another format", "merged.json.gz merged.pftrace"),
    "diff": (
        "compare two runs or two ranks and name what became slower",
        "before.json.gz after.json.gz --fail-above 5%",
    ),
    "doctor": ("check this machine and report problems", "traces/ s3://bucket/traces"),
    "merge": ("merge the traces of all ranks into one for Perfetto", "-o merged.json.gz traces/RUN/"),
    "open": ("show traces in Perfetto in a browser", "merged.json.gz"),
    "query": ("run a query in Perfetto's SQL on a trace", "merged.json.gz 'select name, dur from slice'"),
    "recover": ("repair cut or damaged traces", "traces/RUN/rank3.json"),
    "report": ("write a report of a run as one HTML file", "traces/RUN/ -o report.html"),
    "serve": ("show the runs of a folder or bucket in a browser, for a team", "traces/"),
    "split": ("split a trace by time or by rank", "merged.json.gz --seconds 60"),
    "stragglers": ("find the ranks that delay the others, and the stage", "traces/RUN/"),
    "summary": ("show where the time goes: markers, steps, devices, data loading, gaps", "traces/RUN/"),
    "top": ("show a running job: ranks, steps, stages, delays and losses", "traces/"),
    "trim": ("copy a part of a trace", "merged.json.gz --steps 10:20 -o part.json.gz"),
    "upload": ("upload what recordings could not upload", "spools/"),
    "validate": ("check that Perfetto loads all of a trace", "merged.json.gz"),
}
"""What each verb does, and the arguments of an example."""

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
        _complain(message_of(error))
        return error.exit_code
    except ConfigError as error:
        _complain(message_of(error))
        return _USAGE
    except TracekitError as error:
        _complain(message_of(error))
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
    for name, (summary, example) in VERBS.items():
        # Not str.capitalize, which writes "perfetto".
        description = f"{summary[0].upper()}{summary[1:]}. Example: tracekit {name} {example}"
        verb_parser = verbs.add_parser(name, help=summary, description=description, allow_abbrev=False)
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
