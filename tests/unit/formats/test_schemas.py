"""The schemas in ``schemas/``: valid themselves, reachable, and checked by shape without a change of verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.bad_traces import METADATA
from tests.result_schemas import RESULTS, schema_text
from tracekit.check.schemas import RANK_METADATA, TRACE_EVENT, compile_schema, load_schema
from tracekit.check.validation.trace import shape

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = sorted((Path(__file__).resolve().parents[3] / "schemas").glob("*.schema.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_schema_is_valid_by_itself_and_the_package_finds_it(path: Path) -> None:
    """Users validate with the file alone: no registry, no other file, nothing fetched."""
    found = json.loads(path.read_text())
    assert found == load_schema(path.name.removesuffix(".schema.json"))
    Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$id"].startswith("urn:tracekit:schema:")
    resolver = Registry().with_resource(found["$id"], Resource.from_contents(found)).resolver()
    for reference in references(found):
        resolver.lookup(reference)


@pytest.mark.parametrize("command", RESULTS)
def test_the_schema_of_a_result_is_that_of_its_definition(command: str) -> None:
    text = (FILES[0].parent / f"{command}.schema.json").read_text()
    assert text == schema_text(command), "run python -m tests.result_schemas"


def references(schema: Any, base: str = "") -> Iterator[str]:
    """Yield what a schema refers to, by complete URIs."""
    if isinstance(schema, dict):
        base = schema.get("$id", base)
        if isinstance(schema.get("$ref"), str):
            yield base + schema["$ref"] if schema["$ref"].startswith("#") else schema["$ref"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from references(inner, base)


def test_the_event_schema_checks_metadata_events_without_another_file() -> None:
    validator = Draft202012Validator(load_schema(TRACE_EVENT))
    event = {"ph": "M", "name": "tracekit_metadata", "pid": 1, "args": METADATA}
    anchor = {"ph": "M", "name": "tracekit_clock_anchor", "pid": 1, "args": METADATA["clock"]}
    assert [validator.is_valid(good) for good in (event, anchor)] == [True, True]
    wrong = {**event, "args": {**METADATA, "rank": "0"}}
    assert [error.json_path for error in validator.iter_errors(wrong)] == ["$.args.rank"]
    assert not validator.is_valid({**anchor, "args": {"wall_ns": 1}})


def test_the_rank_metadata_in_the_event_schema_is_a_copy_of_its_own_file() -> None:
    copy = load_schema(TRACE_EVENT)["$defs"]["rank_metadata"]
    assert copy == load_schema(RANK_METADATA), "copy schemas/rank_metadata.schema.json there after each change"


def test_every_field_of_the_rank_metadata_is_required_and_described() -> None:
    found = load_schema(RANK_METADATA)
    # Only some systems, processes and versions write these.
    optional = {"start_ticks", "parent_pid", "worker", "counts"}
    assert set(found["required"]) | optional == set(found["properties"]) == set(METADATA) | optional
    assert all(len(field["description"]) > 20 for field in found["properties"].values())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", True),
        ("rank", "0" * 10_000),
        ("world_size", 0),
        ("baseTimeNanoseconds", 1.5),
        ("boot_id", 5),
        ("clock", {"wall_ns": 1}),
        ("pid", 2**32),
        ("run_id", ""),
        ("worker", "0"),
        ("counts", "local"),
    ],
)
def test_wrong_rank_metadata_is_refused_with_the_name_of_the_field(field: str, value: Any) -> None:
    check = compile_schema(RANK_METADATA)
    assert check(METADATA) is None
    wrong = check({**METADATA, field: value}) or ""
    assert wrong.startswith(f"{field}:")
    assert len(wrong) < 300


values: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, False, True, -(2**63) - 1, -(2**63), -1, 0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64,
        -0.5, 0.0, 0.25, 1.0, 1e300, 4360038729919.997,
        "", "t", "p", "g", "e", "0x1f", "zz", "name",
        [], {}, {"local": 1}, {"local": "a"}, {"global": 1}, {"name": "x"}, {"name": 1}, {"a": 1.5}, {"a": None},
        {"sort_index": 1}, {"sort_index": 1.5}, {"wall_ns": 1, "monotonic_ns": 1, "error_ns": -1},
        {"step_ns": 1, "monotonic_ns": 1}, {"file": ""}, {"file": "a"},
        *({"slices": 1, "instants": 0, "counters": 0, "dropped": {"full": n}} for n in (0, -1, "1")),
    ]
) | st.one_of(st.integers(-(2**65), 2**65), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5))  # fmt: skip
good: dict[str, Any] = {"name": "x", "cat": "c", "ts": 1.5, "dur": 1, "pid": 1, "tid": 1}
names = ["process_name", "thread_sort_index", "tracekit_clock_anchor", "tracekit_clock_step", "tracekit_companion"]
events = st.builds(
    lambda phase, changes, left_out: {
        key: value for key, value in {"ph": phase, **good, **changes}.items() if key not in left_out
    },
    st.sampled_from([*"XBEiCMstfben", "I", ""]),
    st.dictionaries(
        st.sampled_from(["name", "ts", "dur", "pid", "tid", "args", "id", "id2", "s", "bp"]), values, max_size=3
    )
    | st.fixed_dictionaries(
        {"name": st.sampled_from([*names, "tracekit_timestamp", "tracekit_summary"]), "args": values}
    ),
    st.sets(st.sampled_from(["name", "cat", "ts", "dur", "tid"]), max_size=2),
)


@given(events, events)
def test_events_of_one_shape_have_one_verdict(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Validation checks one event of each shape."""
    if shape(first) == shape(second):
        assert len({compile_schema(TRACE_EVENT)(event) is None for event in (first, second)}) == 1
