"""Pages of the documentation that are made of the code: a hook of MkDocs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

import tracekit
from tracekit.cli import make_parser

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
COPIED = {
    "performance.md": ROOT / "tests" / "benchmarks" / "README.md",
    "reliability.md": ROOT / "tests" / "faults" / "README.md",
    "changelog.md": ROOT / "CHANGELOG.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {"commands.md": commands(), "python.md": python(), "files.md": schemas()}
    pages |= {name: path.read_text("utf-8") for name, path in COPIED.items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for picture in COPIED["performance.md"].parent.glob("*.svg"):
        files.append(File.generated(config, picture.name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to files outside the folder to their copies in the site; name the other files."""
    source = COPIED.get(page.file.src_uri, DOCS / page.file.src_uri)
    names = {path: name for name, path in COPIED.items()}

    def link(match: re.Match[str]) -> str:
        text, target, part = match.groups()
        path = (source.parent / target).resolve()
        if path in names:
            up = "../" * page.file.src_uri.count("/")
            return f"[{text}]({up}{names[path]}{part})"
        if path.is_relative_to(DOCS) or not path.exists():
            return match[0]
        return f"{text} (`{path.relative_to(ROOT)}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*|)\)", link, markdown)


def commands() -> str:
    """Return the help of every command."""
    _, parsers = make_parser()
    parts = ["# Commands\n\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 done with findings."]
    for name, parser in parsers.items():
        parts.append(f"## tracekit {name}\n\n```text\n{parser.format_help()}```")
    return "\n\n".join(parts)


def python() -> str:
    """Return the page of all public names."""
    names = [name for name in tracekit.__all__ if not name.startswith("_")]
    return "# Python\n\n" + "\n\n".join(f"::: tracekit.{name}" for name in sorted(names, key=str.lower))


def schemas() -> str:
    """Return the page of the JSON schemas."""
    parts = ["# Files\n\nEvery JSON document that tracekit writes has a schema in the folder `schemas`."]
    for path in sorted((ROOT / "schemas").glob("*.schema.json")):
        schema = json.loads(path.read_text("utf-8"))
        parts.append(f"## {path.name.partition('.')[0]}\n\n{schema.get('description', schema.get('title', ''))}\n")
        rows = [
            f"| `{name}` | {_type(value)} | {re.sub(r'[|]', ' ', value.get('description', ''))} |"
            for name, value in schema.get("properties", {}).items()
        ]
        if rows:
            parts.append("\n".join(["| key | type | meaning |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts)


def _type(value: dict[str, object]) -> str:
    found = value.get("type", "")
    return " or ".join(found) if isinstance(found, list) else str(found)
