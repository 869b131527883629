"""``tracekit link URL``: prints a link that opens a trace of an object store in Perfetto."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from tracekit.cli.arguments import positive
from tracekit.cli.terminal import print_json, printable
from tracekit.view.open.ui import PERFETTO_UI, PerfettoUI

if TYPE_CHECKING:
    import argparse

OK: Final = 0
_BLOCKED: Final = 3
_DAY_S: Final = 86_400


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tracekit link``."""
    parser.add_argument("url", metavar="URL", help="a trace: s3://, gs://, hf://, https://, or another URL of fsspec")
    parser.add_argument(
        "--seconds",
        type=positive,
        default=_DAY_S,
        metavar="N",
        help="how long the link works, where the storage can limit that (default: %(default)d)",
    )
    parser.add_argument(
        "--ui", metavar="URL", help=f"a Perfetto UI of your own (default: $TRACEKIT_UI, else {PERFETTO_UI})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.epilog = (
        "Whoever has the link can read the trace. Nothing is uploaded or published. Exit code: 0 the link works, 1 failed, "
        "2 wrong usage, 3 the storage does not let the UI fetch the trace."
    )


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``tracekit link``; return its exit code."""
    del parser
    from tracekit.view.link import trace_link

    ui = PerfettoUI.at(args.ui or os.environ.get("TRACEKIT_UI") or PERFETTO_UI)
    link = trace_link(args.url, ui, args.seconds)
    if args.json:
        print_json({"link": link.address, "problem": link.problem})
    else:
        print(printable(link.address), flush=True)
        if link.problem is not None:
            print(printable(f"tracekit: {link.problem}", sys.stderr), file=sys.stderr)
    return OK if link.problem is None else _BLOCKED
