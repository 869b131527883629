"""What stands before the pages: who may not ask gets nothing, whatever is asked for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from tracekit.serving.access import Access

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

__all__ = ["LARGEST_FORM_BYTES", "GivenUpError", "Guard"]

LARGEST_FORM_BYTES: Final = 4096
_Taken = TypeVar("_Taken")
_FORM: Final = "application/x-www-form-urlencoded"
_PATIENCE_S: Final = 60.0
_SINGLE: Final = (b"host", b"origin", b"content-length", b"content-type", b"sec-fetch-site")

# A form of a page with the policy "no-referrer" would say that it comes from "null"; no other site learns anything by this one.
_ALWAYS: Final = (
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class GivenUpError(Exception):
    """A browser does not send what it has announced, or does not take its answer: no fault of anybody here."""


class Guard:
    """An ASGI application around another one.

    It refuses requests with a foreign ``Host``, of pages of other origins, with other methods, and with large bodies; gives up
    browsers that do not take their answers; and adds the headers that every answer has.

    Args:
        application: Who answers the others.
        access: Who may ask.
        posts: Tells whether a path takes POST.
    """

    def __init__(self, application: Application, access: Access, posts: Callable[[str], bool]) -> None:
        self._application = application
        self._access = access
        self._posts = posts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer, or have it answered."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        status = self._refusal(scope)
        if status is not None:
            await _send_nothing(status, send)
            return
        # What ends without a whole answer ends the connection.
        with contextlib.suppress(GivenUpError):
            await self._application(scope, _impatient_receive(receive), _careful_send(send))

    def _refusal(self, scope: Mapping[str, Any]) -> int | None:
        """Return the status with which a request is refused; None for one that is not."""
        headers = single_headers(scope)
        if headers is None:
            return 400
        method, local = scope["method"], (scope.get("server") or ("", 0))[0]
        if not self._access.knows_host(headers.get("host", ""), local):
            return 404
        if not self._access.comes_from_here(headers, method):
            return 404
        if method == "GET":
            return None
        if method != "POST" or not self._posts(scope["path"]):
            return 405
        if headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            return 415
        length = headers.get("content-length", "")
        fits = length.isdecimal() and len(length) < 9 and int(length) <= LARGEST_FORM_BYTES
        return None if fits else 413


def single_headers(scope: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the headers of a request by their names; None if one of which there must be one is there twice."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        text = name.decode("latin-1")
        if text in found:
            if name in _SINGLE:
                return None
            found[text] += ("; " if name == b"cookie" else ", ") + value.decode("latin-1")
        else:
            found[text] = value.decode("latin-1")
    return found


async def _send_nothing(status: int, send: Send) -> None:
    # The connection is closed: a body that is not wanted is not read either.
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _in_time(what: Awaitable[_Taken], limit_s: float) -> _Taken:
    try:
        return await asyncio.wait_for(what, limit_s)
    except asyncio.TimeoutError:
        raise GivenUpError from None


def _impatient_receive(receive: Receive) -> Receive:
    """Return what gives up a body that does not come; after it, waiting for the end of a connection has no limit."""
    whole, deadline_s = False, 0.0

    async def take() -> Message:
        nonlocal whole, deadline_s
        if whole:
            return await receive()
        # One for all of it: who sends a byte now and then is given up as well.
        now_s = asyncio.get_running_loop().time()
        deadline_s = deadline_s or now_s + _PATIENCE_S
        message = await _in_time(receive(), deadline_s - now_s)
        whole = not message.get("more_body", False)
        return message

    return take


def _careful_send(send: Send) -> Send:
    async def give(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            names = {name for name, _ in own}
            own += [header for header in _ALWAYS if header[0] not in names]
            if b"content-security-policy" not in names:
                own.append((b"content-security-policy", _POLICY))
            message = {**message, "headers": own}
        # Who does not read the answer holds a connection, and a file.
        await _in_time(send(message), _PATIENCE_S)

    return give
