"""``tracekit serve ROOT``: one web page over a folder or bucket of runs."""

from __future__ import annotations

import argparse
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

from tracekit import storage
from tracekit.cli.arguments import add_option, add_uis, chosen_ui, local_path, number, or_zero, path_or_url, port
from tracekit.cli.terminal import OK, complain, print_json, print_lines
from tracekit.errors import ConfigError
from tracekit.imports import require_extra

_GB: Final = 1_000_000_000


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "root", type=path_or_url, metavar="ROOT", help="a folder or URL of runs, of any depth; or that of one run"
    )
    where = parser.add_argument_group("where it listens, and who may come")
    add_option(
        where,
        "--host HOST",
        "the address to listen at (default: %(default)s, for this machine and tunnels to it only; any other one is not "
        "encrypted: put it behind a proxy with TLS)",
        default="127.0.0.1",
    )
    add_option(where, "--port N", "the port (default: 8931, or any where that is in use)", type=or_zero(port))
    add_option(
        where,
        "--allow-host NAME",
        "another name of this machine, such as that of a proxy before it; may be repeated",
        repeated=True,
    )
    token = where.add_mutually_exclusive_group()
    add_option(
        token,
        "--token-file FILE",
        "read the token from a file that only you can read; it stays the same and is not printed (default: a new token, "
        "printed in the URL)",
        type=local_path,
    )
    add_option(
        token,
        "--no-token",
        "let every user of this machine read the runs; captures still need the token (not with another --host)",
    )
    add_option(
        parser,
        "--allow-capture",
        "allow captures from the page: running jobs record a few batches (see tracekit capture)",
    )
    add_uis(parser)
    add_option(parser, "--cache DIR", "where merged traces are kept (default: while this runs)", type=local_path)
    add_option(parser, "--cache-size GB", "how much of them is kept (default: 10)", type=_gigabytes, default=10 * _GB)
    add_option(parser, "--json", "print the address as JSON")
    parser.epilog = (
        "Open the printed URL: it holds the token, and the browser keeps a cookie in its place. Runs until Ctrl-C, SIGTERM "
        "or SIGHUP. Exit code: 0 ended that way, 1 failed, 2 wrong usage."
    )


def run(args: argparse.Namespace) -> int:
    require_extra("serve", "jinja2", "starlette", "uvicorn")
    from tracekit.view.open.server import new_token
    from tracekit.view.serve.app import make_application
    from tracekit.view.serve.security import Access, is_loopback, read_token
    from tracekit.view.serve.server import listen, make_server, serve
    from tracekit.view.serve.service import Service
    from tracekit.view.serve.store import Store

    ui = chosen_ui(args)
    own = is_loopback(args.host)
    if args.no_token and not own:
        raise ConfigError(f"--no-token: other machines can reach {args.host}; leave out --no-token or --host")
    token = new_token() if args.token_file is None else read_token(args.token_file)
    names = [*args.allow_host, *([] if own else [socket.gethostname()])]
    access = Access(args.host, token, names=names, token_to_read=not args.no_token)
    with tempfile.TemporaryDirectory(prefix="tracekit-serve-") as folder:
        store = Store(args.cache or Path(folder), args.cache_size)
        service = Service(args.root, store, ui, may_capture=args.allow_capture)
        try:
            server = make_server(make_application(service, access))
            listener = listen(args.host, args.port)
            serve(server, listener, lambda: _announce(args, listener, access, service, token))
        finally:
            service.close()
    return OK


def _announce(args: argparse.Namespace, listener: socket.socket, access: Any, service: Any, token: str) -> None:
    """Print the address."""
    from tracekit.view.serve.security import is_loopback

    host, port = listener.getsockname()[:2]
    wide = host in ("0.0.0.0", "::")  # noqa: S104 - a comparison, not an address to bind
    name = socket.gethostname() if wide else f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/"
    secret = args.token_file is None and (access.token_to_read or args.allow_capture)
    if secret:
        address += f"?token={token}"
    if not storage.is_remote(args.root) and not Path(args.root).is_dir():
        complain(f"{args.root}: no such folder; the page shows its runs once it is there")
    if not access.token_to_read:
        complain("--no-token: every user of this machine can read these runs")
    if args.json:
        print_json({"address": address, "root": service.catalog.name}, indent=None)
        return
    lines = [f"serving {service.catalog.name}", f"  {address}"]
    if args.token_file is not None:
        lines.append(f"the token is that in {args.token_file}")
    if not is_loopback(host):
        lines.append("what goes over the network is not encrypted: put a proxy with TLS before it, or use ssh -L")
    print_lines(*lines, "Ctrl-C ends this")


def _gigabytes(text: str) -> int:
    return round(_GB * number(text, 1 / _GB, 1e9, "gigabytes above 0"))
