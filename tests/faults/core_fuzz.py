"""Fuzzing of the compiled core beside pure Python; ``--sanitize`` builds it with sanitizers first (see scripts/sanitize).

Of the merge, three kinds of rounds take turns: whole merges of odd traces, which must be the same in C and in Python; events from
real and odd traces, damaged, which must be refused or rewritten and encoded, in their own memory only, and the same whatever
pieces they come in; and memory that fails at the N-th request, which must end in MemoryError and harm nothing.
Then `tests.faults.record_fuzz` does the like with recording, in a process of its own, since a marker gets its core when tracekit
is imported.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import importlib
import random
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from tests import both_cores
from tests.bad_traces import BAD_OWN_TRACES, BAD_TRACES, GOOD_TRACES
from tests.native import cores
from tests.real_traces import real_traces_folder
from tracekit import core
from tracekit.formats.json.window import find_events

PROGRAMS = [*(("tests.faults.core_fuzz", flags) for flags in cores.VARIANTS), ("tests.faults.record_fuzz", [])]
"""What runs with sanitizers, and what the core is built with beside them."""
NOTED = b'"nccl'
MORE, ODD, NEW = range(3)


def sanitize(seconds: float, seed: int) -> int:
    """Run every program with a core that is built with sanitizers and some more flags, each for its share of the time."""
    compiler = cores.find_compiler()
    if compiler is None:
        print("no C compiler is here")
        return cores.CANNOT
    for number, (program, flags) in enumerate(PROGRAMS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                for extension in cores.extensions():
                    cores.build(extension, Path(folder), compiler, [*cores.SANITIZERS, *flags])
            except subprocess.CalledProcessError as error:
                print(f"the core cannot be built with sanitizers: {error}")
                return cores.CANNOT
            share, first = seconds / len(PROGRAMS), seed + number * 1_000_000
            command = ["-m", program, "--seconds", str(share), "--seed", str(first)]
            done = cores.run_with(Path(folder), command, **cores.sanitizer_variables(compiler))
        print(done.stdout, end="")
        if done.returncode:
            return done.returncode
    return 0


def corpus() -> list[bytes]:
    """Return texts to damage: traces that are bad by purpose, and real ones where they are."""
    found = [bad.data for bad in (*BAD_TRACES, *BAD_OWN_TRACES)] + list(GOOD_TRACES.values())
    for path in sorted(real_traces_folder().rglob("*.json*")):
        data = path.read_bytes()
        found.append(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return found


def same_merge(source: random.Random, folder: Path) -> None:
    """Merge odd traces in both ways."""
    paths = [folder / f"rank{number}.json" for number in range(source.randrange(1, 3))]
    for path in paths:
        path.write_bytes(both_cores.trace(source))
    with both_cores.small_pieces(source.choice([300, 700, 5000])):
        found = both_cores.merged(paths, folder / "merged.json")
        with both_cores.pure():
            other = both_cores.merged(paths, folder / "merged.json")
    both_cores.assert_same(found, other)


def run_of(source: random.Random, texts: list[bytes]) -> bytes:
    """Return what may be a run of events: a piece of a trace, whole events mostly, often damaged."""
    if source.random() < 0.3:
        run = event_run(source)
    else:
        text = source.choice(texts)
        at = source.randrange(len(text) + 1)
        start = text.find(b"{", text.find(b"traceEvents") + 1 if source.random() < 0.3 else at)
        end = text.rfind(b"}", start, start + source.randrange(1, 6000))
        run = text[max(start, 0) : end + 1]
    return both_cores.damaged(source, run) if source.random() < 0.6 else run


def event_run(source: random.Random) -> bytes:
    """Return some events, almost all of them usual."""
    return ",".join(both_cores.event(source, 0.02, 1000 * number) for number in range(source.randrange(1, 20))).encode()


class Outcome:
    """What a rewriter makes of a text that comes in pieces; what it gives back is passed over.

    Args:
        source: Draws how the rewriter is set.
        folder: Where its scratch file goes.
    """

    def __init__(self, source: random.Random, folder: str) -> None:
        compiled: Any = core.merge
        self._rewriter = compiled.Rewriter(NOTED, folder, source.choice([0, 50]), source.choice([0, 200, 1 << 20]))
        self._rewriter.begin(
            source.choice([0, 7, 10**9]), 0, 2**61, source.choice([-1, 0, 10**10]), True,
            source.choice([0, 0, 1, 2]), source.choice([b"", b"5:"]), source.choice([(), ((0, 5), (10**6, 999))]),
        )  # fmt: skip
        self._tracks: dict[Any, int] = {}
        self.output = b""
        self.seen: list[Any] = []

    def take(self, text: bytes, size: int) -> Outcome:
        """Rewrite a text in pieces of a size."""
        rewriter = self._rewriter
        start, end = 0, min(size, len(text))  # of the text that is there
        waiting, at = text[:end], 0
        while True:
            reason, at = rewriter.rewrite(waiting, at, end == len(text))
            if reason == NEW:
                pid, tid, _ = rewriter.new_track()
                log = self._tracks.setdefault((pid, tid), len(self._tracks) // 2)
                rewriter.add_track(pid, tid, 10**5 + log, 2**32 - 1 - log, log)
            elif reason == MORE and end < len(text):
                start, end, at = start + at, min(end + size, len(text)), 0
                waiting = text[start:end]
            elif reason == MORE:
                break
            else:
                place = start + at
                self.seen.append((reason, place))
                # Whatever it is, go on behind it; at some places an event is appended that Python wrote.
                if reason == ODD and place % 3 == 0:
                    rewriter.append(b'{"tid":5         }', 0, ord("XBEs"[place % 4]), place, place + 9, 7, 3)
                at += 1
        self.output += rewriter.take()
        self.seen += [rewriter.counts(), rewriter.metadata(), rewriter.noted()]
        return self

    def finish(self) -> bytes:
        """Return the output with its patches."""
        self.seen.append(self._rewriter.finish(lambda log, lane: log + lane, lambda log: log % 2 == 0))
        half = len(self.output) // 2
        laid: bytes = self._rewriter.lay(self.output[:half], 0)
        laid += self._rewriter.lay(self.output[half:], half)
        assert len(laid) == len(self.output)
        return laid


def encode(source: random.Random, runs: list[bytes]) -> None:
    """Encode runs as packets of a native trace, with Python's part for what the core gives back, in little memory."""
    compiled: Any = core.merge
    memory_bytes = source.choice([0, 500, 1 << 20])
    encoder = compiled.PftraceEncoder(5, 10**18, 7, source.choice([0, 3, 50_000]), memory_bytes, tempfile.gettempdir())
    for run in runs:
        at = 0
        while at < len(run):
            try:
                at, end = encoder.encode(run, at)
            except ValueError:
                break
            if at < end:
                encoder.intern(source.choice([1, 2, 3, 29]), run[at:end][:300])
                encoder.add(source.randrange(7), source.getrandbits(64), 3, 5, 9, run[:3], run[at:end], b"")
            at = end
    while encoder.packets() is not None:
        pass


