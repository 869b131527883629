"""What one rank of a torch job writes: a model of real torch.profiler traces, from which files of any size are made.

Where it comes from: ranks 0 to 3 of an 8-GPU NCCL run (one step of DLRM, V100, torch 2.1) and two ranks of a gloo run with
stacks, shapes and memory (torch 2.13). Counted there, and kept here:

* the kinds of events: `SHARES` is the mean of both recordings, in which GPU work and Python stacks take half each;
* the order: metadata first; operators and annotations by start; memory instants; Python calls; runtime calls, each with its
  arrow and its kernel. A track is in order within a part, not in the file;
* the layout: one field a line, times in microseconds with three decimals relative to Kineto's base;
* the shape: calls nest 10 to 35 deep on a thread that does 60 % of the work, beside an autograd thread; kernels follow
  each other on three streams; a runtime call that launches has an ``s`` and its kernel the ``f``, all others an ``f`` alone;
* the arguments, and how often names repeat: 440 different ones in 2700 slices; about 340 bytes an event, a kernel's taking
  900 since its name is that long; eleven times smaller when packed.

Names, numbers and texts are made up by a seeded generator: nothing is taken from a recording.

Making an event in Python costs more than merging it, so a few steps are drawn once, as templates in which every number that
differs between steps is left open; a step of the file is one ``%``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

    from tests.benchmarks.vocabulary import Vocabulary

SHARES = {
    "python_function": 0.357,
    "cpu_op": 0.339,
    "cuda_runtime": 0.080,
    "cpu_instant_event": 0.039,
    "kernel": 0.037,
    "user_annotation": 0.010,
    "fwdbwd": 0.0034,
    "gpu_memcpy": 0.0025,
}
"""Of all events, by category. To them come the arrows of GPU work: an ``f`` for each runtime call, an ``s`` for each launch."""

MAIN_SHARE = 0.6
EVENT_NS = 15_000
"""Time of a step for each of its events."""
COMPUTE_STREAM, COPY_STREAM, NCCL_STREAM = 7, 24, 20
GPUS = 8
FIRST_ID = 1_000_000
"""Ids are written with the same number of digits in every step, or nearly."""

_OPEN = "\0"
_DEPTH = {True: 20, False: 4}


@dataclass(frozen=True, slots=True)
class Rank:
    """Whose events they are.

    Attributes:
        number: The rank.
        world_size: Of how many.
        start_us: When its first step starts, in the file's own time.
    """

    number: int
    world_size: int
    start_us: int

    @property
    def pid(self) -> int:
        """Process id; that of the main thread too."""
        return 4000 + 3 * self.number

    @property
    def autograd_tid(self) -> int:
        """Thread of the backward pass."""
        return self.pid + 1

    @property
    def gpu(self) -> int:
        """Number of the GPU, which Kineto takes for a pid."""
        return self.number % GPUS


@dataclass(frozen=True, slots=True)
class _Slice:
    start_ns: int
    end_ns: int
    kind: str
    main: bool


class Part:
    """Some events of a step, as text with places for the numbers that differ between steps."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._numbers: list[tuple[int, int]] = []
        self._template = b""

    def add(self, text: str, *numbers: tuple[int, int]) -> None:
        """Add an event: each NUL in ``text`` stands for one of ``numbers``, a first value and its growth from step to step."""
        self._pieces.append(text)
        self._numbers += numbers

    def finish(self) -> Part:
        """Make the template."""
        self._template = "".join(self._pieces).replace("%", "%%").replace(_OPEN, "%d").encode()
        self._pieces.clear()
        return self

    def of_step(self, step: int) -> bytes:
        """Return the events of a step, each behind a comma."""
        return self._template % tuple([first + step * growth for first, growth in self._numbers])


def make_step(random: Random, words: Vocabulary, rank: Rank, events: int) -> tuple[Part, ...]:
    """Draw a step with about so many events.

    Returns:
        The step's share of each part of the file, in the order of the file. Steps that were drawn with the same number of
        events can take turns in one file.
    """
    return _Step(random, words, rank, events).parts()


