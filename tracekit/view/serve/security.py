"""Decide which requests are answered: host names, origins, methods, forms and the token; and limit their time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tracekit.errors import ConfigError
from tracekit.view.open.server import is_same_token

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FORM_BYTES: Final = 4096
_T = TypeVar("_T")
_MIN_TOKEN: Final = 16
_TOKEN: Final = re.compile(r"[!-~]+")
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")
_FORM: Final = "application/x-www-form-urlencoded"
_TIMEOUT_S: Final = 60.0
_SINGLE: Final = ("host", "origin", "content-length", "content-type", "sec-fetch-site")
_HEADERS: Final = {
    "cross-origin-resource-policy": "same-origin",
    # With "no-referrer" forms would come from the origin "null".
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}


class ClientTimeoutError(Exception):
    """A browser does not send the body that it announced, or does not read its answer."""


class Access:
    """Judges requests by headers that a page cannot forge in a browser. Immutable.

    The token allows everything; without ``token_to_read`` every user of this machine may read. ``host`` is the address that is
    listened to, and ``names`` are other names of this machine in addresses.
    """

    def __init__(self, host: str, token: str, *, names: Iterable[str] = (), token_to_read: bool = True) -> None:
        self.token_to_read = token_to_read
        self._token = token
        self._names = {name.lower() for name in names} | ({host.lower()} if _address(host) is None else set())
        # The token itself stays out of the browser's storage.
        self._cookie = hmac.new(token.encode(), b"tracekit serve", hashlib.sha256).hexdigest()
        for name in self._names:
            if not _NAME.fullmatch(name) and _address(name) is None:
                raise ConfigError(f"--allow-host {name}: give the name of a machine, such as gpu-login.example")

    def hosts(self, local_address: str) -> list[str]:
        """Return the names of this server on connections to a local address; any other may be DNS rebinding."""
        address = _address(local_address)
        own = {"127.0.0.1", "localhost", "::1"} if is_loopback(local_address) else set()
        return [f"[{name}]" if ":" in name else name for name in {*self._names, *own, str(address or local_address)}]

    @staticmethod
    def is_own_page(headers: Mapping[str, str], method: str) -> bool:
        """Return True for requests of this server's pages, of a person, or of a program other than a browser.

        A page elsewhere may lead to a page here with a link, and do nothing else.
        """
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return False
        if method != "GET":  # every browser sends the origin of a form
            return origin is not None and headers.get("sec-fetch-site", "same-origin") == "same-origin"
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            return True
        return headers.get("sec-fetch-dest") == "document" and headers.get("sec-fetch-mode") == "navigate"

    def is_token(self, given: str) -> bool:
        """Return True for the right token."""
        return is_same_token(given, self._token)

    def is_signed_in(self, headers: Mapping[str, str]) -> bool:
        """Return True if the browser has given the token before."""
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return any(name == _cookie_name(headers) and is_same_token(value, self._cookie) for name, _, value in pairs)

    def may_read(self, headers: Mapping[str, str]) -> bool:
        """Return True if the browser may see anything."""
        return not self.token_to_read or self.is_signed_in(headers)

    def cookie(self, headers: Mapping[str, str]) -> str:
        """Return the ``Set-Cookie`` header that signs the browser in until it is closed."""
        return f"{_cookie_name(headers)}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"


class SecurityMiddleware:
    """An ASGI application around another one.

    It refuses foreign names of this machine, pages of other origins, POST where ``takes_post`` is False for the path, other
    methods and large bodies without a word; ends connections of browsers that do not read; and adds headers to all answers.
    Perfetto's UI below /ui/ has its own content security policy.
    """

    def __init__(self, application: ASGIApp, access: Access, takes_post: Callable[[str], bool], ui_policy: str) -> None:
        self._application = application
        self._access = access
        self._takes_post = takes_post
        self._ui_policy = ui_policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application answer it."""
        headers = Headers(scope=scope)
        if any(len(headers.getlist(name)) > 1 for name in _SINGLE):
            await _refuse(400, send)
            return
        hosts = self._access.hosts((scope.get("server") or ("", 0))[0])
        await TrustedHostMiddleware(self._answer, hosts, www_redirect=False)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self._refusal(scope, Headers(scope=scope))
        if status is not None:
            await _refuse(status, send)
            return
        path = scope["path"]
        headers = {"cache-control": "no-cache" if path.startswith("/static/") else "no-store", **_HEADERS}
        if path.startswith("/ui/"):
            headers["content-security-policy"] = self._ui_policy
        # An answer that ends early ends the connection.
        with contextlib.suppress(ClientTimeoutError):
            await self._application(scope, _limited_receive(receive), _limited_send(send, headers))

    def _refusal(self, scope: Scope, headers: Headers) -> int | None:
        """Return the status of a request that is refused; None for others."""
        if not self._access.is_own_page(headers, scope["method"]):
            return 404
        if scope["method"] == "GET":
            return None
        if scope["method"] != "POST" or not self._takes_post(scope["path"]):
            return 405
        if headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            return 415
        length = headers.get("content-length", "")
        fits = length.isdecimal() and len(length) < 9 and int(length) <= MAX_FORM_BYTES
        fits = fits and "transfer-encoding" not in headers  # which would count instead of the length
        return None if fits else 413


def is_loopback(host: str) -> bool:
    """Return True for addresses of this machine only, and for the name localhost."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def read_token(path: Path) -> str:
    """Return the token in the first line of a file; raise ConfigError if it is not safe or not private, or cannot be read."""
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            token = file.read(MAX_FORM_BYTES).decode("ascii", "replace").partition("\n")[0].strip()
    except OSError as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {error.strerror or error}") from error
    if mode & 0o077:
        raise ConfigError(f"--token-file {path}: others may read it; chmod 600 {path}")
    if len(token) < _MIN_TOKEN or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"--token-file {path}: its first line must be {_MIN_TOKEN} or more letters, digits and signs; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes a good one"
        )
    return token


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address in a text, IPv4 where IPv6 maps it; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _cookie_name(headers: Mapping[str, str]) -> str:
    # Browsers share the cookies of all ports of a host.
    port = headers.get("host", "").rpartition(":")[2]
    return f"tracekit-{port}" if port.isdecimal() else "tracekit"


async def _refuse(status: int, send: Send) -> None:
    # The connection is closed, so that the body is not read either.
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _in_time(what: Awaitable[_T], limit_s: float) -> _T:
    try:
        return await asyncio.wait_for(what, limit_s)
    except asyncio.TimeoutError:
        raise ClientTimeoutError from None


def _limited_receive(receive: Receive) -> Receive:
    """Limit the time for the whole body; waiting for the end of the connection has no limit."""
    whole, deadline_s = False, 0.0

    async def limited() -> Message:
        nonlocal whole, deadline_s
        if whole:
            return await receive()
        now_s = asyncio.get_running_loop().time()
        deadline_s = deadline_s or now_s + _TIMEOUT_S
        message = await _in_time(receive(), deadline_s - now_s)
        whole = not message.get("more_body", False)
        return message

    return limited


def _limited_send(send: Send, headers: Mapping[str, str]) -> Send:
    """Add missing headers to an answer, and limit the time for sending each piece of it."""

    async def limited(message: Message) -> None:
        if message["type"] == "http.response.start":
            own: list[Any] = list(message.get("headers", ()))
            names = {name for name, _ in own}
            own += [(name.encode(), value.encode()) for name, value in headers.items() if name.encode() not in names]
            message = {**message, "headers": own}
        await _in_time(send(message), _TIMEOUT_S)

    return limited
