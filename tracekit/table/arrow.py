"""Export a table of columns as an Arrow stream, without pyarrow: any consumer of the Arrow PyCapsule interface reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit import core

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.core import _merge


class ArrowTable:
    """A table that Arrow consumers can read any number of times. Asking for its schema calls and reads nothing.

    Needs the compiled core.

    Args:
        name: "events", "counters", "flows" or "args".
        columns: Returns finished columns with the unread table. Called from any thread when the consumer asks a stream for its
            first batch. Consumers replace an error by one of their own type.
    """

    def __init__(self, name: str, columns: Callable[[], _merge.Columns]) -> None:
        self._name = name
        self._columns = columns

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a capsule."""
        assert core.merge is not None
        return core.merge.arrow_schema(self._name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of batches as a capsule; a requested schema is ignored, as the protocol allows."""
        del requested_schema
        assert core.merge is not None
        return core.merge.arrow_stream(self._name, self._columns)
