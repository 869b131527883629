"""The base of results, which are values, texts and JSON documents with one definition, and their JSON Schemas."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, to_builtins
from msgspec.json import decode, encode, schema_components

from tracekit.explain.rendering import html_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECTION: Final = re.compile(r"\n\s*Attributes:\n(?P<text>.*)\Z", re.DOTALL)
_ENTRY: Final = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


ResultT = TypeVar("ResultT", bound="Result")


class Result(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A result: a value with fields that are the keys of its JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        document: dict[str, Any] = to_builtins(self, str_keys=True)
        return document

    def __str__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

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


def schema_of(result: type[Result], command: str) -> dict[str, Any]:
    """Return the JSON Schema of a result, with the descriptions of its docstrings.

    Args:
        result: The result.
        command: The command that prints it, such as "summary".
    """
    _, components = schema_components([result], ref_template="#/$defs/{name}")
    kinds = {kind.__name__: kind for kind in _kinds(Result)}
    for name, component in components.items():
        component["description"] = " ".join(_SECTION.sub("", kinds[name].__doc__ or "").split())
        # The fields of a base class are described there.
        for kind in reversed(kinds[name].__mro__):
            section = _SECTION.search(kind.__doc__ or "") if issubclass(kind, Result) else None
            for names, words in _ENTRY.findall("" if section is None else _dedented(section["text"])):
                for field in set(names.split(", ")) & component["properties"].keys():
                    component["properties"][field]["description"] = " ".join(words.split())
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


def _kinds(kind: type[Result]) -> Iterator[type[Result]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _kinds(sub)


def _dedented(text: str) -> str:
    indent = min(len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip())
    return "\n".join("    " + line[indent:] for line in text.splitlines())
