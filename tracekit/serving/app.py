"""What answers: an address to what is shown there. The only module that imports ``starlette``."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tracekit.capture.press import parse_ranks
from tracekit.errors import TracekitError
from tracekit.serving.guard import LARGEST_FORM_BYTES, GivenUpError, Guard, single_headers
from tracekit.serving.pages import STATIC, Pages
from tracekit.viewing.size import BROWSER_LIMIT_BYTES
from tracekit.viewing.ui import content_type, fragment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracekit.serving.access import Access
    from tracekit.serving.service import Made, Service

__all__ = ["make_application"]

logger = logging.getLogger("tracekit")

SYMBOLS: Final = {"recording": "●", "listening": "○", "finished": "✓", "cut": "✂", "lost": "✕"}
_SIGN_IN: Final = "/sign-in"
# The page without a token loads nothing: its style and its empty icon are inside it.
_SIGN_IN_POLICY: Final = (
    "default-src 'none'; style-src '%s'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_MOST_RUNS: Final = 300
_MOST_RANKS: Final = 256
_PIECE_BYTES: Final = 64 << 10  # each must be taken in the patience of the guard
_LOOK_S: Final = 5
_WAIT_S: Final = 1
_NOT_FOUND: Final = "There is nothing here. A run that was here may have been removed."
# Perfetto's UI compiles its engine, and makes its styles, while it runs.
_UI_POLICY: Final = (
    "default-src 'self' blob: data:; script-src 'self' %s 'wasm-unsafe-eval' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_STYLE: Final = STATIC["style.css"][1]
_SCRIPT: Final = re.compile(rb"<script[^>]*>(.+?)</script>", re.DOTALL)


def make_application(service: Service, access: Access) -> Guard:
    """Return the ASGI application of a service."""
    return _Application(service, access).guarded()


class _Application:
    def __init__(self, service: Service, access: Access) -> None:
        self._service = service
        self._access = access
        self._pages = Pages(root=service.catalog.name, symbols=SYMBOLS, may_capture=service.may_capture)
        folder = service.ui.folder
        # Nothing but what is in this table is ever read, whatever a path says.
        self._ui_files: dict[str, Path] = {}
        self._ui_policy = ""
        if folder is not None:
            files = (path for path in folder.rglob("*") if path.is_file())
            self._ui_files = {path.relative_to(folder).as_posix(): path for path in files}
            self._ui_files[""] = folder / "index.html"
            scripts = _SCRIPT.findall(self._ui_files[""].read_bytes())
            self._ui_policy = _UI_POLICY % " ".join(f"'{_digest(script)}'" for script in scripts)

    def guarded(self) -> Guard:
        """Return the application behind its guard."""
        run = "/runs/{run}"
        routes = [
            Route("/", self._runs),
            Route(run, self._run),
            Route(f"{run}/summary", self._make_summary, methods=["POST"]),
            Route(f"{run}/trace", self._trace, methods=["GET", "POST"]),
            Route(f"{run}/trace/merged.json.gz", self._file),
            Route(_SIGN_IN, self._sign_in, methods=["GET", "POST"]),
            Route("/static/{name}", self._static),
        ]
        if self._service.may_capture:
            routes += [
                Route(f"{run}/capture", self._capture, methods=["GET", "POST"]),
                Route(f"{run}/captures/{{capture}}", self._trace, methods=["GET", "POST"]),
                Route(f"{run}/captures/{{capture}}/merged.json.gz", self._file),
            ]
        if self._ui_files:
            routes.append(Route("/ui/{path:path}", self._ui))
        application = Starlette(
            routes=routes,
            exception_handlers={HTTPException: self._refused, TracekitError: self._failed, Exception: self._broken},
        )
        application.router.redirect_slashes = False
        posts = [route for route in routes if "POST" in (route.methods or ())]

        def takes_post(path: str) -> bool:
            return any(route.path_regex.match(path) for route in posts)

        async def with_sign_in(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] != _SIGN_IN:
                request = Request(scope)
                answer = self._entrance(request)
                if answer is not None:
                    await answer(scope, receive, send)
                    return
            await application(scope, receive, send)

        return Guard(with_sign_in, self._access, takes_post)

    # ---- who may come in ------------------------------------------------------------------------------------------------

    def _entrance(self, request: Request) -> Response | None:
        """Return what is shown instead of what was asked for; None for who may see that."""
        headers = single_headers(request.scope) or {}
        given = request.query_params.get("token")
        if request.method == "GET" and given is not None:
            # The token leaves the address at once: that is kept in the history, and shown.
            if self._access.is_token(given):
                return RedirectResponse(_inside(request.url.path), 303, {"Set-Cookie": self._access.cookie(headers)})
            return self._sign_in_page(request, wrong=True)
        if self._access.may_read(headers):
            return None
        return self._sign_in_page(request)

    def _sign_in_page(self, request: Request, *, wrong: bool = False, onward: str | None = None) -> Response:
        # A link from elsewhere comes without the cookie; the same page asked for by itself has it.
        foreign = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        values = {
            "wrong": wrong,
            "next": onward or request.url.path,
            "look_again": foreign and not wrong,
            "style": _STYLE.decode(),
        }
        policy = {"Content-Security-Policy": _SIGN_IN_POLICY % _digest(_STYLE)}
        return HTMLResponse(self._pages.render("sign_in.html", values), 403, policy)

    async def _sign_in(self, request: Request) -> Response:
        if request.method == "GET":
            return self._sign_in_page(request, onward="/")
        form = await _form(request)
        onward = _inside(form.get("next", "/"))
        if not self._access.is_token(form.get("token", "").strip()):
            return self._sign_in_page(request, wrong=True, onward=onward)
        cookie = self._access.cookie(single_headers(request.scope) or {})
        return RedirectResponse(onward, 303, {"Set-Cookie": cookie})

    # ---- reading --------------------------------------------------------------------------------------------------------

    async def _runs(self, request: Request) -> Response:
        del request
        runs, notes, problem = await asyncio.to_thread(self._service.catalog.runs)
        # So many cards take a while; nobody else waits for them.
        return await asyncio.to_thread(
            self._page,
            "runs.html",
            refresh_s=_LOOK_S,
            count=len(runs),
            runs=runs[:_MOST_RUNS],
            notes=notes,
            problem=problem,
        )

    async def _run(self, request: Request) -> Response:
        view = await self._found(self._service.view, request)
        return await asyncio.to_thread(
            self._page,
            "run.html",
            refresh_s=_WAIT_S if view.busy else _LOOK_S if view.lives else 0,
            busy=view.busy,
            run=view.run,
            ranks=view.run.ranks[:_MOST_RANKS],
            more_ranks=max(0, len(view.run.ranks) - _MOST_RANKS),
            explained=view.explained,
            age=view.age,
            live=view.live,
            sentences=view.sentences,
            notes=view.notes,
            summary_job=view.job,
        )

    async def _make_summary(self, request: Request) -> Response:
        run = await self._found(self._service.begin_summary, request)
        return RedirectResponse(run.link, 303)

    async def _trace(self, request: Request) -> Response:
        if request.method == "POST":
            made = await self._found(self._service.begin_merge, request)
            return RedirectResponse(made.link, 303)
        made = await self._found(self._service.merged, request)
        return self._page(
            "trace.html",
            refresh_s=_WAIT_S if made.busy else 0,
            busy=made.busy,
            run=made.run,
            made=made,
            part=made.part,
            ui=self._service.ui,
            limit=BROWSER_LIMIT_BYTES,
            offline_link=self._offline_link(request, made),
        )

    def _offline_link(self, request: Request, made: Made) -> str:
        if not self._ui_files:
            return ""
        origin = f"{request.url.scheme}://{request.headers['host']}"
        return "/ui/" + fragment(f"{origin}{made.link}/merged.json.gz")

    async def _file(self, request: Request) -> Response:
        made = await self._found(self._service.merged, request)
        if made.ready is None:
            raise HTTPException(404)
        try:
            file = made.path.open("rb")
        except OSError:
            raise HTTPException(404) from None
        length = file.seek(0, 2)
        file.seek(0)
        name = quote(f"{made.title}.json.gz")
        headers = {"Content-Length": str(length), "Content-Disposition": f"attachment; filename*=utf-8''{name}"}

        def pieces() -> Iterator[bytes]:
            with file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece

        return StreamingResponse(pieces(), headers=headers, media_type="application/octet-stream")

    async def _static(self, request: Request) -> Response:
        found = STATIC.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        kind, content = found
        return Response(content, headers={"Content-Type": kind, "Cache-Control": "no-cache"})

    async def _ui(self, request: Request) -> Response:
        path = self._ui_files.get(request.path_params["path"])
        if path is None:
            raise HTTPException(404)
        content = await asyncio.to_thread(path.read_bytes)
        kind = content_type(path)
        return Response(content, headers={"Content-Type": kind, "Content-Security-Policy": self._ui_policy})

    # ---- capturing ------------------------------------------------------------------------------------------------------

    async def _capture(self, request: Request, error: str = "") -> Response:
        headers = single_headers(request.scope) or {}
        signed_in = self._access.knows(headers)
        run = await self._found(self._service.run, request)
        if request.method == "POST" and not error:
            if not signed_in:
                raise HTTPException(403)
            form = await _form(request)
            try:
                steps, ranks = _steps(form.get("steps", "")), form.get("ranks", "").strip()
                await asyncio.to_thread(self._service.begin_capture, run, steps, parse_ranks(ranks) if ranks else None)
            except TracekitError as problem:
                return await self._capture(request, error=str(problem))
            return RedirectResponse(f"{run.link}/capture", 303)
        captures = await asyncio.to_thread(self._service.captures_of, run) if signed_in else []
        busy = any(capture.state == "running" for capture, _ in captures)
        return self._page(
            "capture.html",
            status=400 if error else 200,
            refresh_s=_WAIT_S if busy else 0,
            busy=busy,
            run=run,
            part="Capture",
            error=error,
            signed_in=signed_in,
            captures=captures,
        )

    # ---- all of them ----------------------------------------------------------------------------------------------------

    async def _found(self, ask: Callable[..., Any], request: Request) -> Any:
        """Return what the service says to the run (and capture) of an address, or end in a page that says there is none."""
        found = await asyncio.to_thread(ask, **request.path_params)
        if found is None:
            raise HTTPException(404)
        return found

    def _page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self._pages.render(template, {"now_s": time.time(), **values}), status)

    async def _refused(self, request: Request, error: Exception) -> Response:
        del request
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:
            return self._page("problem.html", status=404, heading="Not here", words=_NOT_FOUND)
        return Response(b"", status)

    async def _failed(self, request: Request, error: Exception) -> Response:
        del request
        return self._page("problem.html", status=502, heading="This cannot be shown", words=str(error))

    async def _broken(self, request: Request, error: Exception) -> Response:
        if isinstance(error, GivenUpError):
            return Response(b"", 408, {"Connection": "close"})
        # Neither the address, which may hold a token, nor what the browser has sent.
        logger.error("tracekit serve: unexpected %s; please report this", type(error).__name__)
        words = f"An unexpected {type(error).__name__}. This is a fault of tracekit: please report it."
        del request
        return self._page("problem.html", status=500, heading="This went wrong", words=words)


def _digest(content: bytes) -> str:
    """Return what a content security policy calls a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"


def _inside(path: str) -> str:
    """Return a path of this server, whatever is given: a browser takes some texts for the address of another one."""
    fits = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if fits else "/"


async def _form(request: Request) -> dict[str, str]:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > LARGEST_FORM_BYTES:
            raise HTTPException(413)
    fields = parse_qs(data.decode("latin-1"), keep_blank_values=True, max_num_fields=16)
    return {name: values[-1] for name, values in fields.items()}


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0):
        raise TracekitError("the number of batches must be 1 or more")
    return int(text)
