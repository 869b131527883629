"""Formatting of numbers, names and foreign text for messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# C0, DEL and C1 control characters, and those that change the direction of text: names in a trace are not trusted.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SECRETS: Final = re.compile(r"(?<=://)[^/]*@|\?.*", re.DOTALL)  # user information and query


def escape_surrogates(text: str) -> str:
    r"""Return text that UTF-8 can encode.

    Escapes bytes of a file name that are not UTF-8 (``\xff``) and other surrogates (``\ud800``).
    """
    return text if text.isascii() else _SURROGATE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    # os.fsdecode puts byte 0x80 to 0xFF at U+DC80 to U+DCFF.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def hide_secrets(path: str) -> str:
    """Return a path or URL without user information and query, also of the inner one of a chain (``zip://a::s3://b``)."""
    return _SECRETS.sub("", path) if "://" in path else path


def counted(number: int, noun: str) -> str:
    """Return a number with a noun: "1 rank", "1,000 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rank_spans(ranks: Iterable[int], *, dash: str = "-", most: int | None = None) -> str:
    """Return "rank 3", "ranks 0-7" or "ranks 0-2, 5"; the arguments are those of `number_spans`."""
    own = set(ranks)
    return f"{'rank' if len(own) == 1 else 'ranks'} {number_spans(own, dash=dash, most=most)}"


def consecutive(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each row of consecutive numbers. The numbers are sorted and distinct."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        first = spans.pop()[0] if spans and spans[-1][1] == number - 1 else number
        spans.append((first, number))
    return spans


def number_spans(numbers: Iterable[int], *, dash: str = "-", most: int | None = None) -> str:
    """Return "3", "0-7" or "0-2, 5".

    Args:
        numbers: The numbers, in any order.
        dash: Text between the first and the last number of a span.
        most: Maximum number of spans; beyond it, the total count of the numbers follows. None returns all spans.
    """
    ordered = sorted(set(numbers))
    spans = consecutive(ordered)
    words = ", ".join(str(low) if low == high else f"{low}{dash}{high}" for low, high in spans[:most])
    return words if most is None or len(spans) <= most else f"{words} and others, {len(ordered):,} in all"


def align_columns(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table: the first column or columns aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = ([*map(str.ljust, row[:left], widths), *map(str.rjust, row[left:], widths[left:])] for row in rows)
    return ["  ".join(cells).rstrip() for cells in aligned]


def size_words(size_bytes: int) -> str:
    """Return a number of bytes in a readable unit: "512 B", "1.2 MB", "250 MB"."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def without_controls(text: str) -> str:
    """Replace each character that controls a terminal by U+FFFD."""
    return _CONTROL.sub("\ufffd", text)


def one_line(text: str, most: int) -> str:
    """Return foreign text for a log line: without line breaks and control characters, and shortened.

    Args:
        text: Any text, such as the answer of a server.
        most: The maximum length.
    """
    # Look only at the beginning: an answer may have megabytes.
    line = without_controls(" ".join(text[: 10 * most].split()))
    return line if len(line) <= most and len(text) <= 10 * most else f"{line[: most - 3]}..."


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return a question with the nearest known word, to end the message about an unknown one; empty if none is near."""
    import difflib  # only a wrong command needs it

    nearest = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
