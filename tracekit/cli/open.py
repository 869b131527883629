"""``tracekit open FILE...``: shows traces in Perfetto's UI."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from tracekit.arguments import check_seconds
from tracekit.cli.arguments import add_args_option, add_option, add_output, add_traces, add_uis, chosen_ui, port
from tracekit.cli.terminal import OK, ProgressBar, print_answer, print_json
from tracekit.errors import CommandError
from tracekit.view.open.prepare import Prepared, mended, prepare
from tracekit.view.open.server import PERFETTO_PORT, OneFileServer
from tracekit.view.open.ui import PERFETTO_UI, counted_bytes, loading_advice, too_big


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_traces(
        parser,
        "a trace, which is opened as it is, or repaired if Perfetto would not take it; or several, or folders, globs or "
        "URLs, which are merged first",
        name="files",
        metavar="FILE",
    )
    add_output(
        parser,
        "keep the merged trace here (default: while this runs)",
        force="replace the output, and open a trace as it is even if it is too big for a browser or broken",
    )
    add_args_option(parser)
    add_uis(
        parser,
        more=", which gets the trace inside of the browser",
        offline="; runs until Ctrl-C, or until --timeout",
    )
    add_option(parser, "--no-browser", "only print the address")
    add_option(
        parser,
        "--port N",
        f"where to listen on 127.0.0.1 (default: {PERFETTO_PORT}, which Perfetto may fetch from, else any)",
        type=port,
    )
    add_option(
        parser,
        "--timeout S",
        "stop when the browser asks for nothing for so long (default: %(default)g)",
        type=float,
        default=300.0,
    )
    add_option(parser, "--json", "print the addresses and the merge's report as JSON")
    add_option(parser, "-q --quiet", "print only the address")
    parser.epilog = (
        "Only this machine is listened to, and only the page and the UI are answered. Exit code: 0 the UI has the trace, or "
        "Ctrl-C; 1 failed, or nobody came for the trace; 2 wrong usage."
    )


def run(args: argparse.Namespace) -> int:
    check_seconds("--timeout", args.timeout)
    ui = chosen_ui(args)
    with tempfile.TemporaryDirectory(prefix="tracekit-open-") as folder:
        with ProgressBar(enabled=not (args.json or args.quiet)) as bar:
            prepared = prepare(
                args.files,
                Path(folder),
                args.output,
                overwrite=args.force,
                event_args=args.event_args,
                progress=bar.update,
            )
            bar.update(1.0, "measuring the trace")
            unpacked_bytes = counted_bytes(str(prepared.path))
            is_kept = not prepared.path.is_relative_to(folder)
            shown = str(prepared.path) if is_kept else args.files[0] if prepared.merge is None else "merged.json.gz"
            problem = None if args.force else too_big(shown, unpacked_bytes, args.event_args)
            if problem is not None:
                is_lost = prepared.merge is not None and not is_kept
                raise CommandError(f"{problem}. Pass -o {shown} to keep this trace" if is_lost else problem)
            if not args.force:
                prepared = mended(prepared, Path(folder), bar.update)
        with OneFileServer(prepared.path, ui, port=args.port) as server:
            _announce(args, prepared, server)
            advice = loading_advice(unpacked_bytes, args.event_args)
            if advice is not None and not args.quiet:
                print(advice, file=sys.stderr, flush=True)
            if not args.no_browser and not _open_browser(server.address) and not args.json:
                print("no browser can be started here: open the address above in one", file=sys.stderr)
            try:
                handed_over = server.wait(args.timeout)
            except KeyboardInterrupt:
                return OK
    if not handed_over:
        otherwise = (
            _by_hand(prepared.path)
            if not prepared.path.is_relative_to(folder)
            else f"write it with tracekit merge -o FILE, and drag that onto {PERFETTO_UI}"
        )
        raise CommandError(f"nobody came for the trace in {args.timeout:g} s; run it again, or {otherwise}")
    if not (args.json or args.quiet):
        print("Perfetto has the trace")
    return OK


def _announce(args: argparse.Namespace, prepared: Prepared, server: OneFileServer) -> None:
    """Print the address of the trace, before the command waits."""
    if args.json:
        document: dict[str, Any] = {
            "file": str(prepared.path),
            "address": server.address,
            "direct_address": server.direct_address,
            "merge": None if prepared.merge is None else prepared.merge.to_json(),
        }
        print_json(document)
        return
    lines = [] if prepared.merge is None or args.quiet else prepared.merge.lines()[:-1]
    lines.append(server.address)
    if not args.quiet:
        lines.append(f"if that page does not open, {_by_hand(prepared.path)}; Ctrl-C ends this")
    print_answer(lines, has_tables=False)


def _by_hand(path: Path) -> str:
    return f"open {PERFETTO_UI} and drag {path.absolute()} onto it (it stays on your machine)"


def _open_browser(address: str) -> bool:
    # A text browser would take over the terminal, and cannot show Perfetto.
    if sys.platform == "linux" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False
