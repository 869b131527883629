"""Perfetto's engine as the program ``trace_processor_shell``: the same arguments, the same protocol over HTTP.

The package ``perfetto`` downloads that program; tests have the engine as WebAssembly only, run by Node. This stands between.
"""

from __future__ import annotations

import stat
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from tests.perfetto.engine import QUERY_TIMEOUT_S, EngineError, _messages, _Process
from tests.perfetto.install import ROOT, engine_files

if TYPE_CHECKING:
    from pathlib import Path


def write_shell(path: Path) -> Path:
    """Write a program that behaves like ``trace_processor_shell``."""
    engine_files()  # installs it, or raises UnavailableError
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.perfetto.shell import main\nmain(sys.argv[1:])\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class _Handler(BaseHTTPRequestHandler):
    messages: Any
    process: _Process

    def do_GET(self) -> None:
        rpc = self.messages.TraceProcessorRpc
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = b""
        if self.path == "/parse":
            for reply in self._call(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=body):
                answer = reply.append_result.SerializeToString()
        elif self.path == "/notify_eof":
            for reply in self._call(request=rpc.TPM_FINALIZE_TRACE_DATA):
                answer = reply.finalize_data_result.SerializeToString()
        elif self.path == "/query":
            result = self.messages.QueryResult()
            arguments = self.messages.QueryArgs.FromString(body)
            for reply in self._call(request=rpc.TPM_QUERY_STREAMING, query_args=arguments):
                result.MergeFrom(reply.query_result)
            answer = result.SerializeToString()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET
    protocol_version = "HTTP/1.1"

    def _call(self, **request: Any) -> list[Any]:
        try:
            return self.process._call(time.monotonic() + QUERY_TIMEOUT_S, **request)
        except EngineError:
            # The real program is one process with its engine.
            sys.exit(1)

    def log_message(self, *args: Any) -> None:
        pass


def main(arguments: list[str]) -> None:
    """Serve one trace, until this is killed."""
    port = int(arguments[arguments.index("--http-port") + 1])
    messages = _messages()
    _Handler.messages = messages
    server = HTTPServer(("127.0.0.1", port), _Handler)  # before another process takes the port
    _Handler.process = _Process(engine_files(), messages)
    server.serve_forever()
