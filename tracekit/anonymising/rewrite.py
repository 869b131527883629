"""Reads traces twice: once for whom they name, once to write them without."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.anonymising.aliases import WHOLE_VALUE, Aliases
from tracekit.arguments import check_path
from tracekit.errors import ConfigError, TraceFormatError
from tracekit.formats.gzip_codec import GzipWriter
from tracekit.formats.stack_frames import PARENT, STACK_FRAMES, frame_key, numbered_frames, rename_frames, renumber
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_json, decode_raw_dict, encode_events, encode_json
from tracekit.formats.trace_reader import TraceReader
from tracekit.storage import atomic_write, basename, refuse_existing, same_file, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.arguments import StrPath

__all__ = ["AnonymousTrace", "anonymise_traces"]

_TEXT: Final = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?', re.DOTALL)
_PIECE: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_NUMBER: Final = re.compile(rb"-?\d[\d.eE+-]*")
_MOST_KNOWN: Final = 100_000
_LONGEST_KNOWN: Final = 300
_SOME_BYTES: Final = 64_000_000
_TEXT_FIELDS: Final = ("name", "args", "cat", "id", "id2", "bind_id", "scope", "stack", "cname", "sf")
_NAMES_SOMEBODY: Final = re.compile(rb"host|user|home|node|\\", re.IGNORECASE)
_UNREADABLE: Final = b'"text"'


@dataclass(frozen=True, slots=True)
class AnonymousTrace:
    """A trace that was written.

    Attributes:
        source: Of which trace.
        output: The file.
        events: How many events it has.
        lost: How many places of the source could not be read, and are left out.
    """

    source: str
    output: str
    events: int
    lost: int


def anonymise_traces(
    pairs: Sequence[tuple[StrPath, StrPath]],
    *,
    names: bool = False,
    overwrite: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[list[AnonymousTrace], dict[str, int]]:
    """Write traces without paths, hosts and users. The same thing has the same word in all of them.

    Times, numbers and ids stay as they are, so that the results can be merged like the traces; only the number of a ``user`` or
    the like becomes a word. What is free text of yours (what a marker is called, what its arguments say) is only searched for
    paths, hosts, users and addresses.

    Args:
        pairs: Each trace, and where to write it: ``.json``, or ``.json.gz``.
        names: Also replace the names of events, processes, threads and functions in stacks that are not everybody's.
        overwrite: Whether files that are there may be replaced.
        progress: Called now and then with the share that is done, 0 to 1, and with what is being done.

    Returns:
        What was written, and how many things have another word now, by kind: "path", "host", "user" ...

    Raises:
        ConfigError: An output is one of the inputs, that of two inputs, or no JSON by its name.
        StorageError: A trace cannot be read, or an output cannot be written or is there already.
        TraceFormatError: A file is no trace, or no event in it can be read.
    """
    named = [(check_path("pairs", source), check_path("pairs", output)) for source, output in pairs]
    for number, (_, output) in enumerate(named):
        if any(same_file(earlier, output) for _, earlier in named[:number]):
            raise ConfigError(
                f"{without_secrets(output)}: two of the inputs would be written there; anonymise them one by one with -o"
            )
        if not output.removesuffix(".gz").endswith(".json"):
            raise ConfigError(f"{without_secrets(output)}: the output must end with .json or .json.gz")
        if any(same_file(source, output) for source, _ in named):
            raise ConfigError(f"{without_secrets(output)}: the output is one of the inputs; choose another name")
        if not overwrite:
            refuse_existing(output)
    aliases = Aliases(names=names)
    tell = progress or (lambda share, what: None)
    frames = []
    for number, (source, _) in enumerate(named):
        frames.append(
            _learn(source, aliases, partial(_tell, tell, number, 2 * len(named), f"reading {basename(source)}"))
        )
    aliases.finish_learning()
    written = []
    for number, (source, output) in enumerate(named):
        share = partial(_tell, tell, len(named) + number, 2 * len(named), f"writing {basename(output)}")
        with atomic_write(output, overwrite=overwrite) as file:
            written.append(_write(source, output, file, aliases, frames[number], share))
    tell(1.0, "done")
    return written, aliases.counts


def _tell(tell: Callable[[float, str], None], number: int, count: int, what: str, done_bytes: int) -> None:
    # How much a packed file unpacks to is not known: approach the end without reaching it.
    tell((number + done_bytes / (done_bytes + _SOME_BYTES)) / count, what)


class _Texts:
    """Goes through the texts of events, and of any JSON in its order, each with the last key before it."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self._key = ""
        self._known: dict[tuple[str, bytes], bytes] = {}
        self._learned: set[tuple[str, bytes]] = set()

    def learn_event(self, event: Event) -> None:
        """Note whom an event names."""
        for field, raw in _raw_fields(event):
            # Host and user have a key of theirs, or stand in a path.
            if _NAMES_SOMEBODY.search(raw):
                self._key = field
                self.learn(raw)

    def clean_event(self, event: Event, frames: dict[str, int]) -> None:
        """Put other words into an event, and other ids of stack frames."""
        rename_frames(event, partial(_renamed, frames))
        for field, raw in _raw_fields(event):
            self._key = field
            if field == "args":
                # Few are equal, and few name anybody.
                if self._aliases.may_change(raw):
                    # A counter without its numbers is none.
                    event.args = Raw(self.clean(raw, numbers=event.ph != "C"))
            elif raw[:1] == b'"' and len(raw) > 1:
                setattr(event, field, Raw(self._other(field, raw[1:-1])))
            else:
                setattr(event, field, Raw(self.clean(raw)))
        for place in ("pid", "tid"):
            value = getattr(event, place)
            if isinstance(value, str):
                setattr(event, place, self._aliases.clean(place, value))
        if event.extra is not UNSET:
            event.extra = decode_raw_dict(self.clean(encode_json(event.extra)))

    def clean_header(self, header: Mapping[str, Any], frames: Mapping[str, int]) -> bytes:
        """Return the keys beside the events with other words, as JSON, and with other ids of stack frames."""
        found = renumber(header, frames)
        table = found.pop(STACK_FRAMES, None)
        cleaned = self.clean(encode_json(found))
        if table is None:
            return cleaned
        if isinstance(table, dict):
            table = {key: self._clean_frame(frame) for key, frame in table.items()}
        key = encode_json({STACK_FRAMES: table})[1:]
        return b"%b,%b" % (cleaned[:-1], key) if found else b"{" + key

    def _clean_frame(self, frame: Any) -> Any:
        """Return a stack frame with other words: what it says is what a function is called, and where it is."""
        if not isinstance(frame, dict):
            return frame
        return {
            field: self._aliases.clean("name", value)
            if isinstance(value, str) and field != PARENT
            else Raw(self.clean(encode_json(value)))
            for field, value in frame.items()
        }

    def learn(self, json: bytes) -> None:
        """Note whom the texts name."""
        for match in _TEXT.finditer(json):
            if match[2] is not None:
                self._key = match[1].decode("utf-8", "replace")
            elif (found := (self._key, match[1])) not in self._learned:
                if len(self._learned) >= _MOST_KNOWN:
                    self._learned.clear()
                if len(match[1]) <= _LONGEST_KNOWN:
                    self._learned.add(found)
                self._aliases.learn(self._key, _decode(match[1]) or "")

    def clean(self, json: bytes, *, numbers: bool = True) -> bytes:
        """Return the same JSON with other words in its texts.

        An object or a list whose key says that all of it names somebody becomes one word.

        Args:
            json: An object, a list or a text.
            numbers: Whether a number with such a key becomes a word too.
        """
        out: list[bytes] = []
        at = 0
        for key in WHOLE_VALUE.finditer(json):
            start = key.end()
            if start < at or not (numbers or json[start] in b"[{"):
                continue
            out.append(_TEXT.sub(self._replace, json[at:start]))
            at = _end_of_value(json, start)
            out.append(encode_json(self._aliases.clean(key[1].decode(), json[start:at].decode("utf-8", "replace"))))
        out.append(_TEXT.sub(self._replace, json[at:]))
        return b"".join(out)

    def _replace(self, match: re.Match[bytes]) -> bytes:
        if match[2] is not None:
            self._key = match[1].decode("utf-8", "replace")
            return self._other("", match[1]) + match[2]
        return self._other(self._key, match[1])

    def _other(self, key: str, raw: bytes) -> bytes:
        known = self._known.get((key, raw))
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            text = _decode(raw)
            known = _UNREADABLE
            if text is not None:
                cleaned = self._aliases.clean(key, text)
                # What is not changed stays as it was spelled.
                known = b'"%b"' % raw if cleaned == text else encode_json(cleaned)
            if len(raw) <= _LONGEST_KNOWN:
                self._known[key, raw] = known
        return known