class _Step:
    def __init__(self, random: Random, words: Vocabulary, rank: Rank, events: int) -> None:
        self._random = random
        self._words = words
        self._rank = rank
        self._period_us = events * EVENT_NS // 1000
        self._ids = events
        self._next_id = FIRST_ID
        self._count = {kind: max(1, round(share * events)) for kind, share in SHARES.items()}

    def parts(self) -> tuple[Part, ...]:
        cpu, memory, python, gpu = Part(), Part(), Part(), Part()
        slices = self._calls(main=True) + self._calls(main=False)
        slices.sort(key=lambda found: found.start_ns)
        self._step_annotation(cpu)
        for found in slices:
            if found.kind == "python_function":
                self._python_call(python, found)
            elif found.kind != "cuda_runtime":
                self._operator(cpu, found)
        self._arrows_to_backward(cpu, slices)
        for _ in range(self._count["cpu_instant_event"]):
            self._memory(memory)
        self._gpu(gpu, [found for found in slices if found.kind == "cuda_runtime"])
        return cpu.finish(), memory.finish(), python.finish(), gpu.finish()

    def _calls(self, *, main: bool) -> list[_Slice]:
        """Draw the slices of a thread: a walk up and down the stack, at moments that are all different."""
        random = self._random
        share = MAIN_SHARE if main else 1 - MAIN_SHARE
        counts = {kind: round(self._count[kind] * share) for kind in ("cpu_op", "cuda_runtime", "user_annotation")}
        if main:
            counts["python_function"] = self._count["python_function"]
        kinds = [kind for kind, count in counts.items() for _ in range(count)]
        random.shuffle(kinds)
        # Up to four fifths of the step: the rest is for the GPU to finish.
        moments = sorted(random.sample(range(2_000, self._period_us * 800), 2 * len(kinds)))
        found: list[_Slice] = []
        stack: list[tuple[int, str]] = []
        for moment in moments:
            leaf = bool(stack) and stack[-1][1] == "cuda_runtime"
            up = kinds and not leaf and (not stack or random.random() < 0.5 + 0.04 * (_DEPTH[main] - len(stack)))
            if up:
                stack.append((moment, kinds.pop()))
            else:
                start, kind = stack.pop()
                found.append(_Slice(start, moment, kind, main))
        return found

    def _step_annotation(self, part: Part) -> None:
        whole = _Slice(1_000, self._period_us * 900, "user_annotation", main=True)
        self._slice(
            part, whole, f"ProfilerStep#{_OPEN}", '"External id": \0,"Record function id": 0, "Ev Idx": \0', (0, 1)
        )

    def _operator(self, part: Part, found: _Slice) -> None:
        random = self._random
        if found.kind == "user_annotation":
            args = '"External id": \0,"Record function id": 0, "Ev Idx": \0'
            self._slice(part, found, random.choice(self._words.annotations), args)
            return
        name, described = random.choice(self._words.operators)
        sequence = f'"Sequence number": {random.randint(1, 900)}, "Fwd thread id": {int(not found.main)}, '
        args = (
            f'"External id": \0,{sequence if random.random() < 0.15 else ""}"Record function id": 0, '
            f'{described}, "Ev Idx": \0'
        )
        self._slice(part, found, name, args)

    def _python_call(self, part: Part, found: _Slice) -> None:
        name = self._random.choice(self._words.functions)
        self._slice(part, found, name, '"Python parent id": \0, "Python id": \0, "Ev Idx": \0', ids=3)

    def _memory(self, part: Part) -> None:
        random = self._random
        moment = random.randrange(self._period_us * 800)
        number = random.randint(-4096, 4096) * 512
        part.add(
            ',\n  {\n    "ph": "i",\n    \n    "cat": "cpu_instant_event",\n    "s": "t",\n    "name": "[memory]",\n'
            f'    "pid": {self._rank.pid},\n    "tid": {self._rank.pid},\n    "ts": {_OPEN}.{moment % 1000:03}\n    ,\n'
            f'    "args": {{\n      "Total Reserved": 0, "Total Allocated": {random.getrandbits(30)}, "Bytes": {number}, '
            f'"Device Id": -1, "Device Type": 0, "Addr": {94 << 40 | random.getrandbits(36)}, "Ev Idx": {_OPEN}\n    }}\n  }}',
            self._time(moment),
            self._id(),
        )

    def _gpu(self, part: Part, calls: list[_Slice]) -> None:
        """Write runtime calls; some launch, and what they launch waits for its stream."""
        random, count = self._random, self._count
        launched = ["kernel"] * count["kernel"] + ["gpu_memcpy"] * count["gpu_memcpy"]
        random.shuffle(launched)
        launches = dict(
            zip(sorted(random.sample(range(len(calls)), min(len(launched), len(calls)))), launched, strict=False)
        )
        # What all of it takes at most fits behind the last call.
        longest_ns = self._period_us * 100 // (len(launches) + 1)
        free_ns = {COMPUTE_STREAM: 0, COPY_STREAM: 0}
        for position, call in enumerate(calls):
            kind = launches.get(position)
            correlation = self._id()
            tid = self._rank.pid if call.main else self._rank.autograd_tid
            name = (
                "cudaLaunchKernel"
                if kind
                else random.choice(("cudaEventRecord", "cudaStreamIsCapturing", "cudaMalloc"))
            )
            args = '"External id": \0, "cbid": 211, "correlation": \0'
            self._slice(part, call, name, args, together=correlation)
            if kind is None:
                self._arrow(part, "f", "ac2g", self._rank.pid, tid, call.start_ns, correlation)
                continue
            self._arrow(part, "s", "ac2g", self._rank.pid, tid, call.start_ns, correlation)
            stream = COMPUTE_STREAM if kind == "kernel" else COPY_STREAM
            start_ns = max(free_ns[stream], call.end_ns + 3_000)
            free_ns[stream] = start_ns + 900 + int(random.random() ** 3 * (longest_ns - 1_000))
            self._device_work(part, _Slice(start_ns, free_ns[stream] - 1, kind, main=False), stream, correlation)
            self._arrow(part, "f", "ac2g", self._rank.gpu, stream, start_ns, correlation)
        # One all-reduce a step: it starts when the rank gets there and ends on all ranks together.
        end_ns = self._period_us * 950
        reduce = _Slice(end_ns - random.randint(20_000, 60_000), end_ns + random.randint(0, 900), "kernel", main=False)
        self._device_work(part, reduce, NCCL_STREAM, self._id(), collective=True)

    def _device_work(
        self, part: Part, found: _Slice, stream: int, correlation: tuple[int, int], *, collective: bool = False
    ) -> None:
        random, gpu = self._random, self._rank.gpu
        place = f'"device": {gpu}, "context": 1,\n      "stream": {stream}, "correlation": \0'
        numbers = []
        if found.kind == "gpu_memcpy":
            name = "Memcpy HtoD (Pageable -> Device)"
            args = (
                f'"External id": \0,\n      {place},\n      "bytes": {random.randint(1, 1 << 20)}, '
                f'"memory bandwidth (GB/s)": {random.random()!r}'
            )
        else:
            name, launch = random.choice(self._words.kernels)
            if collective:
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            args = f'"External id": \0,\n      "queued": 0, {place},\n{launch}'
            if collective:
                ranks = ", ".join(map(str, range(min(self._rank.world_size, 30))))
                shown = f"[{ranks}]" if self._rank.world_size <= 30 else f"[{ranks}, ...]"
                args += (
                    ',\n      "Collective name": "allreduce", "In msg nelems": 394241, "Out msg nelems": 394241, '
                    f'"Group size": {self._rank.world_size}, "dtype": "Float", "Process Group Name": "0", '
                    f'"Process Group Description": "default_pg", "Process Group Ranks": "{shown}", "Seq": \0'
                )
                numbers.append((1, 1))
        self._slice(part, found, name, args, together=correlation, place=(gpu, stream), last=numbers)

    def _arrows_to_backward(self, part: Part, slices: list[_Slice]) -> None:
        forward = [found for found in slices if found.kind == "cpu_op" and found.main]
        backward = [found for found in slices if found.kind == "cpu_op" and not found.main]
        pairs = min(self._count["fwdbwd"], len(forward), len(backward))
        for number in range(pairs):
            arrow = (1 + number, pairs)
            self._arrow(part, "s", "fwdbwd", self._rank.pid, self._rank.pid, forward[number].start_ns, arrow)
            self._arrow(
                part, "f", "fwdbwd", self._rank.pid, self._rank.autograd_tid, backward[-1 - number].start_ns, arrow
            )

    def _arrow(
        self, part: Part, phase: str, kind: str, pid: int, tid: int, at_ns: int, number: tuple[int, int]
    ) -> None:
        tail = ', "bp": "e"' if phase == "f" else ""
        part.add(
            f',\n  {{\n    "ph": "{phase}",\n    "id": {_OPEN},\n    "pid": {pid},\n    "tid": {tid},\n'
            f'    "ts": {_OPEN}.{at_ns % 1000:03},\n    "cat": "{kind}",\n    "name": "{kind}"\n    {tail}\n  }}',
            number,
            self._time(at_ns),
        )

    def _slice(
        self,
        part: Part,
        found: _Slice,
        name: str,
        args: str,
        *first: tuple[int, int],
        ids: int = 2,
        together: tuple[int, int] | None = None,
        place: tuple[int, int] | None = None,
        last: Any = (),
    ) -> None:
        """Write a slice; the open numbers of ``args`` are new ids, or ``together`` for all of them."""
        pid, tid = place or (self._rank.pid, self._rank.pid if found.main else self._rank.autograd_tid)
        duration_ns = found.end_ns - found.start_ns
        numbers = [self._id() for _ in range(ids)] if together is None else [together] * 2
        part.add(
            f',\n  {{\n    "ph": "X",\n    "cat": "{found.kind}",\n    "name": "{name}",\n    "pid": {pid},\n    "tid": {tid},\n'
            f'    "ts": {_OPEN}.{found.start_ns % 1000:03},\n    "dur": {duration_ns // 1000}.{duration_ns % 1000:03}\n    ,\n'
            f'    "args": {{\n      {args}\n    }}\n  }}',
            *first,
            self._time(found.start_ns),
            *numbers,
            *last,
        )

    def _time(self, at_ns: int) -> tuple[int, int]:
        return self._rank.start_us + at_ns // 1000, self._period_us

    def _id(self) -> tuple[int, int]:
        self._next_id += 1
        return self._next_id, 4 * self._ids
