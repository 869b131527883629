"""The tables that a query can ask, with the type and the meaning of each column."""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION: Final = 8
"""The version of what the cache holds. A change of columns or of their meaning needs the next number."""

_SCHEMA: Final = """\
events: One row for each slice, instant and async slice. A begin and its end are one row.
  file           INTEGER  The number of the file; see the table ranks.
  rank           INTEGER  The rank. NULL for a process of a merged trace that has none.
  pid            BIGINT   The process id of the trace. One that is no number gets a number from 3221225472 on.
  tid            BIGINT   The thread id or stream of the trace, likewise.
  process        VARCHAR  The label or name of the process.
  thread         VARCHAR  The name of the thread.
  category       VARCHAR  The category, such as kernel or cpu_op.
  name           VARCHAR  The name.
  phase          VARCHAR  X: slice, i: instant, b: async slice, n: async instant, B: slice without an end.
  start_ns       BIGINT   The start in ns since the epoch: the base time of the file and the time in it.
  duration_ns    BIGINT   The duration. NULL for instants and slices without an end.
  depth          BIGINT   The number of slices on its thread that enclose it. NULL for other rows than X.
  parent         BIGINT   The id of the innermost slice of its thread that encloses it.
  parent_file    INTEGER  The file of that slice: files of one rank may share threads.
  self_ns        BIGINT   The part of the duration that no child covers.
  id             BIGINT   The number of the row in its file, from 0 on.
  step           BIGINT   The training step. On a device, that of the launch. NULL outside of steps.
  epoch          BIGINT   The training time at the start of the step: epochs completed. NULL if it is unknown.
  batch          BIGINT   The training time at the start of the step: batches completed. NULL if it is unknown.
  sample         BIGINT   The training time at the start of the step: samples seen. NULL if it is unknown.
  token          BIGINT   The training time at the start of the step: tokens seen. NULL if it is unknown.
  iteration      BIGINT   The training time at the start of the step: iterations completed. NULL if it is unknown.
  correlation    BIGINT   The argument that ties an event on a device to its launch.
  flow           BIGINT   The id of the flow that the event is bound to by bind_id.
  stream         BIGINT   The argument stream.
  device         BIGINT   The argument device, or Device Id.
  bytes          BIGINT   The argument bytes, or Bytes.
  process_group  VARCHAR  The argument Process Group Name.
  args           VARCHAR  All arguments as JSON text. The file is read for them only if a query asks for them.

counters: One row for each value of a counter.
  file           INTEGER  The number of the file.
  rank           INTEGER  The rank.
  pid            BIGINT   The process id.
  name           VARCHAR  The name of the counter.
  series         VARCHAR  The key of the value.
  time_ns        BIGINT   The time in ns since the epoch.
  value          DOUBLE   The value.

steps: One row for each training step: tracekit's batches, or ProfilerStep#N of torch.profiler for ranks without.
  rank           INTEGER  The rank.
  step           BIGINT   The number of the step.
  start_ns       BIGINT   The start in ns since the epoch.
  end_ns         BIGINT   The end.
  duration_ns    BIGINT   The duration.
  evaluation     BOOLEAN  True if a slice named evaluation or validation overlaps the step.
  epoch          BIGINT   The training time at the start of the step: epochs completed. NULL if it is unknown.
  batch          BIGINT   The training time at the start of the step: batches completed. NULL if it is unknown.
  sample         BIGINT   The training time at the start of the step: samples seen. NULL if it is unknown.
  token          BIGINT   The training time at the start of the step: tokens seen. NULL if it is unknown.
  iteration      BIGINT   The training time at the start of the step: iterations completed. NULL if it is unknown.

ranks: One row for each file and rank.
  file           INTEGER  The number of the file.
  path           VARCHAR  The file.
  rank           INTEGER  The rank.
  host           VARCHAR  The host, if the file states it.
  start_ns       BIGINT   The start of the first event in ns since the epoch.
  end_ns         BIGINT   The end of the last event.
  events         BIGINT   The number of rows in events.
  damage         VARCHAR  The damage in the file. NULL for none.

flows: One row for each start (s), step (t) and end (f) of a flow.
  file           INTEGER  The number of the file.
  rank           INTEGER  The rank.
  id             BIGINT   The id. NULL if it is not a number.
  phase          VARCHAR  s, t or f.
  pid            BIGINT   The process id.
  tid            BIGINT   The thread id.
  time_ns        BIGINT   The time in ns since the epoch.
  category       VARCHAR  The category.
  name           VARCHAR  The name.
"""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: str  # its type in SQL
    meaning: str  # a sentence


def _parse(block: str) -> tuple[str, tuple[str, tuple[Column, ...]]]:
    head, *lines = block.splitlines()
    table, rows = head.split(": ", 1)
    return table, (rows, tuple(Column(*line.split(maxsplit=2)) for line in lines))


TABLES: Final[dict[str, tuple[str, tuple[Column, ...]]]] = dict(map(_parse, _SCHEMA.split("\n\n")))
"""Each table: what a row is, and its columns."""


def schema_text() -> str:
    """Return the tables and columns as text of up to 130 characters a line."""
    return _SCHEMA.removesuffix("\n")
