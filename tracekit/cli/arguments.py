"""Arguments that several verbs take."""

from __future__ import annotations

import argparse

__all__ = ["add_inputs", "positive"]


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the traces to analyse, and what all verbs that analyse take."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="merged traces, or those of single ranks, of tracekit, torch.profiler or other tools: files, folders, globs or "
        "URLs, in JSON or Perfetto's own format, plain or gzip",
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what all verbs that analyse take beside their traces."""
    parser.add_argument(
        "--inside",
        action="append",
        default=[],
        metavar="NAME",
        help="look through markers of this name, which enclose the stages of a step (repeat for several)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:10]) < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)
