#!/usr/bin/env python3
"""Check that the sentences of docstrings, comments and Markdown are plain; fail if more than 5 % are not.

``python scripts/prose.py PATH ...`` lists each such sentence in some files: its place, and the expression to replace.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PATHS = ["tracekit", "README.md", "CHANGELOG.md", "docs", "examples"]
LIMIT = 0.05

VERBS = (
    "be|is|are|was|were|has|have|says?|takes?|keeps?|holds?|reads?|writes?|makes?|returns?|gives?|except|but|only|all"
)
PHRASES = [
    r"^(what|who|whose|whoever|whatever|how|whether|where|that) [^?]*$",
    rf"\b(of|for|with|by|from|in|to|and|or|than|as|{VERBS}) what (is|was|are|were|has|had|it|they|a|an|the|can|may|must)\b",
    r"\b(tells?|told|telling|whose|whoever|besides?)\b",
    r"\b(stands?|stood|lies|lay) (in|at|on|for|before|behind|between|there|alone|above|below|first|as|where)\b",
    r"\b(is|are|was|were|be) no (?!longer|more|less|such|need|way|reason|one\b|point)\w",
    r"\b(there (is|are) none|has none|or none)\b",
    r"\b(of|than|after|for|by|in|with) so (many|much|long|few)\b",
    r"\bof (its|their|your|his) own\b",
    r"\b(of|in|to|by|from|with|on|at|after) which\b",
    r"\b(whatever|wherever|whenever|however) (it|they|is|was|the|that|else)\b",
    r"\b(as well|, too)\b",
    r"\b(for ever|nothing but|in the midst|all that)\b",
]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
UNPLAIN = re.compile("|".join(PHRASES), re.IGNORECASE)


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and each block of comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield node.body[0].lineno, docstring
    comments: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            first = first if comments else token.start[0]
            comments.append(token.string.lstrip("# "))
        elif comments and token.type not in (tokenize.NL, tokenize.NEWLINE):
            yield first, " ".join(comments)
            comments = []


def c_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment."""
    for found in re.finditer(r"/\*(.*?)\*/|//([^\n]*)", text, re.DOTALL):
        yield text.count("\n", 0, found.start()) + 1, found[1] or found[2] or ""


def markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each paragraph; code and tables are left out."""
    text = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL)
    for found in re.finditer(r"(?:[^\n]+\n?)+", text):
        if not found[0].lstrip().startswith("|"):
            yield text.count("\n", 0, found.start()) + 1, found[0]


READERS = {".py": python_prose, ".c": c_prose, ".h": c_prose, ".md": markdown_prose}


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of four words or more, without code and brackets."""
    text = re.sub(r"``[^`]*``|`[^`]*`|\([^)]*\)|https?://\S+", "x", text)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*] )|\n\s*(?=\w[\w ,*]*: )", text):
        for sentence in re.split(r"(?<=[.!?;:])\s+(?=[A-Z`x])", " ".join(paragraph.split()).lstrip("-*# ")):
            if len(sentence.split()) >= 4:
                yield sentence


def main(names: list[str]) -> int:
    """Print the share of sentences to rewrite, and the sentences if it exceeds the limit or paths are given.

    Returns:
        The exit status: 1 if the share exceeds the limit.
    """
    count = 0
    found: list[str] = []
    paths = [Path(name) for name in names] or [ROOT / name for name in PATHS]
    for file in sorted(file for path in paths for file in [path, *path.rglob("*")] if file.suffix in READERS):
        for line, text in READERS[file.suffix](file.read_text(encoding="utf-8")):
            for sentence in sentences(text):
                count += 1
                if phrase := UNPLAIN.search(sentence):
                    found.append(f"{file}:{line}: {phrase[0]!r} in: {sentence[:120]}")
    failed = len(found) > LIMIT * count
    if names or failed:
        print("\n".join(found))
    print(
        f"{len(found)} of {count} sentences are not plain: {len(found) / max(1, count):.1%}; the limit is {LIMIT:.0%}"
    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
