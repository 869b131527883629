"""Remove from traces the names of people, machines and files, so that the traces can be shared.

Each trace is read twice: the first time to learn the names, the second time to write it without them.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracekit.arguments import check_path
from tracekit.check.aliases import WHOLE_VALUE, Aliases
from tracekit.errors import ConfigError, TraceFormatError
from tracekit.formats.gzip_codec import packed
from tracekit.formats.json.reader import TraceReader
from tracekit.formats.json.window import scan_value
from tracekit.formats.kineto import rank_in_name
from tracekit.formats.stack_frames import PARENT, STACK_FRAMES, frame_key, numbered_frames, rename_frames, renumber
from tracekit.formats.trace_event import UNSET, Event, Raw, decode_or_none, decode_raw_dict, encode_events, encode_json
from tracekit.storage import atomic_write, basename, file_identity, refuse_existing, without_secrets
from tracekit.structs import Struct
from tracekit.traces.inputs import ANONYMOUS, copy_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.arguments import StrPath

_TEXT: Final = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?', re.DOTALL)
_MOST_KNOWN: Final = 100_000
_LONGEST_KNOWN: Final = 300
_SOME_BYTES: Final = 64_000_000
_TEXT_FIELDS: Final = ("name", "args", "cat", "id", "id2", "bind_id", "scope", "stack", "cname", "sf")
_NAMES_SOMEBODY: Final = re.compile(rb"host|user|home|node|\\", re.IGNORECASE)
_UNREADABLE: Final = b'"text"'
_HOST_IN_NAME: Final = re.compile(
    r"plugins/profile/[^/]+/([^/]+)\.trace\.json(?:\.gz)?$|([^/]+)_\d+(?:\.\d+)?\.pt\.trace\.json(?:\.gz)?$"
)
"""The files of XLA, and of torch without a name given."""


class AnonymousTrace(Struct, frozen=True):
    """A trace that was written."""

    source: str
    output: str
    events: int
    lost: int  # the number of places of the source that could not be read, and are left out


def anonymise_traces(
    pairs: Sequence[tuple[StrPath, StrPath | None]],
    *,
    names: bool = False,
    overwrite: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[list[AnonymousTrace], dict[str, int]]:
    """Write traces without paths, hosts and users. The same thing has the same word in all of them.

    Times, numbers and ids stay as they are, so that the results can be merged like the traces; only the number of a ``user`` or
    the like becomes a word. Free text, such as the name of a marker or its arguments, is only searched for paths, hosts, users
    and addresses.

    Args:
        pairs: Each trace, and where to write it: ``.json``, or ``.json.gz``. None for ``NAME.anonymous.json.gz`` beside the
            trace, without hosts and users in the name.
        names: Also replace the names of events, processes, threads and functions in stacks that are not everybody's.
        overwrite: Replace files that exist.
        progress: Called now and then with the completed share, 0 to 1, and the present step.

    Returns:
        The written traces, and the number of replaced things by kind: "path", "host", "user" ...

    Raises:
        ConfigError: An output is one of the inputs, that of two inputs, or no JSON by its name.
        StorageError: A trace cannot be read, or an output cannot be written or is there already.
        TraceFormatError: A file is not a trace, or every event of it is unreadable.
    """
    sources = [check_path("pairs", source) for source, _ in pairs]
    outputs = [None if output is None else check_path("pairs", output) for _, output in pairs]

    aliases = Aliases(names=names)

    def check_outputs() -> list[tuple[str, str]]:
        copies = [copy_name(source, f"{ANONYMOUS}.gz") for source in sources]
        own = [copy.removesuffix(basename(copy)) + aliases.clean_file_name(basename(copy)) for copy in copies]
        found = [(source, output or name) for source, output, name in zip(sources, outputs, own, strict=True)]
        _check_outputs(found, overwrite=overwrite)
        return found

    check_outputs()
    steps = count()

    def step(what: str) -> Callable[[int], None]:
        number = next(steps)

        def report(done_bytes: int) -> None:
            # The size of an unpacked file is not known: approach the end without reaching it.
            if progress is not None:
                progress((number + done_bytes / (done_bytes + _SOME_BYTES)) / (2 * len(sources)), what)

        return report

    frames = [_learn(source, aliases, step(f"reading {basename(source)}")) for source in sources]
    aliases.finish_learning()
    written = []
    for (source, output), ids in zip(check_outputs(), frames, strict=True):  # now without the names that were learned
        with atomic_write(output, overwrite=overwrite) as file:
            written.append(_write(source, output, file, aliases, ids, step(f"writing {basename(output)}")))
    if progress is not None:
        progress(1.0, "done")
    return written, aliases.counts


def _check_outputs(pairs: list[tuple[str, str]], *, overwrite: bool) -> None:
    sources, taken = {file_identity(source) for source, _ in pairs}, set()
    for _, output in pairs:
        shown, identity = without_secrets(output), file_identity(output)
        if identity in taken:
            raise ConfigError(f"{shown}: two of the inputs would be written there; anonymise them one by one with -o")
        if not output.removesuffix(".gz").endswith(".json"):
            raise ConfigError(f"{shown}: the output must end with .json or .json.gz")
        if identity in sources:
            raise ConfigError(f"{shown}: the output is one of the inputs; choose another name")
        if not overwrite:
            refuse_existing(output)
        taken.add(identity)


class _Texts:
    """Goes through the texts of events, and of any JSON in its order, each with the last key before it."""

    def __init__(self, aliases: Aliases, frames: dict[str, int]) -> None:
        self._aliases = aliases
        self._frames = frames
        self._key = ""
        self._known: dict[tuple[str, bytes], bytes] = {}

    def learn_event(self, event: Event) -> None:
        """Collect the names in an event."""
        for field, raw in _raw_fields(event):
            # Hosts and users follow a key such as host_name, or are part of a path.
            if _NAMES_SOMEBODY.search(raw):
                self._key = field
                self.learn(raw)
        if event.extra is not UNSET:
            self.learn(encode_json(event.extra))

    def clean_event(self, event: Event) -> None:
        """Replace words and ids of stack frames in an event."""
        rename_frames(event, self._renamed)
        for field, raw in _raw_fields(event):
            self._key = field
            if field == "args":
                # Few are equal, and few name anybody.
                if self._aliases.may_change(raw):
                    # A counter without its numbers is none.
                    event.args = Raw(self.clean(raw, numbers=event.ph != "C"))
            elif raw[:1] == b'"' and len(raw) > 1:  # the usual case, at once
                setattr(event, field, Raw(self._other(field, raw[1:-1])))
            else:
                setattr(event, field, Raw(self.clean(raw)))
        for place in ("pid", "tid"):
            value = getattr(event, place)
            if isinstance(value, str):
                setattr(event, place, self._aliases.clean(place, value))
        if event.extra is not UNSET:
            event.extra = decode_raw_dict(self.clean(encode_json(event.extra)))

    def _renamed(self, raw: bytes) -> Raw:
        """Return another id of a stack frame; one that the table does not have must not become one that it has."""
        key = frame_key(raw) if self._frames else None
        return Raw(raw) if key is None else Raw(b"%d" % self._frames.setdefault(key, len(self._frames) + 1))

    def clean_header(self, header: Mapping[str, Any]) -> bytes:
        """Return the JSON of the keys outside the events, with other words and other ids of stack frames."""
        found = renumber(header, self._frames)
        table = found.pop(STACK_FRAMES, None)
        cleaned = self.clean(encode_json(found))
        if table is None:
            return cleaned
        if isinstance(table, dict):
            table = {key: self._clean_frame(frame) for key, frame in table.items()}
        key = encode_json({STACK_FRAMES: table})[1:]
        return b"%b,%b" % (cleaned[:-1], key) if found else b"{" + key

    def _clean_frame(self, frame: Any) -> Any:
        if not isinstance(frame, dict):
            return frame
        return {
            field: self._aliases.clean("name", value)
            if isinstance(value, str) and field != PARENT
            else Raw(self.clean(encode_json(value)))
            for field, value in frame.items()
        }

    def learn(self, json: bytes) -> None:
        """Collect the names in the texts of some JSON."""
        for match in _TEXT.finditer(json):
            if match[2] is not None:
                self._key = match[1].decode("utf-8", "replace")
            else:
                self._aliases.learn(self._key, decode_or_none(Raw(b'"%b"' % match[1])) or "")

    def clean(self, json: bytes, *, numbers: bool = True) -> bytes:
        """Return the same JSON with other words in its texts.

        A list, an object and (with ``numbers``) a number become one word if their key names a person or a machine.
        """
        out: list[bytes] = []
        at = 0
        for key in WHOLE_VALUE.finditer(json):
            start = key.end()
            if start < at or not (numbers or json[start] in b"[{"):
                continue
            out.append(_TEXT.sub(self._replace, json[at:start]))
            at, _ = scan_value(json, start)
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
            text = decode_or_none(Raw(b'"%b"' % raw))
            known = _UNREADABLE
            if text is not None:
                cleaned = self._aliases.clean(key, text)
                # An unchanged text keeps its spelling.
                known = b'"%b"' % raw if cleaned == text else encode_json(cleaned)
            if len(raw) <= _LONGEST_KNOWN:
                self._known[key, raw] = known
        return known


def _raw_fields(event: Event) -> Iterator[tuple[str, bytes]]:
    for field in _TEXT_FIELDS:
        raw = getattr(event, field)
        if raw is not UNSET:
            yield field, bytes(raw)


def _learn(source: str, aliases: Aliases, progress: Callable[[int], None]) -> dict[str, int]:
    """Collect the names in a trace; return other ids for its stack frames, since those of a merge are hashes of the frames."""
    texts = _Texts(aliases, {})
    if rank_in_name(basename(source)) is None and (named := _HOST_IN_NAME.search(source)) is not None:
        aliases.learn("host", named[1] or named[2])
    with TraceReader(source) as reader:
        for run in reader.runs():
            for event in run:
                texts.learn_event(event)
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
    texts = _Texts(aliases, frames)
    with TraceReader(source) as reader, packed(output, file) as sink:
        early = dict(reader.header)
        if reader.form == "object":
            sink.write(texts.clean_header(early)[:-1] + (b"," if early else b"") + b'"traceEvents":')
        sink.write(b"[\n")
        between = b""
        for run in reader.runs():
            for event in run:
                texts.clean_event(event)
            sink.write(between + encode_events(run))
            between = b",\n"
            progress(reader.bytes_read)
        late = {key: value for key, value in reader.header.items() if key not in early}
        sink.write(b"\n]")
        if reader.form == "object":
            sink.write(b"," + texts.clean_header(late)[1:] if late else b"}")
        sink.write(b"\n")
        lost = sum(drop.count for drop in reader.drops)
        events = reader.events
    return AnonymousTrace(without_secrets(source), without_secrets(output), events, lost)
