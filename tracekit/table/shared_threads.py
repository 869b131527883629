"""Nest the slices of threads that several files of a rank share, such as the markers and operators of one training thread."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tracekit.structs import Struct
from tracekit.table.build import FACTS
from tracekit.table.cache import key_of
from tracekit.table.extend import nest_slices, replaced, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.table.database import Database
    from tracekit.table.growth import Part

PARENT_MEMBER: Final = "parent_member"
"""The column of nested events with the number of the member that holds the parent."""

_NESTED: Final = ("depth", "parent", "self_ns")

# Threads with slices of two files at one time.
_SHARED: Final = """
CREATE OR REPLACE TEMP TABLE shared_track AS
WITH part AS (
    SELECT t.member, t.track, t.pid, t.tid, min(s.start_ns + t.base_ns) AS first_ns,
        max(s.start_ns + s.duration_ns + t.base_ns) AS last_ns
    FROM member_track t JOIN member_slice s USING (member, track) GROUP BY ALL
), shared AS (
    SELECT DISTINCT a.pid, a.tid FROM part a JOIN part b USING (pid, tid)
    WHERE a.member < b.member AND a.first_ns < b.last_ns AND b.first_ns < a.last_ns
)
SELECT t.member, t.track, t.base_ns, dense_rank() OVER (ORDER BY pid, tid) - 1 AS thread
FROM member_track t SEMI JOIN shared USING (pid, tid)"""

_SLICES: Final = """
CREATE OR REPLACE TEMP TABLE to_nest AS
SELECT row_number() OVER (ORDER BY s.start_ns + t.base_ns, s.duration_ns DESC, s.member, s.depth, s.id) - 1 AS place,
    s.member, s.id, t.thread AS track, s.start_ns + t.base_ns AS start_ns, s.duration_ns
FROM member_slice s JOIN shared_track t USING (member, track)"""

_NESTED_SLICES: Final = """
CREATE OR REPLACE TEMP TABLE nested_slice AS
SELECT s.member, s.id, n.depth, p.id AS parent, p.member AS parent_member, n.self_ns
FROM to_nest s JOIN nesting n USING (place) LEFT JOIN to_nest p ON p.place = n.parent"""


class Member(Struct, frozen=True):
    """A file of a rank."""

    path: str  # the file
    folder: Path  # the folder of its entry
    parts: list[Part]  # the parts of its events
    base_ns: int  # the base of its times


class SharedThreads(Struct, frozen=True):
    """The entry with the events of the files of a rank that share threads."""

    members: list[Member]  # the files. Of slices with equal times, that of the earlier file encloses the other.

    @property
    def paths(self) -> list[str]:
        """The files of the rank."""
        return [member.path for member in self.members]

    def has_versions(self) -> bool:
        """Return False: the entry is built from whole tables."""
        return False

    def key(self) -> str:
        """Return the key of the entry."""
        return key_of([(member.folder.name, member.base_ns) for member in self.members])

    def build(self, folder: Path, _: object, open_database: Callable[[], Database], *__: object) -> None:
        """Write the events of each member with a shared thread."""
        database = open_database()
        self._create_slices(database)
        database.run(_SHARED)
        shared = [member for (member,) in database.run("SELECT DISTINCT member FROM shared_track ORDER BY member")]
        if shared:
            database.run(_SLICES)
            ((threads,),) = database.run("SELECT max(track) + 1 FROM to_nest")
            nest_slices(database, folder, threads)
            database.run(_NESTED_SLICES)
        for member in shared:
            _write_events(database, member, folder / f"events-{member}.parquet")
        (folder / FACTS).write_text(json.dumps({"members": shared}), encoding="ascii")

    def _create_slices(self, database: Database) -> None:
        """Create the views of the events, slices and tracks of all members."""
        slices, tracks = [], []
        for number, member in enumerate(self.members):
            rows = rows_of("events", member.folder, member.parts)
            database.run(f"CREATE OR REPLACE TEMP VIEW events_{number} AS {rows}")
            slices.append(
                f"SELECT {number} AS member, id, track, depth, start_ns, duration_ns FROM events_{number} WHERE phase = 88"
            )
            source = database.read_parquet([member.folder / "tracks.parquet"])
            tracks.append(
                f"SELECT {number} AS member, track, pid, tid, {member.base_ns}::BIGINT AS base_ns FROM {source}"
            )
        database.run(f"CREATE OR REPLACE TEMP VIEW member_slice AS {' UNION ALL '.join(slices)}")
        database.run(f"CREATE OR REPLACE TEMP VIEW member_track AS {' UNION ALL '.join(tracks)}")


def nested_events(folder: Path) -> dict[int, Path]:
    """Return the file with the events of each member that shares a thread, for the folder of an entry."""
    found = json.loads((folder / FACTS).read_text(encoding="ascii"))["members"]
    return {member: folder / f"events-{member}.parquet" for member in found}


def _write_events(database: Database, member: int, path: Path) -> None:
    database.write_parquet(
        f"SELECT {replaced(_NESTED, 'e')}, n.{PARENT_MEMBER} FROM events_{member} e "
        f"LEFT JOIN (SELECT * FROM nested_slice WHERE member = {member}) n ON n.id = e.id ORDER BY e.id",
        path,
    )
