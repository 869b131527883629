"""The inner loops of the merge in C."""

from collections.abc import Callable

class PftraceEncoder:
    """Turns the events of one unit into packets; see tracekit.merge.write.pftrace_packets. From one thread at a time.

    Args:
        sequence: The number of the sequence of packets.
        base_ns: The time that times of events count from.
        flow_offset: A number that is added to the ids of flows.
        max_texts: How many texts a table holds.
        memory_bytes: The size of the records in memory; further ones go to a scratch file.
        folder: Where the scratch file without a name is created.
    """

    def __init__(
        self, sequence: int, base_ns: int, flow_offset: int, max_texts: int, memory_bytes: int, folder: str, /
    ) -> None: ...
    def encode(self, text: bytes, at: int, /) -> tuple[int, int]:
        """Keep the events of a text from a place on.

        Returns:
            Where an event begins and ends that Python must `add`; go on behind it. At the end of the text, that twice.

        Raises:
            ValueError: It is no run of events.
            OSError: The scratch file cannot be written, as for `add` and `packets`.
        """

    def intern(self, table: int, text: bytes, /) -> int:
        """Do what `PacketStore.intern` does."""

    def add(
        self,
        kind: int,
        uuid: int,
        pid: int,
        start_ns: int,
        end_ns: int,
        category: bytes,
        name: bytes,
        rest: bytes,
        /,
    ) -> None:
        """Do what `PacketStore.add` does."""

    def packets(self) -> bytes | None:
        """Return the next packets; None at the end."""

class Rewriter:
    """Rewrites the events of one unit, input after input. Use it from one thread at a time (RuntimeError otherwise).

    The plain `Rewriter` in tracekit.merge.rewrite.rewriter has the same output, and says what the methods do that both have.
    Every event of the output ends with ``,`` and a newline. Every ``tid`` is padded with spaces to 10 characters, so that a lane
    can be written over it. Which events are written here, and which the caller must write, depends only on their own bytes.

    Args:
        noted_name: The beginning of the names, as JSON, of events that `noted` returns; 2 to 32 bytes.
        folder: Where a scratch file without a name is created if the logs exceed ``log_bytes``.
        snap_ns: The maximum overlap that is removed on tracks that `finish` is told of; 0 removes none.
        log_bytes: The maximum size of the logs in memory.
    """

    def __init__(self, noted_name: bytes, folder: str, snap_ns: int = 0, log_bytes: int = ..., /) -> None: ...
    def begin(
        self,
        shift_ns: int,
        least_ns: int,
        most_ns: int,
        id_offset: int,
        arg_ids: bool,
        args: int,
        async_prefix: bytes,
        knots: tuple[tuple[int, int], ...],
        /,
    ) -> None:
        """Begin the next input, whose tracks are all unknown.

        Args:
            shift_ns: Added to times.
            least_ns: The earliest time, in the input, that is written.
            most_ns: The latest time in the output.
            id_offset: Added to ids; -1 keeps all ids, and leaves all metadata to the caller.
            arg_ids: Whether ``correlation`` and ``External id`` in arguments are ids too.
            args: 0 keeps all arguments, 1 only these ids, 2 none. Counters keep theirs.
            async_prefix: Put before the ids of asynchronous events.
            knots: Those of a `ClockMap` that is not constant, or none.

        Raises:
            OverflowError: A time or an id is out of range.
        """

    def rewrite(self, text: bytes, at: int, final: bool, /) -> tuple[int, int]:
        """Rewrite whole events from ``text[at:]`` on, and the separators behind them.

        Returns:
            Why and where it stopped. 0, more: the text ends. 1, odd: the caller must write the event that begins there, or report
            the damaged separator, and call `append` after each event. 2, new: see `new_track`. 3: the closing bracket.

        Raises:
            OSError: The scratch file cannot be written.
        """

    def new_track(self) -> tuple[bytes, bytes, bytes]:
        """Return pid, tid and category, as JSON, of the event whose track is unknown."""

    def add_track(self, pid: bytes, tid: bytes, new_pid: int, new_tid: int, log: int, /) -> None:
        """Add a track of this input; ``log`` is the number of the track in the output, from 0 on."""

    def work(self) -> list[tuple[int, int]]:
        """Return the kinds of work on each track of this input: (log, bits of `tracekit.merge.plan.titles.work_of`)."""

    def append(
        self,
        text: bytes,
        log: int = -1,
        kind: int = 0,
        time_ns: int = 0,
        end_ns: int = 0,
        tid_at: int = 0,
        label: int = 0,
        dur_at: int = 0,
        dur_size: int = 0,
        /,
    ) -> None:
        """Append one event that the caller wrote, or no text for one that it dropped; see the plain `Rewriter`."""

    @staticmethod
    def label(name: bytes, category: bytes, /) -> int:
        """Return what an ``E`` is matched with its ``B`` by: a hash of the name and category, which are JSON or empty."""

    def take(self) -> bytes:
        """Return the output since the last call."""

    def write(self, fd: int, offset: int, /) -> int:
        """Write the output since the last call into a file in which the output begins at an offset, instead of `take`.

        Returns its size. The offset may be negative if the output taken before is longer. After an error, the output is kept.
        """

    def metadata(self) -> bytes:
        """Return names and sort indices of processes and threads since the last call, with commas between.

        They are not in the output.
        """

    def noted(self) -> bytes:
        """Return the events since the last call, with commas between, whose names begin with ``noted_name``."""

    def overlaps(self) -> bool:
        """Return True if two slices of a track are known to overlap, so that `finish` will find patches."""

    def counts(self) -> dict[str, int]:
        """Return how many events of this input were written, by phase; without those of `append`."""

    def finish(
        self, allot: Callable[[int, int], int], snaps: Callable[[int], bool] | None = None, /
    ) -> tuple[int, int, int, int]:
        """Assign lanes, as the plain `Rewriter` does; nothing can be appended any more."""

    def first_patch(self) -> int:
        """Return the position of the next patch, behind all output if there is none."""

    def write_patches(self, fd: int, offset: int, /) -> None:
        """Write the remaining patches over a file in which the output begins at an offset, which may be negative.

        Raises:
            ValueError: A patch comes before the file.
        """

    def lay(self, text: bytes, position: int, /) -> bytes:
        """Return a stretch of the output with the patches over it. Called for one stretch after the other."""

