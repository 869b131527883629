"""``tracekit mcp FOLDER...``: answers coding agents over the Model Context Protocol."""

from __future__ import annotations

import argparse

from tracekit.cli.arguments import local_path


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        type=local_path,
        nargs="+",
        metavar="FOLDER",
        help="a folder of runs; the agent reads nothing outside",
    )
    parser.epilog = (
        "An agent starts this command and speaks with it on stdin and stdout; docs/agents.md shows the configuration. Exit "
        "code: 0 the agent has closed it, 1 failed, 2 wrong usage."
    )


def run(args: argparse.Namespace) -> int:
    from tracekit.view.mcp_server import AgentServer

    AgentServer(args.folders).run()
    return 0
