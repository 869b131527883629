"""The options that select a part of a run, for all verbs that accept a selection."""

from __future__ import annotations

import argparse

from tracekit.merge import Selection
from tracekit.merge.engine import ARGS


def add_selection(parser: argparse.ArgumentParser, *, names: bool) -> None:
    """Add the options. With `names`, add ``--name`` too."""
    chosen = parser.add_argument_group(
        "what to take",
        "Keep events that match all of these options. Slices that overlap a time span are kept whole, arrows with their "
        "slices, and metadata always. The report counts the events that are left out.",
    )
    chosen.add_argument("--ranks", metavar="LIST", help="ranks, such as 0,8-15; files of others are not read")
    chosen.add_argument(
        "--steps",
        metavar="A:B",
        help="training steps from A up to B, B not included: tracekit's batches, else torch.profiler's ProfilerStep#N",
    )
    chosen.add_argument(
        "--time-window", metavar="FROM:TO", help="seconds from the start of the merge, or ns since the epoch"
    )
    chosen.add_argument("--categories", metavar="LIST", help="only events of these categories; counters need none")
    chosen.add_argument("--exclude-categories", metavar="LIST", help="no events of these categories")
    chosen.add_argument("--min-duration", metavar="TIME", help="only slices that take this long, such as 5us")
    if names:
        chosen.add_argument(
            "--name",
            action="append",
            default=[],
            metavar="PATTERN",
            help="only events of this name, such as 'gloo:*', and the slices that enclose them (repeat for several)",
        )


def add_args_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--args``."""
    parser.add_argument(
        "--args",
        dest="event_args",
        choices=ARGS,
        default="all",
        help="arguments of events to keep: all, only the ids that tie events together, or none, which loads several times as "
        "fast in Perfetto (default: %(default)s)",
    )


def selection_of(args: argparse.Namespace) -> Selection:
    """Return the selection in the options; raise ConfigError if one of them cannot be understood."""
    return Selection.parse(
        ranks=args.ranks,
        steps=args.steps,
        time_window=args.time_window,
        categories=args.categories,
        exclude_categories=args.exclude_categories,
        min_duration=args.min_duration,
        names=getattr(args, "name", None),
    )
