"""Pages as HTML, from the templates beside this module: the only module that imports ``jinja2``."""

from __future__ import annotations

import importlib.resources
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.text import duration
from tracekit.errors import MissingExtraError
from tracekit.markup import visible
from tracekit.reporting.plot_style import PLOT_CSS
from tracekit.wording import counted, size_words

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STATIC", "Pages"]

_PACKAGE: Final = "tracekit.serving"
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


def _static() -> dict[str, tuple[str, bytes]]:
    files = importlib.resources.files(_PACKAGE) / "static"
    found = {
        file.name: (_TYPES[file.name[file.name.rindex(".") :]], file.read_bytes())
        for file in files.iterdir()
        if file.name.endswith(tuple(_TYPES))
    }
    handover = importlib.resources.files("tracekit.viewing") / "handover.js"
    found["handover.js"] = (_TYPES[".js"], handover.read_bytes())
    found["plots.css"] = (_TYPES[".css"], PLOT_CSS.encode())
    return found


STATIC: Final = _static()
"""What the pages ask for beside themselves, by name: its type and content."""


class Pages:
    """Renders templates; everything that stands in them is escaped. Any thread may use it.

    Args:
        **common: What every template gets.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """

    def __init__(self, **common: Any) -> None:
        try:
            import jinja2
        except ImportError as error:
            raise MissingExtraError("jinja2", "serve", "tracekit serve") from error
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_without_controls,
        )
        self._environment.filters.update(
            counted=counted, duration=duration, size=size_words, ago=ago, moment=moment, iso=_iso, number="{:,}".format
        )
        self._environment.globals.update(common)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return a page."""
        return self._environment.get_template(template).render(**values)


def _without_controls(value: Any) -> Any:
    # Markup of this package is a subclass of str, which stays what it is.
    return visible(value) if type(value) is str else value


def ago(seconds: float) -> str:
    """Return how long ago something was: "3 min ago"."""
    if seconds < 2:
        return "now"
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def moment(seconds: float) -> str:
    """Return a time of day, where the server is: "2026-11-21 20:15"."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
