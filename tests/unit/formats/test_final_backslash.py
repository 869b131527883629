"""Texts that end with a backslash: the same text, written so that Perfetto reads it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracekit.formats.json.repair import has_final_backslash, without_final_backslash

texts = st.text(alphabet='\\"a,:{}[]', max_size=8)
values = st.recursive(
    texts | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def ends(value: Any) -> bool:
    """Tell whether a text in a value ends with a backslash."""
    if isinstance(value, str):
        return value.endswith("\\")
    if isinstance(value, dict):
        return any(ends(key) or ends(item) for key, item in value.items())
    return isinstance(value, list) and any(map(ends, value))


@given(values)
def test_the_meaning_stays_and_no_text_ends_with_two_backslashes(value: Any) -> None:
    text = json.dumps(value).encode()
    written = without_final_backslash(text)
    assert json.loads(written) == value
    assert not has_final_backslash(written)
    assert has_final_backslash(text) == ends(value)
    if not ends(value):
        assert written is text
