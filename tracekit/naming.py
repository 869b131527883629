"""File-name templates: ``traces/{run_id}/rank{rank}.json``, checked so that no two processes share a file."""

from __future__ import annotations

import glob
import re
import string
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError
from tracekit.wording import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.distributed import ProcessInfo
    from tracekit.timestamp import Timestamp

_FIELDS: Final = ("run_id", "rank", "local_rank", "world_size", "node", "host", "pid", "attempt", "epoch", "batch")
_MAX_ALTERNATIVES: Final = 100_000
_REGEX_OF: Final = {"host": r"[^/]+"}  # the other fields are numbers
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MOST_CHARACTERS: Final = 100
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._+@=-]+")
_SUFFIX: Final = re.compile(r"\.(?:json|pftrace|tar|zip)(?:\.gz)?\Z")
_RUN_FIELDS: Final = ("run_id", "world_size", "attempt")
_WINDOW_FIELDS: Final = ("epoch", "batch")


class FileName:
    """A file name with fields to fill in, each with an optional format (``{rank:05d}``).

    The fields are ``{run_id} {rank} {local_rank} {world_size} {node} {host} {pid} {attempt} {epoch} {batch}``.

    Args:
        template: Path or URL with such fields.
        number: Name of one more field, for writers of several files: ``part`` or ``dump``.

    Raises:
        ConfigError: The template is empty, not well formed, or has an unknown field.
    """

    __slots__ = ("_number", "fields", "template")

    def __init__(self, template: str, number: str | None = None) -> None:
        if not isinstance(template, str) or not template:
            raise ConfigError(f"a file name must be a text that is not empty, not {template!r}")
        try:
            fields = set(_fields(template))
        except ValueError as error:
            raise ConfigError(
                f"file name {shown(template)}: {error}; write {{{{ and }}}} for braces that are meant"
            ) from None
        accepted = _FIELDS if number is None else (*_FIELDS, number)
        for name in sorted(fields - set(accepted)):
            known = " ".join(f"{{{field}}}" for field in accepted)
            raise ConfigError(f"file name {shown(template)}: there is no field {{{name}}}; the fields are {known}")
        if _CONTROL.search(template):
            raise ConfigError(f"file name {shown(template)} has characters in it that no file name should have")
        self.template = template
        self.fields = frozenset(fields)
        self._number = number

    @property
    def numbered(self) -> bool:
        """True if the name contains the number of ``format``."""
        return self._number in self.fields

    @property
    def per_window(self) -> bool:
        """True if the name differs between recording windows."""
        return bool(self.fields & set(_WINDOW_FIELDS))

    def check(self, process: ProcessInfo) -> None:
        """Refuse a template that would let two ranks, or two attempts of one rank, share a file.

        Raises:
            ConfigError: Files would be shared; the message names the missing field.
        """
        fields = self.fields
        by_host = bool(fields & {"host", "node"})
        if process.world_size > 1 and "rank" not in fields and not (by_host and fields & {"pid", "local_rank"}):
            raise ConfigError(
                f"file name {shown(self.template)} is the same for all {process.world_size} ranks; put {{rank}} into it"
            )
        if (process.restartable or process.attempt) and not fields & {"attempt", "pid"}:
            raise ConfigError(
                f"file name {shown(self.template)} is the same for every attempt of a rank, and the launcher restarts "
                "ranks; put {attempt} into it"
            )

    def format(self, process: ProcessInfo, timestamp: Timestamp, number: int = 0) -> str:
        """Fill in the fields, with ``number`` for ``part`` or ``dump``.

        Text values lose characters that could leave the folder or upset a shell.
        """
        values: dict[str, int | str] = {
            "run_id": safe_text(process.run_id),
            "rank": process.rank,
            "local_rank": process.local_rank,
            "world_size": process.world_size,
            "node": process.node,
            "host": safe_text(process.host),
            "pid": process.pid,
            "attempt": process.attempt,
            "epoch": int(timestamp.epoch),
            "batch": int(timestamp.batch),
        }
        if self._number is not None:
            values[self._number] = number
        try:
            return self.template.format(**values)
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise ConfigError(f"file name {shown(self.template)}: {error}") from None

    def globs(self, process: ProcessInfo, timestamp: Timestamp, *, window: bool = False, folder: str = "") -> list[str]:
        """Return globs for the files of all ranks of an attempt, with their children and alternative names.

        Args:
            process: Any process of the attempt.
            timestamp: The training time at the start of a window.
            window: Return globs for the files of that window only.
            folder: The folder of a relative local name, with a slash at its end.
        """
        known = (*_RUN_FIELDS, *_WINDOW_FIELDS) if window else _RUN_FIELDS
        found = glob.escape(folder) + self._filled(process, timestamp, known, glob.escape, lambda _: "*")
        found = re.sub(r"\*+", "*", found)  # ** would match folders
        stem, suffix = split_suffix(found)
        return [found] if stem.endswith("*") else [found, f"{stem}-*{suffix}"]

    def can_be(self, name: str, process: ProcessInfo, timestamp: Timestamp) -> bool:
        """Return True if a process of the run can have a file of this name."""
        pattern = self._filled(process, timestamp, _RUN_FIELDS, re.escape, lambda field: _REGEX_OF.get(field, r"\d+"))
        return re.fullmatch(pattern, name) is not None

    def _filled(
        self,
        process: ProcessInfo,
        timestamp: Timestamp,
        known: tuple[str, ...],
        escape: Callable[[str], str],
        other: Callable[[str], str],
    ) -> str:
        """Fill in the known fields; replace each other field by ``other(field)``."""
        pieces = []
        for literal, field, form, conversion in string.Formatter().parse(self.template):
            pieces.append(escape(literal))
            if field in known:
                template = f"{{{field}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}"
                pieces.append(escape(FileName(template).format(process, timestamp)))
            elif field is not None:
                pieces.append(other(field))
        return "".join(pieces)

    def alternatives(self, process: ProcessInfo, timestamp: Timestamp, number: int = 0) -> Iterator[tuple[int, str]]:
        """Yield the name and alternatives in case it is taken, each with its number.

        A numbered name gets the next numbers; other names get ``-2``, ``-3`` ... in front of the suffix.
        """
        if self.numbered:
            for following in range(number, number + _MAX_ALTERNATIVES):
                yield following, self.format(process, timestamp, following)
            return
        for following, path in enumerate(following_names(self.format(process, timestamp)), 1):
            yield 0 if following == 1 else following, path


