"""Fuzzing of the compiled core, guided by what inputs do: what takes a new way through the C code is kept and changed on.

The core is built with gcc's sanitizers and with gcc's counting of edges (tests/native/edges.c); no other compiler is needed.
The first inputs are runs of events from real traces, from traces that are bad by purpose and from odd ones. Every input may be
refused or read, but may touch no memory that is not its own; of each that is kept, Python writes the same.
``scripts/sanitize`` runs this; ``--input FILE`` runs one input that was found before.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.native import cores

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTED = "-fsanitize-coverage=trace-pc,trace-cmp"
HEAD = struct.Struct("=qq")
MOST_BYTES = 6_000
SEED_BYTES = 1_200
BETWEEN = b"\0\0"
"""Between the runs of an input: one reader gets them one after the other, as it does those of a file."""
NUMBERS = [
    b"0", b"-1", b"7", b"255", b"65536", b"4294967295", b"4294967296", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551616", b"0.001", b"9223372036854775.807", b"1e99", b"999999999999999.999",
]  # fmt: skip


class MergeTarget:
    """The reader, the rewriter and the encoder of native traces: an input is one or more runs of events.

    What it needs is imported only where the core has been taken.
    """

    def __init__(self) -> None:
        from tests import both_cores
        from tests.faults import core_fuzz

        self._cores, self._fuzz = both_cores, core_fuzz

    def seeds(self, source: random.Random) -> list[bytes]:
        """Return the first inputs."""
        texts = self._fuzz.corpus()
        found = [self._fuzz.run_of(source, [text])[:SEED_BYTES] for text in texts for _ in range(4)]
        found += [self._cores.event(source, odd, 1000).encode() for odd in (0, 0, 0.05, 0.3) for _ in range(20)]
        runs = [self._fuzz.run_of(source, texts)[:SEED_BYTES] for _ in range(50)]
        return found + [BETWEEN.join(source.sample(runs, 2)) for _ in range(20)]

    def words(self) -> list[bytes]:
        """Return what is put into inputs."""
        cores_ = self._cores
        lists = (cores_.ODD_PLACES, cores_.ODD_TIMES, cores_.IDS, cores_.ODD_SCALARS, cores_.SPACES, cores_.SCALARS)
        texts = [text for texts in lists for text in texts]
        texts += [f'"{key}":' for key in (*cores_.KEYS, "ph", "dur", "args", "bind_id", "cat", "name", "s")]
        texts += [f'"{name}"' for name in cores_.NAMES] + [f'"ph":"{phase}"' for phase in dict.fromkeys(cores_.PHASES)]
        return [text.encode() for text in texts if text and len(text) < 100]

    def run(self, data: bytes) -> None:
        """Have the C code take an input."""
        source = random.Random(len(data))
        runs = data.split(BETWEEN)
        outcome = self._fuzz.Outcome(source, tempfile.gettempdir())
        for run in runs:
            self._fuzz.find_events(run, 0)
            outcome.take(run, len(run) + 1)
        outcome.finish()
        self._fuzz.encode(source, runs)

    def check(self, data: bytes, folder: Path) -> None:
        """Hold what the C code makes of an input against Python."""
        path, output = folder / "rank0.json", folder / "merged.json"
        path.write_bytes(b"[\n" + b",\n".join(data.split(BETWEEN)) + b"\n]")
        with self._cores.small_pieces(700):
            found = self._cores.merged([path], output)
            with self._cores.pure():
                other = self._cores.merged([path], output)
        self._cores.assert_same(found, other)


TARGETS = {"_merge": MergeTarget}
"""By the name of the extension module."""


class Feedback:
    """Says which inputs take a new way."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.tracekit_new_edges.restype = ctypes.c_long
        self._edges = (ctypes.c_ubyte * 65536).in_dll(self._library, "tracekit_edges")
        self._compared = (ctypes.c_ubyte * 65536).in_dll(self._library, "tracekit_compared")

    def forget(self) -> None:
        """Begin an input."""
        self._library.tracekit_forget()

    def is_new(self) -> bool:
        """Whether the input that ran took an edge, or so often, as none did before."""
        return bool(self._library.tracekit_new_edges())

    def ways(self) -> set[tuple[int, int]]:
        """Return which edges the input took, and how often about."""
        return {(at.start(), at.group()[0]) for at in re.finditer(rb"[^\0]", bytes(self._edges))}

    def compared(self) -> list[tuple[int, int]]:
        """Return which bytes the code compared with which others that were not the same: (wanted, found)."""
        return [divmod(at.start(), 256) for at in re.finditer(rb"[^\0]", bytes(self._compared))]


