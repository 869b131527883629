"""An S3-compatible server on loopback, and a proxy in front of it that is as bad as a network can be."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import random
import socket
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUCKET", "FaultProxy", "ObjectStore", "free_port"]

BUCKET = "bucket"
_HEAD = "HTTP/1.1 {} Answer\r\nContent-Type: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n"
_PAGE = "<html>\r\n<body>Please log in" + "<p></p>\n" * 5000 + "</body>\n</html>\n"
_XML = '<?xml version="1.0"?><Error><Code>{}</Code><Message>no</Message><RequestId>1</RequestId></Error>'


class ObjectStore:
    """moto's server; its objects stay while it is stopped.

    moto keeps them for the whole process, whichever server they came through: a new one begins by removing what the tests
    of another module left, or the first test of the next finds a bucket that is not empty.
    """

    def __init__(self) -> None:
        import boto3
        import moto.server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server_class: Any = moto.server.ThreadedMotoServer
        # Kept until the end: while the server is stopped, nobody else is given the port. moto would wait for one for ever.
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        weakref.finalize(self, reserved.close)
        self.port: int = reserved.getsockname()[1]
        self.start()
        login = {"aws_access_key_id": "user", "aws_secret_access_key": "word", "region_name": "us-east-1"}
        self.client: Any = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.port}", **login)
        self.client.create_bucket(Bucket=BUCKET)
        self.forget()

    def start(self) -> None:
        """Start it, on the port that it had before."""
        self._server = self._server_class(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Stop it; connections are refused from here on."""
        self._server.stop()

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the variables by which s3fs finds the server, or a proxy in front of it."""
        return {
            "FSSPEC_S3_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "user",
            "AWS_SECRET_ACCESS_KEY": "word",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def keys(self, prefix: str = "") -> list[str]:
        """Return the names of the objects."""
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return sorted(item["Key"] for item in found.get("Contents", ()))

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def segments(self, prefix: str = "") -> dict[str, list[dict[str, Any]]]:
        """Return the events of every segment."""
        return {key: _events(self.get(key)) for key in self.keys(prefix) if not key.endswith(".index.json")}

    def index(self, prefix: str = "") -> dict[str, Any]:
        """Return the only index."""
        (key,) = (key for key in self.keys(prefix) if key.endswith(".index.json"))
        document: dict[str, Any] = json.loads(self.get(key))
        return document

    def unfinished(self) -> list[Any]:
        """Return the multipart uploads that somebody has begun and left, and that are paid for ever."""
        return list(self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()))

    def forget(self) -> None:
        """Remove every object."""
        for key in self.keys():
            self.client.delete_object(Bucket=BUCKET, Key=key)


def _events(data: bytes) -> list[dict[str, Any]]:
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    if not data.endswith(b"]\n"):
        whole, comma, _ = data.rpartition(b",\n")
        data = whole + b"\n]" if comma else b"[]"  # a bad writer's object may hold nothing yet
    events: list[dict[str, Any]] = json.loads(data)
    return events


class FaultProxy:
    """Passes connections on, unless told to do worse. Set the attributes at any time; they hold for what comes after.

    Attributes:
        fault: "none"; "black hole": takes connections and bytes, and never answers; "reset": ends connections at once
            by RST; "refuse": answers every request with ``status`` and ``code``; "portal": answers every request with 200
            and a page of HTML, as a login page does; "error page": the same with ``status``.
        status, code: What it answers then.
        refusals: How many more times "refuse" and "reset" happen; None: always.
        delay_s: Waits so long before passing on a piece of an answer.
        bytes_per_s: How fast a request passes; None: at once.
        cut_after: Ends a connection by RST after so many bytes of a request; None: never.
        connections: How many have come.
        passed: How many bytes of requests have gone through.
    """

    def __init__(self, port: int) -> None:
        self.fault = "none"
        self.status, self.code = 503, "SlowDown"
        self.refusals: int | None = None
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.cut_after: int | None = None
        self.connections = 0
        self.passed = 0
        self._upstream = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="fault-proxy", daemon=True).start()

    def close(self) -> None:
        """End every connection."""
        self._closed.set()
        for one in (self._listener, *list(self._open)):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), name="fault-proxy", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._kept(client):
            if self._due("reset"):
                _reset(client)
            elif self.fault == "black hole":
                self._closed.wait()
            elif self._due("refuse"):
                _say(client, self.status, "application/xml", _XML.format(self.code))
            elif self.fault in ("portal", "error page"):
                _say(client, 200 if self.fault == "portal" else self.status, "text/html", _PAGE)
            else:
                with self._kept(socket.create_connection(self._upstream)) as upstream:
                    back = threading.Thread(target=self._answer, args=(upstream, client), daemon=True)
                    back.start()
                    self._ask(client, upstream)
                    back.join()

    def _due(self, fault: str) -> bool:
        if self.fault != fault or self.refusals == 0:
            return False
        if self.refusals is not None:
            self.refusals -= 1
            if not self.refusals:
                self.fault = "none"
        return True

    def _ask(self, client: socket.socket, upstream: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := client.recv(4096):
                if self.fault == "black hole":
                    self._closed.wait()
                    return
                if self.bytes_per_s is not None:
                    self._closed.wait(len(piece) / self.bytes_per_s)
                passed += len(piece)
                if self.cut_after is not None and passed > self.cut_after:
                    _reset(client)
                    break
                upstream.sendall(piece)
                self.passed += len(piece)
        with contextlib.suppress(OSError):
            upstream.shutdown(socket.SHUT_RDWR)

    def _answer(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := upstream.recv(65536):
                if self.delay_s:
                    self._closed.wait(self.delay_s)
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)

    @contextlib.contextmanager
    def _kept(self, one: socket.socket) -> Iterator[socket.socket]:
        self._open.add(one)
        try:
            yield one
        except OSError:
            pass
        finally:
            self._open.discard(one)
            one.close()


def _say(client: socket.socket, status: int, kind: str, body: str) -> None:
    """Answer the request that comes, whatever it asks for."""
    if request := client.recv(65536):
        text = _HEAD.format(status, kind, len(body)) + ("" if request.startswith(b"HEAD ") else body)
        client.sendall(text.encode())
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def free_port() -> int:
    """Return a port of loopback that nobody listens on, below those that the system hands out: it may be bound seconds later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)  # not seeded alike in all workers
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