def _fields(template: str) -> Iterator[str]:
    """Yield the fields of a template, also those within a format (``{rank:{world_size}}``)."""
    for _, name, form, _ in string.Formatter().parse(template):
        if name is not None:
            yield name
            yield from _fields(form or "")


def following_names(path: str) -> Iterator[str]:
    """Yield a path, and alternatives in case it is taken: with ``-2``, ``-3`` ... in front of its suffix."""
    yield path
    stem, suffix = split_suffix(path)
    for following in range(2, _MAX_ALTERNATIVES):
        yield f"{stem}-{following}{suffix}"


def split_suffix(path: str) -> tuple[str, str]:
    """Return a path or template without its suffix, and the suffix: ``.json``, ``.json.gz``, ``.pftrace``, ``.zip`` ..."""
    found = _SUFFIX.search(path)
    return (path, "") if found is None else (path[: found.start()], found[0])


def child_file_name(template: str, child: str) -> str:
    """Return the template for a child of a process: with the child's name and pid in front of the suffix.

    Args:
        template: The template of the process, for `FileName`.
        child: Name of the child, such as "worker 0".
    """
    stem, suffix = split_suffix(template)
    # The pid is needed because worker numbers are reused: at every epoch, and by each of several loaders.
    return f"{stem}-{safe_text(child.replace(' ', ''))}-{{pid}}{suffix}"


def safe_text(text: str) -> str:
    """Return a text for a file name: without characters that could leave the folder or upset a shell."""
    safe = _UNSAFE.sub("_", text).lstrip(".") or "_"
    if len(safe) <= _MOST_CHARACTERS:
        return safe
    # File systems limit names to 255 bytes. The hash keeps long ids apart that differ only at the end.
    import hashlib  # here: few names are that long

    return f"{safe[: _MOST_CHARACTERS - 17]}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def shown(name: str) -> str:
    """Return a name or template quoted for a message; a URL loses its user information and query."""
    return repr(hide_secrets(name))
