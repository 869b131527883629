"""The JSON Schemas of results: ``python -m tests.result_schemas`` writes them to ``schemas/``."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.json import schema_components

from tracekit import StragglerReport, TraceDiff, TraceSummary
from tracekit.explain.gpu_results import GPUReport
from tracekit.explain.results import Result
from tracekit.explain.run_report import WrittenReport
from tracekit.view.live.states import LookDocument

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECTION = re.compile(r"\n\s*Attributes:\n(?P<text>.*)\Z", re.DOTALL)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_COMMENT = re.compile(r"^ {4}(\w+): [^#\n]*# (.*)$", re.MULTILINE)
FOLDER = Path(__file__).resolve().parents[1] / "schemas"
RESULTS: dict[str, type[Result]] = {
    "summary": TraceSummary,
    "stragglers": StragglerReport,
    "diff": TraceDiff,
    "report": WrittenReport,
    "gpu": GPUReport,
    "top": LookDocument,
}


def schema_of(result: type[Result], command: str) -> dict[str, Any]:
    """Return the JSON Schema of a result, with the descriptions of its docstrings."""
    _, components = schema_components([result], ref_template="#/$defs/{name}")
    kinds = {kind.__name__: kind for kind in _kinds(Result)}
    for name, component in components.items():
        component["description"] = " ".join(_SECTION.sub("", kinds[name].__doc__ or "").split())
        # The fields of a base class are described there.
        for kind in reversed(kinds[name].__mro__):
            for field, words in _descriptions(kind).items():
                if field in component["properties"]:
                    component["properties"][field]["description"] = words
        # Every key is there in every document.
        component["required"] = list(component["properties"])
    own = components.pop(result.__name__)
    version = own["properties"]["format_version"]
    own["properties"]["format_version"] = {"const": version["default"], "description": "The version of this form."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tracekit:schema:{command}:{version['default']}",
        "title": f"tracekit {command}",
        **{key: value for key, value in own.items() if key != "title"},
        "$defs": components,
    }


def _descriptions(kind: type) -> dict[str, str]:
    """Return what the docstring of a result, and comments behind its fields, say of the fields."""
    if not issubclass(kind, Result) or kind is Result:
        return {}
    section = _SECTION.search(kind.__doc__ or "")
    entries = _ENTRY.findall("" if section is None else _dedented(section["text"]))
    found = {field: " ".join(words.split()) for names, words in entries for field in names.split(", ")}
    for field, words in _COMMENT.findall(inspect.getsource(kind)):
        text = words[0].upper() + words[1:]
        found[field] = text if text.endswith(".") else f"{text}."
    return found


def _kinds(kind: type[Result]) -> Iterator[type[Result]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _kinds(sub)


def _dedented(text: str) -> str:
    indent = min(len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip())
    return "\n".join("    " + line[indent:] for line in text.splitlines())


def schema_text(command: str) -> str:
    """Return the schema of what a command prints with ``--json``."""
    return json.dumps(schema_of(RESULTS[command], command), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in RESULTS:
        (FOLDER / f"{name}.schema.json").write_text(schema_text(name), encoding="utf-8")