def fill(seed: float, run: bytes, size: int, folder: str) -> list[Any]:
    """Fill columns from a text that comes in pieces, some rows given by Python; return the tables, and all else that is told."""
    compiled: Any = core.merge
    source = random.Random(seed)
    columns = compiled.Columns((b"c", b"kernel"), folder, source.choice([0, 1 << 20]), True)
    start, end, at, seen = 0, min(size, len(run)), 0, []
    while True:
        reason, at = columns.scan(run[start:end], at, end == len(run))
        if reason == MORE and end < len(run):
            start, end, at = start + at, min(end + size, len(run)), 0
        elif reason == MORE:
            break
        else:
            place = start + at
            seen.append((reason, place))
            if place % 3 == 0:
                track = columns.track(b"%d" % (place % 4), b'"t"')
                times = place * 100, place % 900
                columns.add_event(
                    track, b"c", b"odd", 88, *times, place % 5, 0, 1, 2, 3, b"g", b"{}", True, place % 3 - 1
                )
                columns.add_slices(
                    *(struct.pack("2q", *two) for two in ((track, track), times, (place % 7, place % 5)))
                )
                columns.add_counter(track, b"n", b"s", place, 0.5)
                columns.add_flow(track, b"s", place, None, b"n", -(2**63))
                columns.begin(track, place, b'"x"', b"", b"{}")
                seen.append(columns.end(track, b"", b"") if place % 2 else columns.begun())
                columns.passed()
            at += 1
    seen += [columns.metadata(), columns.noted(), columns.tracks()]
    tracks = len(columns.tracks())
    steps = array("q", [number for step in range(5) for number in (0, step * 2_000, step * 2_000 + 1_500, step)])
    seen += [columns.finish(array("q", [0] * tracks).tobytes(), steps.tobytes()), columns.used()]
    for table in ("events", "counters", "flows", "args"):
        seen.append(read_table(table, columns))
    return seen