def _end_of_value(json: bytes, start: int) -> int:
    """Return where an object, a list or a number ends."""
    number = _NUMBER.match(json, start)
    if number is not None:
        return number.end()
    depth = 0
    for piece in _PIECE.finditer(json, start):
        depth += (piece[0] in (b"[", b"{")) - (piece[0] in (b"]", b"}"))
        if not depth:
            return piece.end()
    return len(json)


def _decode(raw: bytes) -> str | None:
    try:
        text = decode_json(b'"%b"' % raw)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _raw_fields(event: Event) -> Iterator[tuple[str, bytes]]:
    """Yield the fields of an event that may hold texts, as they stand in the file."""
    for field in _TEXT_FIELDS:
        raw = getattr(event, field)
        if raw is not UNSET:
            yield field, bytes(raw)


def _renamed(frames: dict[str, int], raw: bytes) -> Raw:
    key = frame_key(raw) if frames else None
    # A frame that the table does not have must not become one that it has.
    return Raw(raw) if key is None else Raw(b"%d" % frames.setdefault(key, len(frames) + 1))


def _learn(source: str, aliases: Aliases, progress: Callable[[int], None]) -> dict[str, int]:
    """Note whom a trace names; returns other ids for its stack frames.

    The old ones may say something: those of a merge are made of what the frames say.
    """
    texts = _Texts(aliases)
    with TraceReader(source) as reader:
        for run in reader.runs():
            for event in run:
                texts.learn_event(event)
                if event.extra is not UNSET:
                    texts.learn(encode_json(event.extra))
            progress(reader.bytes_read)
        texts.learn(encode_json(reader.header))
        if not reader.events and reader.drops:
            raise TraceFormatError(reader.path, "no event in it can be read", offset_bytes=reader.drops[0].offset_bytes)
        return numbered_frames(reader.header)


def _write(
    source: str,
    output: str,
    file: BinaryIO,
    aliases: Aliases,
    frames: dict[str, int],
    progress: Callable[[int], None],
) -> AnonymousTrace:
    texts = _Texts(aliases)
    with TraceReader(source) as reader, GzipWriter(file) if output.endswith(".gz") else nullcontext(file) as sink:
        early = dict(reader.header)
        if reader.form == "array":
            sink.write(b"[\n")
        else:
            sink.write(
                texts.clean_header(early, frames)[:-1] + (b',"traceEvents":[\n' if early else b'"traceEvents":[\n')
            )
        between = b""
        for run in reader.runs():
            for event in run:
                texts.clean_event(event, frames)
            sink.write(between + encode_events(run))
            between = b",\n"
            progress(reader.bytes_read)
        late = {key: value for key, value in reader.header.items() if key not in early}
        sink.write(b"\n]")
        if reader.form == "object":
            sink.write(b"," + texts.clean_header(late, frames)[1:] if late else b"}")
        sink.write(b"\n")
        lost = sum(drop.count for drop in reader.drops)
        events = reader.events
    return AnonymousTrace(without_secrets(source), without_secrets(output), events, lost)