@dataclass(slots=True)
class Kept:
    """The inputs that are worth changing: for each way through the code the shortest that takes it."""

    shortest: dict[tuple[int, int], bytes] = field(default_factory=dict)
    inputs: list[bytes] = field(default_factory=list)
    """The newest last."""
    answered: set[tuple[int, int]] = field(default_factory=set)
    """Comparisons that an input has been changed for."""

    def add(self, data: bytes, feedback: Feedback) -> None:
        """Keep the input that ran, and none that is longer than others for all that it does."""
        for way in feedback.ways():
            if way not in self.shortest or len(data) < len(self.shortest[way]):
                self.shortest[way] = data
        needed = set(self.shortest.values())
        self.inputs = [each for each in (*self.inputs, data) if each in needed]

    def answers(self, data: bytes, compared: list[tuple[int, int]]) -> Iterator[bytes]:
        """Yield an input that was kept with what the code compared it with, at each place where that may stand.

        A comparison is answered in the first input in which it is seen: one byte after the other, a word is found.
        """
        new = [pair for pair in compared if pair not in self.answered]
        self.answered.update(new)
        for wanted, found in new:
            for place in re.finditer(re.escape(bytes([found])), data):
                yield data[: place.start()] + bytes([wanted]) + data[place.end() :]

    def choose(self, source: random.Random) -> bytes:
        """Return one of them; new ones more often."""
        return self.inputs[int(len(self.inputs) * max(source.random(), source.random()))]


def changed(source: random.Random, kept: Kept, words: list[bytes]) -> bytes:
    """Return a kept input with one or some things changed."""
    data = bytearray(kept.choose(source))
    for _ in range(1 << source.randrange(4)):
        at = source.randrange(len(data) + 1)
        end = min(len(data), at + 1 + int(source.expovariate(0.1)))
        what = source.randrange(8)
        if what == 0 and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif what == 1 and at < len(data):
            data[at] = source.randrange(256)
        elif what == 2:
            data[at:end] = b""
        elif what == 3:
            data[at:at] = data[at:end] * source.choice([1, 1, 1, 2, 20])
        elif what in {4, 5}:
            data[at : source.choice([at, end])] = source.choice(words)
        elif what == 6:
            numbers = list(re.finditer(rb"-?\d[\d.eE+-]*", data))
            if numbers:
                data[slice(*source.choice(numbers).span())] = source.choice(NUMBERS)
        else:
            other = kept.choose(source)
            first, last = sorted(source.randrange(len(other) + 1) for _ in range(2))
            data[at:end] = other[first:last]
    return bytes(data[:MOST_BYTES])


def fuzz(target: MergeTarget, feedback: Feedback, now: mmap.mmap, told: argparse.Namespace) -> str:
    """Run inputs for most of the time, then hold those that were kept against Python; returns what was done."""
    source = random.Random(told.seed)
    kept, words = Kept(), target.words()
    found = tried = checked = 0
    end = time.monotonic() + 0.75 * told.seconds
    first = [data[:MOST_BYTES] for data in target.seeds(source)]
    to_come: list[Iterator[bytes]] = []
    while first or (time.monotonic() < end and tried < told.inputs):
        if first:
            data = first.pop()
        elif to_come:
            data = next(to_come[-1], b"")
            if not data:
                to_come.pop()
                continue
        else:
            data = changed(source, kept, words)
        tried += 1
        note(now, tried, data)
        feedback.forget()
        target.run(data)
        is_new = feedback.is_new()
        found += is_new
        if is_new:
            kept.add(data, feedback)
            to_come.append(kept.answers(data, feedback.compared()))
    end += 0.25 * told.seconds
    with tempfile.TemporaryDirectory() as folder:
        for data in source.sample(kept.inputs, len(kept.inputs)):
            if time.monotonic() > end:
                break
            note(now, tried, data)
            target.check(data, Path(folder))
            checked += 1
    ways = f"{len(kept.inputs)} kept for {len(kept.shortest)} ways"
    return f"{tried} inputs, {found} of them new, {ways}, {checked} of these the same in Python: nothing found"


