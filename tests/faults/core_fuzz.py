"""Fuzzing of the compiled core beside pure Python; ``--sanitize`` builds it with sanitizers first (see scripts/sanitize).

Of the merge, four kinds of rounds take turns: whole merges and scans of odd traces, which must be the same in C and in Python;
runs of events from real and odd traces, damaged, which must be refused or read without touching memory that is not theirs;
sorting and nesting of rows; and memory that fails at the N-th request, which must end in MemoryError and leave everything usable.
Then `tests.faults.record_fuzz` does the like with recording, in a process of its own, since a marker gets its core when tracekit
is imported.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
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
from tracekit.merge.lanes import _ENDLESS, _nest

PROGRAMS = [*(("tests.faults.core_fuzz", flags) for flags in cores.VARIANTS), ("tests.faults.record_fuzz", [])]
"""What runs with sanitizers, and what the core is built with beside them."""
WORDS = (b'"nccl', b'"step')


def sanitize(seconds: float, seed: int) -> int:
    """Run every program with a core that was built with sanitizers, each for its share of the time."""
    compiler = cores.find_compiler()
    if compiler is None:
        print("no C compiler is here")
        return cores.CANNOT
    for number, (program, flags) in enumerate(PROGRAMS):
        code = sanitize_program(program, flags, compiler, seconds / len(PROGRAMS), seed + number * 1_000_000)
        if code:
            return code
    return 0


def sanitize_program(program: str, flags: list[str], compiler: str, seconds: float, seed: int) -> int:
    """Build the core with sanitizers and some more flags, and run a program with it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            for extension in cores.extensions():
                cores.build(extension, Path(folder), compiler, [*cores.SANITIZERS, *flags])
        except subprocess.CalledProcessError as error:
            print(f"the core cannot be built with sanitizers: {error}")
            return cores.CANNOT
        command = ["-m", program, "--seconds", str(seconds), "--seed", str(seed)]
        done = cores.run_with(Path(folder), command, **cores.sanitizer_variables(compiler))
        print(done.stdout, end="")
        return done.returncode


def corpus() -> list[bytes]:
    """Return texts to damage: traces that are bad by purpose, and real ones where they are."""
    found = [bad.data for bad in (*BAD_TRACES, *BAD_OWN_TRACES)] + list(GOOD_TRACES.values())
    for path in sorted(real_traces_folder().rglob("*.json*")):
        data = path.read_bytes()
        found.append(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return found


def same_merge(source: random.Random, folder: Path) -> None:
    """Scan and merge odd traces in both ways."""
    paths = [folder / f"rank{number}.json" for number in range(source.randrange(1, 3))]
    for path in paths:
        path.write_bytes(both_cores.trace(source))
    with both_cores.small_pieces(source.choice([300, 700, 5000])):
        found = both_cores.scanned(paths[0], folder / "scratch"), both_cores.merged(paths, folder / "merged.json")
        with both_cores.pure():
            other = both_cores.scanned(paths[0], folder / "scratch"), both_cores.merged(paths, folder / "merged.json")
    assert found == other


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


def use(run: bytes, scanner: Any, patcher: Any) -> None:
    """Read and rewrite a run."""
    found = scanner.scan(run)
    if found is None:
        patcher.patch(run, (1, 0, 0, 0, 0, 0, 0), 0)
        return
    counts = tuple(found[0].get(phase, 0) for phase in "XstfiIC")
    checksum = found[1] or 0
    while isinstance(moved := patcher.patch(run, counts, checksum), tuple):
        patcher.add_place(*moved, 1001, 2**32 - 1, len(moved[0]) % 3 - 1)
    patcher.lane_counts()
    for _, starts, minus_ends in found[6]:
        order(starts, minus_ends)


def order(starts: bytes, minus_ends: bytes) -> None:
    """Sort rows and see whether they nest, in both ways."""
    compiled: Any = core.merge
    rows = list(zip(array("q", starts), array("q", minus_ends), strict=True))
    ordered = sorted(rows)
    found = compiled.sort_rows(starts, minus_ends, 5)
    assert (found is None) == (rows == ordered)
    if found is not None:
        starts, minus_ends = found[:2]
        assert list(zip(array("q", starts), array("q", minus_ends), strict=True)) == ordered
        assert [rows[index - 5] for index in array("q", found[2])] == ordered
    open_ = [-_ENDLESS]
    nests = _nest(ordered, open_)
    assert compiled.nest(starts, minus_ends, b"") == (array("q", open_[1:]).tobytes() if nests else None)
    if rows:
        half = len(rows) // 2 * 8
        windows = [(starts[::], minus_ends[::], 0), (starts[half:], minus_ends[half:], 0)]
        compiled.nest_merged(windows, b"")


def odd_rows(source: random.Random) -> tuple[bytes, bytes]:
    """Return columns of numbers, some at the limits."""
    limits = [0, 1, -1, 2**63 - 1, -(2**63), 2**62]
    count = source.randrange(40)
    columns = [
        [source.choice(limits) if source.random() < 0.1 else source.randrange(-50, 50) for _ in range(count)]
        for _ in range(2)
    ]
    if source.random() < 0.5:
        columns[0].sort()
    return struct.pack(f"{count}q", *columns[0]), struct.pack(f"{count}q", *columns[1])


def fail_memory(source: random.Random, texts: list[bytes], left: Any) -> None:
    """Have each request for memory fail in turn."""
    compiled: Any = core.merge
    run = run_of(source, texts)
    for number in range(1, 60):
        left.value = number
        try:
            scanner, patcher = compiled.Scanner(WORDS, 10**18), compiled.Patcher(5, 0, 2**62, 10**10, True)
            use(run, scanner, patcher)
        except MemoryError:
            left.value = 0
            use(run, scanner, patcher)
        else:
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
        scanner, patcher = compiled.Scanner(WORDS, 10**18), compiled.Patcher(5, 0, 2**62, 10**10, True)
        patcher.add_place(b"5", b"6", 1001, 8, -1)
        failed = False
        _testcapi.set_nomemory(number, number + 1)
        try:
            found = scanner.scan(run)
            patcher.patch(run, (1, 0, 0, 0, 0, 0, 0), 0)
            for _, starts, minus_ends in found[6] if found else ():
                compiled.sort_rows(starts, minus_ends, 0)
                compiled.nest(starts, minus_ends, b"")
        except MemoryError:
            failed = True
        finally:
            _testcapi.remove_mem_hooks()
        use(run, scanner, patcher)
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
    left = (
        ctypes.c_long.in_dll(library, "tracekit_requests_left") if hasattr(library, "tracekit_requests_left") else None
    )
    texts = corpus()
    end = time.monotonic() + told.seconds
    seed = told.seed
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            try:
                same_merge(random.Random(seed), Path(folder))
                source = random.Random(seed)
                scanner, patcher = core.merge.Scanner(WORDS, 10**18), core.merge.Patcher(7, 0, 2**62, 10**10, True)
                for _ in range(50):
                    use(run_of(source, texts), scanner, patcher)
                    order(*odd_rows(source))
                if left is not None:
                    fail_memory(source, texts, left)
                fail_python_memory(run_of(source, texts))
            except BaseException:
                print(f"at seed {seed}", file=sys.stderr)
                raise
            seed += 1
    print(f"{seed - told.seed} rounds, {len(texts)} texts: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
