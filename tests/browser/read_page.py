"""Opens a page that needs nothing else in a real browser, and tells what a person and a screen reader get of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.perfetto.browser import run_program


@dataclass(frozen=True)
class Seen:
    """What is there.

    Attributes:
        title: Of the page.
        lang: Its language.
        headings: Level and text of each.
        landmarks: Role and name of each.
        wider: By how many pixels the page is wider than the screen.
        wide: What reaches beyond the screen, and is not within something that scrolls by itself.
        images: Name and description of each plot.
        tables: Caption of each, and the scopes of its headings.
        scripts: Whatever could run or load something.
        text: What is shown.
        faint: Text with a contrast below 4.5 to what is behind it, and the contrast.
        requests: The addresses that were asked for.
        problems: What the console says is wrong.
    """

    title: str
    lang: str
    headings: list[dict[str, Any]]
    landmarks: list[dict[str, str]]
    wider: int
    wide: list[str]
    images: list[dict[str, str]]
    tables: list[dict[str, Any]]
    scripts: list[str]
    text: str
    faint: list[str]
    requests: list[str]
    problems: list[str]


def read_page(
    page: Path, png: Path, *, width_px: int, height_px: int, scheme: str = "light", unfolded: bool = False
) -> Seen:
    """Open a file in a headless Chromium.

    Args:
        page: The file.
        png: Where to write the picture of the whole page.
        width_px, height_px: The size of the screen.
        scheme: "light" or "dark".
        unfolded: Whether to open all that is folded first.
    """
    seen = run_program(
        Path(__file__).with_name("page.js"),
        page,
        address=page.as_uri(),
        png=str(png),
        width=width_px,
        height=height_px,
        scheme=scheme,
        open=unfolded,
    )
    return Seen(**seen)
