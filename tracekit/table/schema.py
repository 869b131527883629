"""The tables that a query can ask, with the type and the meaning of each column."""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION: Final = 6
"""The version of what the cache holds. A change of columns or of their meaning needs the next number."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: Its name.
        kind: Its type in SQL.
        meaning: A sentence.
    """

    name: str
    kind: str
    meaning: str


_COUNTS: Final = tuple(
    Column(name, "BIGINT", f"The training time at the start of the step: {what}. NULL if it is unknown.")
    for name, what in (
        ("epoch", "epochs completed"),
        ("batch", "batches completed"),
        ("sample", "samples seen"),
        ("token", "tokens seen"),
        ("iteration", "iterations completed"),
    )
)

TABLES: Final[dict[str, tuple[str, tuple[Column, ...]]]] = {
    "events": (
        "One row for each slice, instant and async slice. A begin and its end are one row.",
        (
            Column("file", "INTEGER", "The number of the file; see the table ranks."),
            Column("rank", "INTEGER", "The rank. NULL for a process of a merged trace that has none."),
            Column(
                "pid", "BIGINT", "The process id of the trace. One that is no number gets a number from 3221225472 on."
            ),
            Column("tid", "BIGINT", "The thread id or stream of the trace, likewise."),
            Column("process", "VARCHAR", "The label or name of the process."),
            Column("thread", "VARCHAR", "The name of the thread."),
            Column("category", "VARCHAR", "The category, such as kernel or cpu_op."),
            Column("name", "VARCHAR", "The name."),
            Column(
                "phase", "VARCHAR", "X: slice, i: instant, b: async slice, n: async instant, B: slice without an end."
            ),
            Column(
                "start_ns", "BIGINT", "The start in ns since the epoch: the base time of the file and the time in it."
            ),
            Column("duration_ns", "BIGINT", "The duration. NULL for instants and slices without an end."),
            Column(
                "depth", "BIGINT", "The number of slices on its thread that enclose it. NULL for other rows than X."
            ),
            Column("parent", "BIGINT", "The id of the innermost slice of its thread that encloses it."),
            Column("parent_file", "INTEGER", "The file of that slice: files of one rank may share threads."),
            Column("self_ns", "BIGINT", "The part of the duration that no child covers."),
            Column("id", "BIGINT", "The number of the row in its file, from 0 on."),
            Column("step", "BIGINT", "The training step. On a device, that of the launch. NULL outside of steps."),
            *_COUNTS,
            Column("correlation", "BIGINT", "The argument that ties an event on a device to its launch."),
            Column("flow", "BIGINT", "The id of the flow that the event is bound to by bind_id."),
            Column("stream", "BIGINT", "The argument stream."),
            Column("device", "BIGINT", "The argument device, or Device Id."),
            Column("bytes", "BIGINT", "The argument bytes, or Bytes."),
            Column("process_group", "VARCHAR", "The argument Process Group Name."),
            Column(
                "args",
                "VARCHAR",
                "All arguments as JSON text. The file is read for them only if a query asks for them.",
            ),
        ),
    ),
    "counters": (
        "One row for each value of a counter.",
        (
            Column("file", "INTEGER", "The number of the file."),
            Column("rank", "INTEGER", "The rank."),
            Column("pid", "BIGINT", "The process id."),
            Column("name", "VARCHAR", "The name of the counter."),
            Column("series", "VARCHAR", "The key of the value."),
            Column("time_ns", "BIGINT", "The time in ns since the epoch."),
            Column("value", "DOUBLE", "The value."),
        ),
    ),
    "steps": (
        "One row for each training step: tracekit's batches, or ProfilerStep#N of torch.profiler for ranks without.",
        (
            Column("rank", "INTEGER", "The rank."),
            Column("step", "BIGINT", "The number of the step."),
            Column("start_ns", "BIGINT", "The start in ns since the epoch."),
            Column("end_ns", "BIGINT", "The end."),
            Column("duration_ns", "BIGINT", "The duration."),
            Column("evaluation", "BOOLEAN", "True if a slice named evaluation or validation overlaps the step."),
            *_COUNTS,
        ),
    ),
    "ranks": (
        "One row for each file and rank.",
        (
            Column("file", "INTEGER", "The number of the file."),
            Column("path", "VARCHAR", "The file."),
            Column("rank", "INTEGER", "The rank."),
            Column("host", "VARCHAR", "The host, if the file states it."),
            Column("start_ns", "BIGINT", "The start of the first event in ns since the epoch."),
            Column("end_ns", "BIGINT", "The end of the last event."),
            Column("events", "BIGINT", "The number of rows in events."),
            Column("damage", "VARCHAR", "The damage in the file. NULL for none."),
        ),
    ),
    "flows": (
        "One row for each start (s), step (t) and end (f) of a flow.",
        (
            Column("file", "INTEGER", "The number of the file."),
            Column("rank", "INTEGER", "The rank."),
            Column("id", "BIGINT", "The id. NULL if it is not a number."),
            Column("phase", "VARCHAR", "s, t or f."),
            Column("pid", "BIGINT", "The process id."),
            Column("tid", "BIGINT", "The thread id."),
            Column("time_ns", "BIGINT", "The time in ns since the epoch."),
            Column("category", "VARCHAR", "The category."),
            Column("name", "VARCHAR", "The name."),
        ),
    ),
}
"""Each table: what a row is, and its columns."""


def schema_text() -> str:
    """Return the tables and columns as text of up to 130 characters a line."""
    lines = []
    for table, (rows, columns) in TABLES.items():
        lines.append(f"{table}: {rows}")
        lines += [f"  {column.name:<14} {column.kind:<8} {column.meaning}" for column in columns]
        lines.append("")
    return "\n".join(lines[:-1])
