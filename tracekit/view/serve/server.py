"""Listen for requests and answer them until the end: the only module that imports ``uvicorn``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tracekit.errors import StorageError

PORT: Final = 8931

_HEAD_S: Final = 10.0
_END_S: Final = 3
_STATE: Final = "tracekit.deadline"


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens at a port; None: at `PORT`, or any where that is in use. Raises StorageError."""
    try:
        return _bound(host, PORT if port is None else port)
    except OSError as problem:
        error = problem
    if port is None:
        with contextlib.suppress(OSError):
            return _bound(host, 0)
    where = f"{host}, at any port" if port is None else f"{host}:{port}"
    raise StorageError(
        f"cannot listen at {where} ({error.strerror or error}); choose another --port or --host"
    ) from error


def _bound(host: str, port: int) -> socket.socket:
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=flags)[0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=128, dualstack_ipv6=both)


def make_server(application: Any) -> uvicorn.Server:
    """Return a server of an ASGI application. Set ``should_exit`` to end it outside of the main thread."""

    async def timed(scope: Any, receive: Any, send: Any) -> None:
        deadline = scope["state"][_STATE]
        deadline.stop()
        try:
            await application(scope, receive, send)
        finally:
            deadline.start()

    config = uvicorn.Config(
        timed,
        loop="asyncio",
        http=HeaderTimeoutProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=256,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_END_S,
        h11_max_incomplete_event_size=16 << 10,
    )
    return uvicorn.Server(config)


def serve(server: uvicorn.Server, listener: socket.socket, announce: Callable[[], None] = lambda: None) -> None:
    """Answer requests until Ctrl-C, SIGTERM or SIGHUP, then give those under way 3 s to end.

    The listener is closed at the end. ``announce`` is called once signals end the server.
    """
    with listener, _ending_signals(server):
        announce()
        server.run(sockets=[listener])


@contextlib.contextmanager
def _ending_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let signals end the server and not the process: uvicorn raises those that it has caught again at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    # nohup ignores SIGHUP, so that the service outlives its terminal.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)

    def stop(number: int, frame: object) -> None:
        del number, frame
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class HeaderTimeoutProtocol(asyncio.Protocol):
    """Passes a connection on to uvicorn, and ends it if no request begins within 10 s, however slowly its bytes come."""

    def __init__(self, app_state: dict[str, Any], **given: Any) -> None:
        self._inner = H11Protocol(app_state={**app_state, _STATE: self}, **given)
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self.data_received = self._inner.data_received  # type: ignore[method-assign]
        self.eof_received = self._inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = self._inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = self._inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: Any) -> None:
        """Expect the first request."""
        self._transport = transport
        self._inner.connection_made(transport)
        self.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self.stop()
        self._transport = None
        self._inner.connection_lost(exc)

    def start(self) -> None:
        """Expect a request in time."""
        self.stop()
        transport = self._transport
        if transport is not None:
            # A connection that is closing may still be sending.
            self._timer = self._loop.call_later(_HEAD_S, lambda: transport.is_closing() or transport.abort())

    def stop(self) -> None:
        """Stop the timeout: the head of a request is whole, or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
