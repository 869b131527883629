"""Answer addresses with pages, forms and files, through ``starlette``."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tracekit.arguments import parse_ranks
from tracekit.errors import TracekitError
from tracekit.view.open.server import STATIC_FOLDER
from tracekit.view.open.ui import BROWSER_LIMIT_BYTES, fragment
from tracekit.view.pages import Pages
from tracekit.view.report.content import UNFOLDED_ROWS
from tracekit.view.serve.runs import ORDERS, RunQuery, list_runs
from tracekit.view.serve.security import Access, ClientTimeoutError, SecurityMiddleware

if TYPE_CHECKING:
    from tracekit.view.serve.runs import Run
    from tracekit.view.serve.service import Service

logger = logging.getLogger("tracekit")

_SYMBOLS: Final = {"recording": "●", "listening": "○", "finished": "✓", "cut": "✂", "lost": "✕"}
_SIGN_IN: Final = "/sign-in"
# The page without a token loads nothing: its style and its empty icon are inside it.
_SIGN_IN_POLICY: Final = (
    "default-src 'none'; style-src '%s'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Perfetto's UI compiles its engine, and makes its styles, while it runs.
_UI_POLICY: Final = (
    "default-src 'self' blob: data:; script-src 'self' %s 'wasm-unsafe-eval' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_SCRIPT: Final = re.compile(rb"<script[^>]*>(.+?)</script>", re.DOTALL)
_LOOK_S: Final = 5
_WAIT_S: Final = 1
_NOT_FOUND: Final = "There is nothing here. A run that was here may have been removed."


def make_application(service: Service, access: Access) -> SecurityMiddleware:
    """Return the ASGI application of a service."""
    return _Application(service, access).secured()


class _Application:
    def __init__(self, service: Service, access: Access) -> None:
        self._service = service
        self._access = access
        self._pages = Pages(
            "serve",
            "tracekit serve",
            root=service.catalog.name,
            symbols=_SYMBOLS,
            may_capture=service.may_capture,
            ui=service.ui,
            unfolded_rows=UNFOLDED_ROWS,
        )
        self._style = (STATIC_FOLDER / "style.css").read_bytes()

    def secured(self) -> SecurityMiddleware:
        """Return the application behind its security checks."""
        run, both, ui_policy = "/runs/{run}", ["GET", "POST"], ""
        routes = [
            Route("/", self._runs),
            Route(run, self._run),
            Route(f"{run}/tags", self._set_tags, methods=["POST"]),
            Route("/compare", self._compare),
            Route(f"{run}/summary", self._make_summary, methods=["POST"]),
            Route(f"{run}/trace", self._trace, methods=both),
            Route(f"{run}/trace/merged.json.gz", self._file),
            Route(_SIGN_IN, self._sign_in, methods=both),
        ]
        if self._service.may_capture:
            routes += [
                Route(f"{run}/capture", self._capture, methods=both),
                Route(f"{run}/captures/{{capture}}", self._trace, methods=both),
                Route(f"{run}/captures/{{capture}}/merged.json.gz", self._file),
            ]
        mounts = [Mount("/static", StaticFiles(directory=STATIC_FOLDER))]
        if self._service.ui.folder is not None:
            mounts.append(Mount("/ui", StaticFiles(directory=self._service.ui.folder, html=True)))
            scripts = _SCRIPT.findall((self._service.ui.folder / "index.html").read_bytes())
            ui_policy = _UI_POLICY % " ".join(f"'{_digest(script)}'" for script in scripts)
        application = Starlette(
            routes=[*routes, *mounts],
            exception_handlers={HTTPException: self._refused, TracekitError: self._failed, Exception: self._broken},
        )
        application.router.redirect_slashes = False
        posts = [route.path_regex for route in routes if "POST" in (route.methods or ())]

        async def with_sign_in(scope: Any, receive: Any, send: Any) -> None:
            answer = self._entrance(Request(scope)) if scope["path"] != _SIGN_IN else None
            await (answer or application)(scope, receive, send)

        return SecurityMiddleware(
            with_sign_in, self._access, lambda path: any(post.match(path) for post in posts), ui_policy
        )

    # ---- signing in -----------------------------------------------------------------------------------------------------

    def _entrance(self, request: Request) -> Response | None:
        """Return the answer to those who may not read; None for others."""
        given = request.query_params.get("token")
        if request.method == "GET" and given is not None:
            # The token leaves the address, which is kept in the history and shown.
            if self._access.is_token(given):
                return self._signed_in(request, request.url.path)
            return self._sign_in_page(request, wrong=True)
        return None if self._access.may_read(request.headers) else self._sign_in_page(request)

    def _signed_in(self, request: Request, onward: str) -> Response:
        # Browsers take some paths for the address of another server.
        inside = onward.startswith("/") and not onward.startswith(("//", "/\\")) and onward.isprintable()
        return RedirectResponse(onward if inside else "/", 303, {"Set-Cookie": self._access.cookie(request.headers)})

    def _sign_in_page(self, request: Request, *, wrong: bool = False, onward: str | None = None) -> Response:
        # A link from elsewhere comes without the cookie; the same page asked for by itself has it.
        foreign = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        values = {
            "wrong": wrong,
            "next": onward or request.url.path,
            "look_again": foreign and not wrong,
            "style": self._style.decode(),
        }
        policy = {"Content-Security-Policy": _SIGN_IN_POLICY % _digest(self._style)}
        return HTMLResponse(self._pages.render("sign_in.html", values), 403, policy)

    async def _sign_in(self, request: Request) -> Response:
        if request.method == "GET":
            return self._sign_in_page(request, onward="/")
        form = await _form(request)
        if not self._access.is_token(form.get("token", "").strip()):
            return self._sign_in_page(request, wrong=True, onward=form.get("next", "/"))
        return self._signed_in(request, form.get("next", "/"))

    def _need_token(self, request: Request) -> None:
        if not self._access.is_signed_in(request.headers):
            raise HTTPException(403)

    # ---- runs -----------------------------------------------------------------------------------------------------------

    async def _runs(self, request: Request) -> Response:
        runs, notes, problem = await asyncio.to_thread(self._service.catalog.runs)
        tags = self._service.tags.all()
        found = list_runs(runs, RunQuery.of(request.query_params), tags)
        values: dict[str, Any] = {"found": found, "query": found.query, "orders": ORDERS, "tags": tags}
        # Nobody else waits while many rows are rendered.
        return await asyncio.to_thread(
            self._page, "runs.html", refresh_s=_LOOK_S, notes=notes, problem=problem, **values
        )

    async def _run(self, request: Request) -> Response:
        values = await self._found(self._service.run_page, request)
        refresh_s = _WAIT_S if values["busy"] else _LOOK_S if values["run"].lives else 0
        signed_in = self._access.is_signed_in(request.headers)
        return await asyncio.to_thread(self._page, "run.html", refresh_s=refresh_s, signed_in=signed_in, **values)

    async def _set_tags(self, request: Request) -> Response:
        self._need_token(request)
        form = await _form(request)
        run = await self._run_of(request)
        await asyncio.to_thread(self._service.tags.set, run.id, form.get("tags", ""))
        return RedirectResponse(run.link, 303)

    async def _make_summary(self, request: Request) -> Response:
        run = await self._run_of(request)
        if run.files:
            await asyncio.to_thread(self._service.begin_summary, run)
        return RedirectResponse(run.link, 303)

    async def _compare(self, request: Request) -> Response:
        first, second = request.query_params.get("a", ""), request.query_params.get("b", "")
        before, after, job = await self._found(self._service.comparison, request, first=first, second=second)
        values = {"before": before, "after": after, "job": job, "part": "Comparison"}
        return self._page("compare.html", refresh_s=0 if job.ended else _WAIT_S, busy=not job.ended, **values)

    # ---- merged traces --------------------------------------------------------------------------------------------------

    async def _trace(self, request: Request) -> Response:
        if request.method == "POST":
            made = await self._found(self._service.begin_merge, request)
            return RedirectResponse(made.link, 303)
        made = await self._found(self._service.merged, request)
        chosen = {name: request.query_params.get(name, "") for name in ("from", "to", "track")}
        part = None if made.ready is None else await asyncio.to_thread(self._service.part, made, chosen)
        origin, offline_link = f"{request.url.scheme}://{request.headers['host']}", ""
        if self._service.ui.folder is not None:
            offline_link = "/ui/" + fragment(f"{origin}{made.link}/merged.json.gz", part)
        given = urlencode({name: value for name, value in chosen.items() if value})
        values = {
            "run": made.run,
            "made": made,
            "part": made.part,
            "offline_link": offline_link,
            "ui_link": self._service.ui.link(None, part),
            "chosen": chosen,
            "shared_link": "" if part is None else f"{made.link}?{given}",
            "origin": origin,
        }
        return self._page(
            "trace.html", refresh_s=_WAIT_S if made.busy else 0, busy=made.busy, limit=BROWSER_LIMIT_BYTES, **values
        )

    async def _file(self, request: Request) -> Response:
        made = await self._found(self._service.merged, request)
        if made.ready is None:
            raise HTTPException(404)
        name = quote(f"{made.title}.json.gz")
        headers = {"Content-Disposition": f"attachment; filename*=utf-8''{name}"}
        return FileResponse(made.path, headers=headers, media_type="application/octet-stream")

    # ---- captures -------------------------------------------------------------------------------------------------------

    async def _capture(self, request: Request) -> Response:
        run, error = await self._run_of(request), ""
        if request.method == "POST":
            self._need_token(request)
            form = await _form(request)
            try:
                steps, listed = _steps(form.get("steps", "")), form.get("ranks", "").strip()
                ranks = parse_ranks("ranks", listed) if listed else None
                await asyncio.to_thread(self._service.begin_capture, run, steps, ranks)
                return RedirectResponse(f"{run.link}/capture", 303)
            except TracekitError as problem:
                error = str(problem)
        signed_in = self._access.is_signed_in(request.headers)
        captures = await asyncio.to_thread(self._service.captures_of, run) if signed_in else []
        busy = any(capture.state == "running" for capture, _ in captures)
        values = {"run": run, "part": "Capture", "error": error, "signed_in": signed_in, "captures": captures}
        return self._page(
            "capture.html", status=400 if error else 200, refresh_s=_WAIT_S if busy else 0, busy=busy, **values
        )

    # ---- all pages ------------------------------------------------------------------------------------------------------

    async def _run_of(self, request: Request) -> Run:
        run = await asyncio.to_thread(self._service.catalog.find, request.path_params["run"])
        if run is None:
            raise HTTPException(404)
        return run

    async def _found(self, ask: Callable[..., Any], request: Request, **values: Any) -> Any:
        """Return the service's answer on the run and capture in an address; raise 404 for None."""
        found = await asyncio.to_thread(ask, **request.path_params, **values)
        if found is None:
            raise HTTPException(404)
        return found

    def _page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self._pages.render(template, {"now_s": time.time(), **values}), status)

    async def _refused(self, _: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:
            return self._page("problem.html", status=404, heading="Not here", words=_NOT_FOUND)
        return Response(b"", status)

    async def _failed(self, _: Request, error: Exception) -> Response:
        return self._page("problem.html", status=502, heading="This cannot be shown", words=str(error))

    async def _broken(self, _: Request, error: Exception) -> Response:
        if isinstance(error, ClientTimeoutError):
            return Response(b"", 408, {"Connection": "close"})
        # Neither the address, which may hold a token, nor the form.
        logger.error("tracekit serve: unexpected %s; please report this", type(error).__name__)
        words = f"An unexpected {type(error).__name__}. This is a fault of tracekit: please report it."
        return self._page("problem.html", status=500, heading="This went wrong", words=words)


def _digest(content: bytes) -> str:
    """Return the name of a script or style in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"


async def _form(request: Request) -> dict[str, str]:
    # `SecurityMiddleware` has limited its length.
    fields = parse_qs((await request.body()).decode("latin-1"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0):
        raise TracekitError("the number of batches must be 1 or more")
    return int(text)
