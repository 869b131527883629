"""Listens and answers until it is told to end: the only module that imports ``uvicorn``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tracekit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PORT", "listen", "serve"]

PORT: Final = 8931

_HEAD_S: Final = 10.0
_MOST_CONNECTIONS: Final = 256
_LARGEST_HEAD_BYTES: Final = 16 << 10
_END_S: Final = 3


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: The address, or the name of one.
        port: The port; None: `PORT`, or any where that is in use.

    Raises:
        StorageError: It cannot be listened there.
    """
    error: OSError | None = None
    for candidate in (PORT, 0) if port is None else (port,):
        try:
            return _bound(host, candidate)
        except OSError as problem:
            error = problem
    where = f"{host}, at any port" if port is None else f"{host}:{port}"
    reason = "" if error is None else f" ({error.strerror or error})"
    raise StorageError(f"cannot listen at {where}{reason}; choose another --port or --host") from error


def _bound(host: str, port: int) -> socket.socket:
    flags = socket.AI_PASSIVE
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    found = socket.socket(family, kind, protocol)
    try:
        # One that was here until now need not be waited for; one that still listens is noticed all the same.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found


def serve(
    application: Any,
    listener: socket.socket,
    *,
    ready: Callable[[], None] = lambda: None,
    end: threading.Event | None = None,
) -> None:
    """Answer requests until Ctrl-C, SIGTERM or SIGHUP, then close what is open. Requests that are under way have 3 s to end.

    Args:
        application: An ASGI application.
        listener: Where they come from; it is closed at the end.
        ready: Called once requests are answered.
        end: Set to end it, for where signals do not go: not in the main thread.
    """
    config = uvicorn.Config(
        application,
        loop="asyncio",
        http=_Patient,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_END_S,
        h11_max_incomplete_event_size=_LARGEST_HEAD_BYTES,
    )
    server = _Server(config, ready, end)
    with listener:
        asyncio.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """A server that says when it is ready, and for which Ctrl-C is how it is ended, not how it dies."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], end: threading.Event | None) -> None:
        super().__init__(config)
        self._ready = ready
        self._end = end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or (self._end is not None and self._end.is_set())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        # Where it is ignored, as under nohup, the service outlives its terminal.
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Patient(H11Protocol):
    """A connection on which the head of a request must come in ten seconds, however slowly its bytes do."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Whoever holds many connections open keeps out only those that would come after.
        self._deadline = self.loop.call_later(_HEAD_S, self._give_up)

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        super().data_received(data)
        if self.cycle is not cycle:
            self._stop_waiting()
        elif self._deadline is None and (cycle is None or cycle.response_complete):
            self._deadline = self.loop.call_later(_HEAD_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()
