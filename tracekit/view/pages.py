"""Render pages from templates: the only module that imports ``jinja2``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from tracekit.errors import MissingExtraError
from tracekit.explain.text import duration
from tracekit.markup import visible
from tracekit.view.report.content import Name
from tracekit.wording import counted, size_words


class Pages:
    """Renders templates with ``common`` values, and escapes all values. Any thread may use it.

    Raises MissingExtraError, which names the extra and the feature ``what`` that needs it, if jinja2 is not installed.
    """

    def __init__(self, extra: str, what: str, **common: Any) -> None:
        try:
            import jinja2
        except ImportError as error:
            raise MissingExtraError("Jinja2", extra, what) from error
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("tracekit.view"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            # Markup is a subclass of str, which stays as it is.
            finalize=lambda value: visible(value) if type(value) is str else value,
        )
        self._environment.filters.update(
            counted=counted,
            duration=duration,
            size=size_words,
            ago=_ago,
            moment=_moment,
            iso=_iso,
            number="{:,}".format,
        )
        self._environment.tests["name"] = lambda value: isinstance(value, Name)
        self._environment.globals.update(common)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return a page."""
        page = self._environment.get_template(template).render(**values)
        assert isinstance(page, str)
        return page


def _ago(seconds: float) -> str:
    """Return a time in the past: "3 min ago"."""
    if seconds < 2:
        return "now"
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _moment(seconds: float) -> str:
    """Return a local time: "2026-11-21 20:15"."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
