"""Who may ask: the name that the browser used, the page that asks, and the token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tracekit.errors import ConfigError
from tracekit.viewing.server import is_same_token

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Access", "is_loopback", "read_token"]

_SHORTEST_TOKEN: Final = 16
_LARGEST_TOKEN_BYTES: Final = 4096
_TOKEN: Final = re.compile(r"[!-~]+")
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")
_COOKIE: Final = "tracekit"


class Access:
    """Judges requests by their headers. A browser tells the truth in them, whatever the page in it wants.

    Nothing here changes after it was made: any thread may use it.

    Args:
        host: The address that is listened to.
        token: The secret that allows everything.
        names: Other names of this machine under which the pages may be asked for.
        token_to_read: Whether reading needs the token. Without it, every user of this machine can read the runs.
    """

    def __init__(self, host: str, token: str, *, names: Iterable[str] = (), token_to_read: bool = True) -> None:
        self.token_to_read = token_to_read
        self._token = token
        self._names = {name.lower() for name in names}
        if not _is_address(host):
            self._names.add(host.lower())
        # The token itself stays out of the browser's storage.
        self._cookie = hmac.new(token.encode(), b"tracekit serve", hashlib.sha256).hexdigest()
        for name in self._names:
            if not _NAME.fullmatch(name) and not _is_address(name):
                raise ConfigError(f"--allow-host {name}: give the name of a machine, such as gpu-login.example")

    def knows_host(self, host: str, local_address: str) -> bool:
        """Tell whether the name in ``Host`` is one of this server; else a name was made to point here (DNS rebinding).

        The port may be any: tunnels and containers have others, and no name of another machine comes with a port.

        Args:
            host: The header.
            local_address: The address that the connection came to.
        """
        try:
            parts = urlsplit(f"//{host}")
            name, fits = parts.hostname or "", parts.port != 0 and parts.netloc == host and "@" not in host
        except ValueError:
            return False
        if not fits:
            return False
        local_address = _unmapped(local_address)
        if name in self._names or name == local_address.lower():
            return True
        return is_loopback(local_address) and is_loopback(name)

    @staticmethod
    def is_own(origin: str, host: str) -> bool:
        """Tell whether the page that asks (``Origin``) came from the server that is asked (``Host``)."""
        return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")

    @staticmethod
    def comes_from_here(headers: Mapping[str, str], method: str) -> bool:
        """Tell whether a request is one of this server's own pages, of a person, or of a program that is no browser.

        A link on a page elsewhere may lead to a page here; nothing else of it gets an answer.
        """
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and not Access.is_own(origin, host):
            return False
        if method != "GET":
            # Every browser says where a form came from.
            return origin is not None and headers.get("sec-fetch-site", "same-origin") == "same-origin"
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            return True
        return headers.get("sec-fetch-dest") == "document" and headers.get("sec-fetch-mode") == "navigate"

    def is_token(self, given: str) -> bool:
        """Return True for the right token."""
        return is_same_token(given, self._token)

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Tell whether the browser has signed in."""
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie_name(headers) and is_same_token(value, self._cookie):
                return True
        return False

    def may_read(self, headers: Mapping[str, str]) -> bool:
        """Tell whether the browser may see anything."""
        return not self.token_to_read or self.knows(headers)

    def cookie(self, headers: Mapping[str, str]) -> str:
        """Return the ``Set-Cookie`` header by which the browser is known from then on, until it is closed."""
        return f"{self._cookie_name(headers)}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"

    @staticmethod
    def _cookie_name(headers: Mapping[str, str]) -> str:
        # Browsers do not keep the cookies of two ports of one host apart.
        port = headers.get("host", "").rpartition(":")[2]
        return f"{_COOKIE}-{port}" if port.isdecimal() else _COOKIE


def is_loopback(host: str) -> bool:
    """Tell whether an address, or the name localhost, is of this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Return the token that stands in a file: its first line.

    Raises:
        ConfigError: The file cannot be read, others than its owner may, or it holds no token that is safe.
    """
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            token = file.read(_LARGEST_TOKEN_BYTES).decode("ascii", "replace").partition("\n")[0].strip()
    except OSError as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {error.strerror or error}") from error
    if mode & 0o077:
        raise ConfigError(f"--token-file {path}: others may read it; chmod 600 {path}")
    if len(token) < _SHORTEST_TOKEN or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"--token-file {path}: its first line must be {_SHORTEST_TOKEN} or more letters, digits and signs; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes a good one"
        )
    return token


def _unmapped(address: str) -> str:
    """Return the IPv4 address that an IPv6 one stands for, as it does where both come to one socket; else the address."""
    try:
        mapped = getattr(ipaddress.ip_address(address), "ipv4_mapped", None)
    except ValueError:
        return address
    return address if mapped is None else str(mapped)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