def note(now: mmap.mmap, number: int, data: bytes) -> None:
    """Write down which input runs."""
    now[: HEAD.size + len(data)] = HEAD.pack(number, len(data)) + data


def noted(now: bytes) -> tuple[int, bytes]:
    """Return which input ran: its number and itself."""
    number, size = HEAD.unpack_from(now)
    return number, now[HEAD.size : HEAD.size + size]


def inside(told: argparse.Namespace) -> int:
    """Fuzz the module that was taken into this process; the input that runs stands in a file, whatever happens to the process."""
    extension = next(each for each in cores.extensions() if each.stem == told.inside)
    target = TARGETS[extension.stem]()
    library = sys.modules[extension.name].__file__
    assert library is not None
    with Path(told.now).open("r+b") as file, mmap.mmap(file.fileno(), 0) as now:
        if told.input is not None:
            data = Path(told.input).read_bytes()
            target.run(data)
            with tempfile.TemporaryDirectory() as folder:
                target.check(data, Path(folder))
            print("nothing found")
        else:
            print(fuzz(target, Feedback(Path(library)), now, told))
    return 0


def outside(told: argparse.Namespace) -> int:
    """Build the modules, in all variants, and fuzz each in a process of its own, which may crash."""
    compiler = cores.find_compiler()
    if compiler is None:
        print("no C compiler is here")
        return cores.CANNOT
    wanted = [each for each in cores.extensions() if each.stem in TARGETS]
    share = told.seconds / len(cores.VARIANTS) / len(wanted)
    for number, more in enumerate(cores.VARIANTS):
        for extension in wanted:
            arguments = ["--seconds", str(share), "--seed", str(told.seed + number), "--inputs", str(told.inputs)]
            if told.input is not None:
                arguments += ["--input", str(Path(told.input).resolve())]
            if code := fuzz_one(compiler, extension, more, arguments, keep_failure=told.input is None):
                return code
    return 0


def fuzz_one(
    compiler: str, extension: cores.Extension, more: list[str], arguments: list[str], *, keep_failure: bool
) -> int:
    """Build a module and fuzz it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        edges, now = folder / "edges.o", folder / "input"
        now.write_bytes(bytes(HEAD.size + MOST_BYTES))
        try:
            source = cores.ROOT / "tests" / "native" / "edges.c"
            # Hidden: the sanitizers' library has functions of the same names, which do nothing, and comes first.
            subprocess.run([compiler, "-c", "-O2", "-fPIC", "-fvisibility=hidden", source, "-o", edges], check=True)
            cores.build(extension, folder, compiler, [*cores.SANITIZERS, COUNTED, *more], [edges])
        except subprocess.CalledProcessError as error:
            print(f"the core cannot be built with sanitizers and counted edges: {error}")
            return cores.CANNOT
        command = ["-m", "tests.faults.guided_fuzz", "--inside", extension.stem, "--now", str(now), *arguments]
        done = cores.run_with(folder, command, **cores.sanitizer_variables(compiler))
        print(done.stdout, end="")
        if done.returncode and keep_failure:
            tried, data = noted(now.read_bytes())
            path = Path(tempfile.gettempdir()) / f"tracekit-fuzz-{os.getpid()}.bin"
            path.write_bytes(data)
            print(f"input {tried}: {data!r}\nonce more: scripts/sanitize --input {path}")
    return 1 if done.returncode else 0


def main() -> int:
    """Return 0 if nothing was found, 1 if something was, 77 if it cannot be done here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--inputs", type=int, default=sys.maxsize, help="try no more than so many with each build")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--input", help="run this file's input instead")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--now", help=argparse.SUPPRESS)
    told = parser.parse_args()
    return outside(told) if told.inside is None else inside(told)


if __name__ == "__main__":
    sys.exit(main())
