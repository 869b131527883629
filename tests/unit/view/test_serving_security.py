"""Who may ask the service: names, origins, tokens and cookies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tracekit.errors import ConfigError
from tracekit.view.open.server import new_token
from tracekit.view.serve.security import Access, SecurityMiddleware, is_loopback, read_token

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send

TOKEN = "0123456789abcdef"


def is_answered(access: Access, host: str, local_address: str) -> bool:
    """Return whether a request for a host reaches the application."""
    reached: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])

    async def receive() -> Message:
        raise AssertionError("nobody reads a body")

    async def send(message: Message) -> None:
        assert message["type"] != "http.response.start" or message["status"] == 400

    security = SecurityMiddleware(application, access, lambda path: False, "")
    scope = {"type": "http", "method": "GET", "path": "/", "server": (local_address, 1)}
    asyncio.run(security({**scope, "headers": [(b"host", host.encode())]}, receive, send))
    return bool(reached)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8931", True),
        ("127.0.0.1", True),
        ("localhost:1", True),  # the end of a tunnel
        ("LOCALHOST:1", True),
        ("[::1]:8931", True),
        ("gpu-login.example", True),
        ("gpu-login.example:443", True),
        ("evil.example", False),
        ("evil.example:8931", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example@127.0.0.1", False),
        ("127.0.0.1/evil.example", False),
        ("127.0.0.1?x", False),
        ("10.0.0.1", False),
        ("127.0.0.1:x", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_names_of_this_machine_are_known(host: str, known: bool) -> None:
    access = Access("127.0.0.1", TOKEN, names=["GPU-login.example"])
    assert is_answered(access, host, "127.0.0.1") is known


@pytest.mark.parametrize(
    ("listens_at", "host", "came_to", "known"),
    [
        ("0.0.0.0", "192.0.2.7:8931", "192.0.2.7", True),
        ("0.0.0.0", "192.0.2.8:8931", "192.0.2.7", False),
        ("0.0.0.0", "localhost:8931", "192.0.2.7", False),
        # A socket for IPv6 that also takes IPv4.
        ("::", "192.0.2.7:8931", "::ffff:192.0.2.7", True),
        ("::", "localhost:8931", "::ffff:127.0.0.1", True),
        ("::", "[2001:db8::7]:8931", "2001:db8::7", True),
        ("::", "192.0.2.8:8931", "::ffff:192.0.2.7", False),
        ("gpu7", "gpu7:8931", "192.0.2.7", True),
    ],
)
def test_machine_is_known_by_the_address_that_the_connection_came_to(
    listens_at: str, host: str, came_to: str, known: bool
) -> None:
    assert is_answered(Access(listens_at, TOKEN), host, came_to) is known


@pytest.mark.parametrize("name", ["http://x", "a b", "x/y", "-x", "", "x:80"])
def test_what_is_no_name_of_a_machine_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host"):
        Access("127.0.0.1", TOKEN, names=[name])


@pytest.mark.parametrize(
    ("headers", "method", "fits"),
    [
        ({}, "GET", True),  # no browser
        ({"sec-fetch-site": "none"}, "GET", True),
        ({"sec-fetch-site": "same-origin", "origin": "http://h:1"}, "GET", True),
        ({"origin": "https://h:1"}, "GET", True),  # a proxy with TLS stands before it
        ({"sec-fetch-site": "cross-site"}, "GET", False),
        ({"sec-fetch-site": "same-site"}, "GET", False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "image", "sec-fetch-mode": "no-cors"}, "GET", False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "iframe", "sec-fetch-mode": "navigate"}, "GET", False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "document", "sec-fetch-mode": "navigate"}, "GET", True),
        ({"origin": "http://h:2"}, "GET", False),
        ({"origin": "http://evil.example"}, "GET", False),
        ({"origin": "null"}, "GET", False),
        ({"origin": ""}, "GET", False),
        ({"origin": "http://h:1"}, "POST", True),
        ({"origin": "http://h:1", "sec-fetch-site": "same-origin"}, "POST", True),
        ({"origin": "http://h:1", "sec-fetch-site": "cross-site"}, "POST", False),
        ({}, "POST", False),
        ({"origin": "null"}, "POST", False),
        ({"origin": "http://h:10"}, "POST", False),
    ],
)
def test_pages_of_others_get_nothing(headers: dict[str, str], method: str, fits: bool) -> None:
    assert Access.is_own_page({"host": "h:1", **headers}, method) is fits


def test_who_has_signed_in_is_known_by_a_cookie_that_is_not_the_token() -> None:
    access = Access("127.0.0.1", TOKEN)
    cookie = access.cookie({"host": "127.0.0.1:8931"})
    pair, *flags = cookie.split("; ")
    assert TOKEN not in cookie
    assert flags == ["Path=/", "HttpOnly", "SameSite=Strict"]

    assert access.may_read({"host": "127.0.0.1:8931", "cookie": f"other=1; {pair}"})
    assert not access.may_read({"host": "127.0.0.1:8931"})
    other_server = {"host": "127.0.0.1:8932", "cookie": pair}
    assert not access.may_read(other_server)
    assert not access.may_read({"host": "127.0.0.1:8931", "cookie": pair[:-1] + "x"})
    assert not access.may_read({"host": "127.0.0.1:8931", "cookie": f"{pair.partition('=')[0]}={TOKEN}"})
    assert not Access("127.0.0.1", TOKEN + "x").is_signed_in({"host": "127.0.0.1:8931", "cookie": pair})


def test_token_itself() -> None:
    access = Access("127.0.0.1", TOKEN)
    assert access.is_token(TOKEN)
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "é", "\ud800"):
        assert not access.is_token(wrong)
    assert not access.may_read({})
    assert Access("127.0.0.1", TOKEN, token_to_read=False).may_read({})
    assert len({new_token() for _ in range(8)}) == 8
    assert min(map(len, (new_token() for _ in range(8)))) >= 32


def test_token_comes_from_a_file_that_only_its_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\nsomething else\n")
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    for bad in ("short", "", "0123456789 abcdef", "é" * 20):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="16 or more"):
            read_token(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_token(tmp_path / "none")


def test_addresses_of_this_machine_only() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "gpu7", "")))
