"""The inner loops of the merge in C: see merge.c. Columns are bytes of 64-bit integers as ``array("q")`` holds them."""

class Scanner:
    """Reads the runs of one input for the first pass. From one thread at a time (RuntimeError otherwise).

    Args:
        words: Beginnings of names, as JSON, of events that Python wants to see; at most 16 of 2 to 32 bytes.
        epoch_ns: Times from here on count from the epoch.
    """

    def __init__(self, words: tuple[bytes, ...], epoch_ns: int, /) -> None: ...
    def scan(
        self, text: bytes, /
    ) -> (
        tuple[
            dict[str, int],
            int | None,
            int | None,
            int | None,
            int | None,
            list[tuple[int, int, int]],
            list[tuple[int, bytes, bytes]],
            list[tuple[int, int]],
            list[tuple[int, int]],
        ]
        | None
    ):
        """Read a run of events with ``,`` between them.

        Returns:
            None when Python must read it. Else: how many events there are of each phase; the checksum of their times if the
            run is plain; the earliest time, the latest, and the earliest that counts from the epoch, ns; from where to
            where the first event of each new track stands, and the track's number; for each track with slices its number, their
            starts and their negated ends; where events with one of the words stand; where metadata stands.
        """

class Patcher:
    """Rewrites the plain runs of one input. From one thread at a time (RuntimeError otherwise).

    Args:
        shift_ns: What is added to times.
        least_ns: The earliest time that has a place.
        most_ns: The latest time in the merged trace that it writes.
        offset: What is added to ids.
        arg_ids: Whether also to those in arguments.
    """

    def __init__(self, shift_ns: int, least_ns: int, most_ns: int, offset: int, arg_ids: bool, /) -> None: ...
    def patch(self, text: bytes, phases: tuple[int, ...], checksum: int, /) -> bytes | tuple[bytes, bytes] | None:
        """Rewrite a run.

        Args:
            text: Events with ``,`` between them.
            phases: How many there are of each phase in ``XstfiIC``.
            checksum: Of their times.

        Returns:
            The rewritten events; or a pid and tid, as written, whose place is to be added first; or None when Python must
            rewrite it.
        """

    def add_place(self, pid: bytes, tid: bytes, new_pid: int, new_tid: int, lanes: int, /) -> None:
        """Say where a track goes; ``lanes`` is a small number if some of its slices leave it, else -1."""

    def lane_counts(self) -> list[int]:
        """Return for each number of lanes how many events of the last run its tracks have."""

def sort_rows(starts: bytes, minus_ends: bytes, first: int, /) -> tuple[bytes, bytes, bytes] | None:
    """Sort rows; the third column is where each was, counted from ``first``. None: they are in order."""

def least(column: bytes, /) -> int:
    """Return the least number of a column."""

def nest(starts: bytes, minus_ends: bytes, open: bytes, /) -> bytes | None:  # noqa: A002 - positional
    """Return what is open after rows in order, as a column of negated ends; None when they overlap without nesting."""

def nest_merged(windows: list[tuple[bytes, bytes, int]], open: bytes, /) -> tuple[list[int], bytes | None]:  # noqa: A002
    """Do what `nest` does with the rows of several windows, each from its place on, until one window is at its end.

    Returns:
        The new places, and what `nest` returns.
    """
