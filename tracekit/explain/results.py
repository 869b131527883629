"""The base of results, which are values, texts and JSON documents with one definition.

Text and HTML come from the names and types of the fields: times, bytes and shares have their units in the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec.json import decode, encode

from tracekit.explain.text import duration, share, shortened, table
from tracekit.markup import html_lines, html_table
from tracekit.structs import Struct, to_builtins
from tracekit.wording import size_words

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_ROWS: Final = 20
_MAX_DEPTH: Final = 3
_SENTENCES: Final = ("sentences", "notes", "warnings")
_EMPTY: Final[Sequence[Any]] = (None, "", (), [], {})
_MAX_NS: Final = 10**17  # a larger value is a time since the epoch

ResultT = TypeVar("ResultT", bound="Result")


class Result(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A result: a value with fields that are the keys of its JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        document: dict[str, Any] = to_builtins(self, str_keys=True)
        return document

    def __str__(self) -> str:
        """Return a result as lines: single values, then a table for each list of values."""
        lines: list[str] = []
        for block in _blocks(self):
            if isinstance(block, str):
                lines.append(block)
            else:
                lines += ["", block.title, *table(block.head, block.rows, block.left)]
                lines += [f"  and {block.more:,} more"] if block.more else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a result as HTML for a notebook."""
        parts: list[str] = []
        lines: list[str] = []
        for block in _blocks(self):
            if isinstance(block, str):
                lines.append(block)
            else:
                parts += [html_lines(lines)] if lines else []
                lines = [f"and {block.more:,} more"] if block.more else []
                parts.append(html_table(block.title, block.head, block.rows, left=block.left))
        return f"<div>{''.join(parts)}{html_lines(lines) if lines else ''}</div>"

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Return the names of the fields, in order."""
        return cls.__struct_fields__


def encode_result(result: Result) -> bytes:
    """Return a result as JSON."""
    return encode(result)


def decode_result(document: bytes, kind: type[ResultT]) -> ResultT:
    """Return a result from its JSON."""
    return decode(document, type=kind)


class _Table(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]
    left: int
    more: int


def _blocks(result: Any, title: str = "", depth: int = 0) -> Iterator[str | _Table]:
    """Yield the single values of a result as lines, then its lists of values as tables."""
    later: list[tuple[str, Any]] = []
    for name in result.__struct_fields__:
        value = getattr(result, name)
        if isinstance(value, Struct) or _has_structs(value):
            later.append((name, value))
        elif name in _SENTENCES:
            yield from value
        elif name != "format_version" and value not in _EMPTY:
            yield f"{title}{_label(name)}: {_cell(name, value)}"
    for name, value in later:
        if not isinstance(value, Struct):
            yield _table_of(_label(name), value)
        elif depth < _MAX_DEPTH:
            yield from _blocks(value, f"{title}{_label(name)}: ", depth + 1)


def _has_structs(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and isinstance(value[0], Struct)


def _table_of(title: str, items: Any) -> _Table:
    # Leave out columns that are empty or hold nested results.
    names = [
        name
        for name in items[0].__struct_fields__
        if any(getattr(item, name) not in _EMPTY[:-1] for item in items)
        and not any(isinstance(getattr(item, name), Struct) for item in items)
    ]
    texts = [isinstance(getattr(items[0], name), str) for name in names]
    names = [name for _, name in sorted(zip(texts, names, strict=True), key=lambda pair: not pair[0])]
    rows = [[_cell(name, getattr(item, name)) for name in names] for item in items[:_MAX_ROWS]]
    return _Table(title, [_label(name) for name in names], rows, sum(texts), max(0, len(items) - _MAX_ROWS))


def _label(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if name.endswith("_ns") and value >= _MAX_NS:
            return f"{datetime.fromtimestamp(value / 1e9, timezone.utc):%F %T} UTC"
        if name.endswith("_ns"):
            return duration(value)
        if name.endswith("_bytes"):
            return size_words(round(value))
        if "share" in name:
            return share(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    if isinstance(value, Mapping):
        return shortened(", ".join(f"{key} {_cell(name, one)}" for key, one in value.items()), 80)
    if isinstance(value, (tuple, list)):
        return f"{len(value):,}" if _has_structs(value) else shortened(", ".join(_cell(name, one) for one in value), 48)
    return shortened(str(value))