def read_table(table: str, columns: Any) -> Any:
    """Read a table to its end, with pyarrow where it is here."""
    compiled: Any = core.merge

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return compiled.arrow_stream(table, lambda: columns)

    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError:
        return None
    try:
        return pyarrow.table(Stream()).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        # Memory that fails is an error of pyarrow here.
        raise MemoryError from error


def use(source: random.Random, run: bytes, folder: str) -> None:
    """Find the events of a run; rewrite it at once, and in small pieces: what comes of it is the same."""
    spans = find_events(run, 0)
    with both_cores.pure():
        assert find_events(run, 0) == spans
    seed = source.random()
    found = Outcome(random.Random(seed), folder).take(run, len(run) + 1)
    other = Outcome(random.Random(seed), folder).take(run, source.choice([1, 7, 50, 300]))
    assert (found.output, found.seen) == (other.output, other.seen)
    assert found.finish() == other.finish()
    pieces = source.choice([1, 7, 50, 300])
    assert fill(seed, run, len(run) + 1, folder) == fill(seed, run, pieces, folder)


def fail_memory(source: random.Random, texts: list[bytes], left: Any, folder: str) -> None:
    """Have each request for memory fail in turn."""
    run = run_of(source, texts)
    seed = source.random()
    for number in range(1, 300):
        left.value = number
        try:
            Outcome(random.Random(seed), folder).take(run, len(run) + 1).finish()
            encode(random.Random(seed), [run, run])
            fill(seed, run, len(run) + 1, folder)
        except MemoryError:
            left.value = 0
            continue
        failed = left.value == 0
        left.value = 0
        if not failed:
            return


def fail_python_memory(run: bytes) -> int:
    """Have each request that Python makes for memory fail in turn, where it can be made to; returns how many did."""
    try:
        import _testcapi
    except ImportError:
        return 0
    compiled: Any = core.merge
    failures = 0
    for number in range(200):
        rewriter = compiled.Rewriter(NOTED, "/tmp")
        rewriter.begin(5, 0, 2**61, 10**10, True, 0, b"", ())
        for place in (b"5", b"77", b"0", b"-1"):
            rewriter.add_track(place, place, 1001, 8, 0)
        failed = False
        _testcapi.set_nomemory(number, number + 1)
        try:
            rewriter.rewrite(run, 0, True)
            rewriter.new_track()
            rewriter.take()
            rewriter.metadata()
            rewriter.noted()
            rewriter.counts()
            rewriter.finish(int.__add__)
            rewriter.lay(run, 0)
        except MemoryError:
            failed = True
        finally:
            _testcapi.remove_mem_hooks()
        if not failed:
            break
        failures += 1
    return failures


def main() -> int:
    """Run for some time; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", action="store_true", help="build the core with sanitizers and use that")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    if told.sanitize:
        return sanitize(told.seconds, told.seed)
    if core.merge is None:
        print("the compiled core is not built here")
        return cores.CANNOT
    # Only a core that was built for these tests has requests that fail.
    assert core.merge.__file__ is not None
    library = ctypes.CDLL(core.merge.__file__)
    name = "tracekit_requests_left"
    left = ctypes.c_long.in_dll(library, name) if hasattr(library, name) else None
    texts = corpus()
    end = time.monotonic() + told.seconds
    seed = told.seed
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            try:
                same_merge(random.Random(seed), Path(folder))
                source = random.Random(seed)
                for _ in range(50):
                    use(source, run_of(source, texts), folder)
                    encode(source, [run_of(source, texts) for _ in range(source.randrange(1, 4))])
                if left is not None:
                    fail_memory(source, texts, left, folder)
                fail_python_memory(run_of(source, texts))
            except BaseException:
                print(f"at seed {seed}", file=sys.stderr)
                raise
            seed += 1
    print(f"{seed - told.seed} rounds, {len(texts)} texts: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
