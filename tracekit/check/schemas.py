"""Load and compile the JSON Schemas of tracekit's output.

They are in the top-level folder ``schemas``, which the package accesses as ``tracekit/schemas`` (a link in a checkout,
a folder in an installed package). Each schema contains everything it refers to.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

TRACE_EVENT: Final = "trace_event"
RANK_METADATA: Final = "rank_metadata"
MERGE_REPORT: Final = "merge_report"
SEGMENT_INDEX: Final = "segment_index"
PERFETTO_MANIFEST: Final = "perfetto_manifest"


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return a schema as plain data."""
    schema: dict[str, Any] = json.loads(
        resources.files("tracekit").joinpath(f"schemas/{name}.schema.json").read_bytes()
    )
    return schema


@cache
def compile_schema(name: str) -> Callable[[Any], str | None]:
    """Return a function that describes the error in a value, or returns None if the value fits the schema.

    With several errors, it describes the deepest one, which is the most exact. Thread-safe.

    Raises:
        MissingExtraError: jsonschema is not installed.
    """
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match
    except ImportError as error:
        raise MissingExtraError("jsonschema", "validate", "Checking against the schemas") from error
    validator = Draft202012Validator(load_schema(name))

    def wrong(value: Any) -> str | None:
        error = best_match(validator.iter_errors(value))
        if error is None:
            return None
        place = error.json_path.removeprefix("$").removeprefix(".")
        # A message quotes the value, which may be long.
        message = error.message if len(error.message) <= 200 else f"{error.message[:90]} ... {error.message[-90:]}"
        return f"{place}: {message}" if place else message

    return wrong