def find_events(text: bytes, at: int, limit: int, /) -> bytes:
    """Return the begin and end of each whole, well-formed object that begins from ``at`` to ``limit``, with one comma between."""

class Columns:
    """Fills the columns of the event table of one file. Use it from one thread at a time (RuntimeError otherwise).

    The plain equivalent is `tracekit.table.plain_columns.PlainColumns`; `tracekit.table.rows` defines the rows. Integers of
    -2**63 are NULL.

    Args:
        device_categories: The categories of events on a device, without quotes.
        folder: Where the scratch file without a name is created.
        memory_bytes: The size of finished batches, and of slices to sort, that stays in memory.
        keeps_args: The events in the table ``args``: 0 none, 1 all, 2 those with `has_key_args`.
    """

    def __init__(
        self, device_categories: tuple[bytes, ...], folder: str, memory_bytes: int, keeps_args: int, /
    ) -> None: ...
    def scan(self, text: bytes, at: int, final: bool, /) -> tuple[int, int]:
        """Add the rows of whole events from ``text[at:]`` on.

        Returns:
            Why and where it stopped. 0, more: the text ends. 1, odd: the caller must read the event that begins there, and call
            `passed`. 3: the closing bracket.

        Raises:
            OSError: The scratch file cannot be written.
        """

    def passed(self) -> None:
        """Note that the caller has read an event."""

    def track(self, pid: bytes, tid: bytes, /) -> int:
        """Return the number of a track, given as JSON; unknown ones get the next number."""

    def tracks(self) -> list[tuple[bytes, bytes]]:
        """Return pid and tid of each track, as JSON."""

    def add_event(
        self,
        track: int,
        category: bytes | None,
        name: bytes,
        phase: int,
        start_ns: int,
        duration_ns: int,
        correlation: int,
        flow: int,
        stream: int,
        device: int,
        size_bytes: int,
        process_group: bytes | None,
        args: bytes | None,
        nests: bool,
        begin: int,
        /,
    ) -> int:
        """Add a row, and return its number. Texts are UTF-8; ``begin`` is the number of its begin, or -1."""

    def add_slices(self, tracks: bytes, starts_ns: bytes, durations_ns: bytes, /) -> None:
        """Add slices without a name; each argument is an array of native 64-bit integers."""

    def add_counter(self, track: int, name: bytes, series: bytes, time_ns: int, value: float, /) -> None:
        """Add a value of a counter."""

    def add_flow(
        self, track: int, phase: bytes, time_ns: int, category: bytes | None, name: bytes, id_: int, /
    ) -> None:
        """Add an end or a step of a flow."""

    def begin(self, track: int, start_ns: int, name: bytes, category: bytes, text: bytes, /) -> bool:
        """Begin a slice.

        Args:
            track: Its track.
            start_ns: Its start.
            name: Its name as JSON, or empty.
            category: Its category as JSON, or empty.
            text: The event, for `end`.

        Returns:
            False if too many slices have begun: then this one is left out.
        """

    def end(self, track: int, name: bytes, category: bytes, /) -> tuple[bytes, int] | None:
        """End the innermost slice that a name and category fit, and return its event and the number of its begin.

        None if there is none. Empty ones fit all.
        """

    def begun(self) -> list[tuple[int, bytes]]:
        """Return the track and event of each slice that has begun and not ended, in order of track."""

    def metadata(self) -> list[tuple[int, bytes]]:
        """Return the metadata events since the last call, each behind a 0."""

    def noted(self) -> list[tuple[int, bytes]]:
        """Return the duration and event (``X`` or ``B``) of the slices since the last call that may be steps."""

    def finish(self, groups: bytes, steps: bytes, /) -> dict[str, int]:
        """Nest the slices, after the last row.

        Args:
            groups: For each track, as int64, the group of its steps.
            steps: Of each step, as int64, its group, start, end and index; in order of group and start.

        Returns:
            The number of rows of each table.

        Raises:
            OSError: The scratch file cannot be written or read.
        """

    def span(self) -> tuple[int, int] | None:
        """Return the least start of the events and their latest end; None without events."""

    def used(self) -> dict[str, list[str]]:
        """Return, after `finish`, the columns of each table that are not NULL in all rows."""

def arrow_schema(table: str, /) -> object:
    """Return the schema of a table as an ``arrow_schema`` capsule."""

def arrow_stream(table: str, produce: Callable[[], Columns], /) -> object:
    """Return a table as an ``arrow_array_stream`` capsule.

    Args:
        table: One of the tables of `Columns`.
        produce: Called from any thread, with the interpreter lock, when the first batch is asked for. Returns finished columns,
            of which the table has not been read.
    """
