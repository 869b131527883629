"""Pages of the documentation that are made of the code: a hook of MkDocs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    pages = {"commands.md": commands(), "python.md": python()}
    pages |= {name: with_one_title(path.read_text("utf-8"), name) for name, path in COPIED.items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for picture in COPIED["performance.md"].parent.glob("*.svg"):
        files.append(File.generated(config, picture.name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to files outside the folder to their copies in the site; name the other files."""
    if page.file.src_uri == "files.md":
        return f"{markdown}\n{schemas()}\n"
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


def on_page_content(html: str, **_: object) -> str:
    """Show the colon of docstrings in front of code, which is doubled there."""
    return html.replace("::</p>", ":</p>")


def with_one_title(markdown: str, name: str) -> str:
    """Return a page with one heading of the first level: a second one hides the table of contents."""
    if len(re.findall(r"^# ", markdown, re.MULTILINE)) == 1:
        return markdown
    title = name.removesuffix(".md").capitalize()
    return f"# {title}\n\n" + re.sub(r"^#", "##", markdown, flags=re.MULTILINE)


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
    """Return the tables of the JSON schemas."""
    parts = []
    for path in sorted((ROOT / "schemas").glob("*.schema.json")):
        schema = json.loads(path.read_text("utf-8"))
        name = path.name.partition(".")[0]
        parts.append(f"### {name}\n\n{schema.get('description', schema.get('title', ''))}\n\n{_keys(schema)}")
        parts += [f"**`{kind}`** {_described(part)}" for kind, part in schema.get("$defs", {}).items()]
    return "\n\n".join(parts)


def _described(schema: dict[str, Any]) -> str:
    words = schema.get("description", schema.get("title", ""))
    keys = _keys(schema)
    return f"{words}\n\n{keys}" if keys else f"{words} ({_type(schema)})"


def _keys(schema: dict[str, Any]) -> str:
    """Return the table of the keys of an object; empty if it lists none."""
    rows = [
        f"| `{name}` | {_type(value)} | {re.sub(r'[|]', ' ', value.get('description', ''))} |"
        for name, value in schema.get("properties", {}).items()
    ]
    return "\n".join(["| key | type | meaning |", "| --- | --- | --- |", *rows]) if rows else ""


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return f"`{value['$ref'].rpartition('/')[2]}`"
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if "const" in value:
        return json.dumps(value["const"])
    if "enum" in value:
        return ", ".join(map(json.dumps, value["enum"]))
    found = value.get("type", "any")
    if found == "array" and value.get("items"):
        return f"array of {_type(value['items'])}"
    return " or ".join(found) if isinstance(found, list) else str(found)
