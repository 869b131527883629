"""Escaping of text for HTML and SVG, and small HTML tables."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Characters that XML cannot contain, and those that change the direction of text.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Replace characters that markup cannot contain, or that change the direction of the surrounding text."""
    return _UNFIT.sub("\ufffd", text)


def plain(text: str) -> str:
    """Escape any text for an element or an attribute in HTML and SVG."""
    return html.escape(visible(text))


def html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return a table for a notebook; align the first ``left`` columns to the left and the others to the right."""
    aligned = [f' style="text-align:{"left" if at < left else "right"}"' for at in range(len(head))]

    def row(cells: Sequence[str], first: str, other: str) -> str:
        tags = [first, *[other] * (len(cells) - 1)]
        parts = zip(tags, aligned, cells, strict=True)
        return f"<tr>{''.join(f'<{tag}{style}>{plain(cell)}</{tag[:2]}>' for tag, style, cell in parts)}</tr>"

    body = "".join(row(cells, 'th scope="row"', "td") for cells in rows)
    heads = row(head, 'th scope="col"', 'th scope="col"')
    return f"<table><caption>{plain(caption)}</caption><thead>{heads}</thead><tbody>{body}</tbody></table>"


def html_lines(lines: Iterable[str]) -> str:
    """Return lines of terminal output as HTML for a notebook."""
    text = "\n".join(map(plain, lines))
    return f'<pre style="white-space:pre-wrap">{text}</pre>'
