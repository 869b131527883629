"""``tracekit completion SHELL``: prints a script that completes commands and options."""

from __future__ import annotations

import argparse
from typing import Final

from tracekit.cli.arguments import local_path, path_or_url
from tracekit.errors import MissingExtraError

_SHELLS: Final = ("bash", "zsh", "tcsh")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.epilog = (
        'Put eval "$(tracekit completion bash)" into ~/.bashrc. For zsh, write the script to a file named _tracekit in a folder '
        "of $fpath. Exit code: 0 done, 1 failed, 2 wrong usage."
    )


def run(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError("shtab", "completion", "Completion") from error
    from tracekit.cli import make_parser

    whole, parsers = make_parser()
    for verb in parsers.values():
        for action in verb.actions:
            if action.type in (path_or_url, local_path):
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab looks for this attribute
    print(shtab.complete(whole, args.shell))
    return 0
