"""Compare the compiled core with pure Python: odd traces, and the output and report of their merge."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any
from unittest import mock

from tracekit import core
from tracekit.errors import TracekitError
from tracekit.formats import byte_stream
from tracekit.merge import merge_traces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from random import Random


_SIZE = re.compile(r"\(\d.*?B\)")
"""The size of the output: the core writes other white space."""

SPACES = ["", "", "", " ", "\n    ", "\t", "\r\n", "\n" + 40 * " ", 120 * " "]
USUAL_PLACES = ["5", "5", "5", "77", "0", "-1"]
ODD_PLACES = [
    '"a"', '"Spans"', '"stream 7"', '"id"', '"pid"', '"g"', '"\\u0035"', "5.0", "5.5", "null", "true", "-0", "1e2",
    "123456789012345678", "1234567890123456789", "[5]", "05", '"x\\"pid"',
]  # fmt: skip
ODD_TIMES = [
    "0", "7", "0.5", "0.500", "1.25", "12.345", "12.3455", "12.3445", "0.0005", "1e3", "1.5e-3", "2E+2", "-1.500", "-0.0005",
    "-0", "1712345678901234.567", "1712345678901234", "1712345678901234.5", "999999999999.999", "1000000000000.001",
    "9223372036854775.807", "9223372036854775.808", "99999999999999999", "12345678901234567.000", '"12.500"', '" 3 "', "null",
    "true", "[1.000]", "01.000", "1.", ".5", "+1", "NaN", "1.0000000000000000000000000000000001", "3e99", "1e400",
]  # fmt: skip
NAMES = [
    "aten::add", "", "π", "\U0001f600", "pid", "id", "g", "x pid", "{", "}, {", "\\\\", "\\u0070id", "\\\\u", "nccl:all_reduce",
    'a \\"pid\\": 3, \\"tid\\": 3, \\"ts\\": 4.000', "ncclDevKernel_AllReduce", "ProfilerStep#3", "gloo:all_reduce",
    "tracekit.gap", "record_param_comms", "a" * 15, "a" * 16, "a" * 17, "b" * 300, "\\/\\b\\f\\n\\r\\t", "\\x", "\\ud83d\\ude00",
    "\\ud83d", "\x01", "\x7f",
]  # fmt: skip
IDS = ["1", "99", "123456789", "1234567890", "0", "00", '"0x1f"', "1.0", "-4", "null", "2e1", '{"local": 1}']
KEYS = [
    "External id", "external id", "xternal id", "cxternal id", "correlation", "my correlation", "pid", "tid", "ts", "id", "x", "",
    "Ev Idx", "\\u0069d", 'says \\"External id', "rank", "xpid",
]  # fmt: skip
SCALARS = [
    "0", "1", "4294967295", "99999999999", "-3", "1.5", "1e5", "true", "false", "null", '"x"', '"id"', '"g"', '"\\\\"',
]  # fmt: skip
ODD_SCALARS = [
    "tru", "nul", "01", "1.e", "--1", "'x'", '"\n"', "1e309", "9" * 70, "[" * 70 + "]" * 70, '{"a" 1}', "[1,]", '{"a":1,}',
]  # fmt: skip
MANY_IDS = "{" + ",".join(['"correlation": 7'] * 300) + "}"
PHASES = [
    *20 * ["X"], *3 * ["s", "f", "i", "C"], "t", "I", "M", "B", "E", "b", "e", "n", "O", "", "XX", "é", "\\u0058", "\\n",
]  # fmt: skip


def value(random: Random, odd: float, depth: int = 0) -> str:
    """Return some JSON, rarely broken."""
    kind = random.random()
    if random.random() < odd / 20:
        return random.choice(ODD_SCALARS)
    if depth > 3 or kind < 0.5:
        return random.choice(SCALARS)
    space = random.choice(SPACES)
    parts = [value(random, odd, depth + 1) for _ in range(random.randrange(5))]
    if kind < 0.6:
        return "[" + space + f",{space}".join(parts) + space + "]"
    return (
        "{" + space + f",{space}".join(f'"{random.choice(KEYS)}"{space}:{space}{part}' for part in parts) + space + "}"
    )


def event(random: Random, odd: float, at_ns: int, space: str = " ", phases: str = "XXXXXXsfiC") -> str:
    """Return an event as JSON: as writers write it, or with a chance of ``odd`` for each of its parts not."""

    def strange() -> bool:
        return random.random() < odd

    def time_of(ns: int) -> str:
        return random.choice(ODD_TIMES) if strange() else f"{ns // 1000}.{ns % 1000:03}"

    phase = random.choice(PHASES) if strange() else random.choice(phases)
    fields = {"ph": f'"{phase}"', "cat": '"c"', "name": f'"{random.choice(NAMES) if strange() else "step"}"'}
    if phase in "stfben" or strange():
        fields["id"] = random.choice(IDS) if strange() else str(random.randrange(1000))
    for key in ("pid", "tid"):
        fields[key] = random.choice(ODD_PLACES) if strange() else random.choice(USUAL_PLACES)
    fields["ts"] = time_of(at_ns)
    if phase == "X" or strange():
        fields["dur"] = time_of(random.choice([0, 5, 900, 2_000, 40_000]))
    if phase in "iI":
        fields["s"] = random.choice(['"t"', '"t"', '"t"', '"g"'])
    if phase == "C":
        fields["args"] = '{"loss": 0.25}'
    if random.random() < 0.6:
        usual = f'{{"External id": {random.randrange(10**6)}, "correlation": {random.randrange(10**6)}}}'
        fields["args"] = value(random, odd) if random.random() < 0.5 else usual
    if random.random() < odd / 10:
        fields["args"] = MANY_IDS
    pairs = list(fields.items())
    if random.random() < odd / 2:
        pairs.append(
            (random.choice(["bind_id", "other", "tts", "id2", "bp", "flow_in", "sf", "args"]), value(random, odd))
        )
    if random.random() < odd / 4:
        pairs.append(random.choice(pairs))
    if random.random() < odd / 4:
        random.shuffle(pairs)
    if random.random() < odd / 4:
        del pairs[random.randrange(len(pairs))]
    space = random.choice(SPACES) if strange() else space
    return "{" + f",{space}".join(f'"{key}":{space}{text}' for key, text in pairs) + space + "}"


def trace(random: Random, most_events: int = 60) -> bytes:
    """Return a trace: some are all usual, some have something odd here and there, some everywhere; few are damaged."""
    odd = random.choice([0.0, 0.0, 0.003, 0.01, 0.05, 0.3])
    between = random.choice([",", ",\n", ", ", "\n,\n  "])
    space = random.choice(["", "", " ", "\n "])
    phases = random.choice(["XXXXXXsfiC", "XXXXXXsfiCM", "X"])
    clock = random.choice([0, 0, 1_000_000, 10**15, 1_712_345_678 * 10**9])
    texts = []
    for _ in range(random.randrange(1, most_events)):
        clock += random.randrange(3_000)
        at_ns = clock if random.random() > 0.02 else max(0, clock - 10**6)
        texts.append(event(random, odd, at_ns, space, phases))
    body = between.join(texts)
    own = random.choice(["", '{"ph":"M","name":"tracekit_metadata","pid":5,"args":{"rank":0}}' + between])
    head = random.choice(['{"baseTimeNanoseconds": 1712345678000000000, "traceEvents": [', '{"traceEvents": ['])
    text = ("[" + own + body + "]" if own or random.random() < 0.3 else head + body + "]}").encode()
    return damaged(random, text) if random.random() < odd else text


def damaged(random: Random, data: bytes) -> bytes:
    """Cut, repeat, flip and insert bytes."""
    for _ in range(random.randrange(1, 4)):
        at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
        what = random.randrange(4)
        if what == 0:
            data = data[:at]
        elif what == 1:
            data = data[:at] + data[min(end, at + 50) :]
        elif what == 2:
            data = data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
        else:
            noise = [*(b"%c" % char for char in b'"\\{}[],\0\xff'), b"\\u", b"\n", b"e5", b"\xf0\x9f\x98\x80"]
            data = data[:at] + random.choice(noise) + data[at:]
    return data


@contextlib.contextmanager
def small_pieces(piece_bytes: int = 700) -> Iterator[None]:
    """Read files in small pieces, and sort in scratch files early."""
    with (
        mock.patch.object(byte_stream, "PIECE_BYTES", piece_bytes),
        mock.patch("tracekit.traces.external_sort.MAX_MEMORY_BYTES", 1000),
    ):
        yield


def pure() -> Any:
    """Return what forces pure Python in a ``with``."""
    return mock.patch.object(core, "merge", None)


def merged(
    paths: list[Path], output: Path, *, ranks: Sequence[int] | None = None, **options: Any
) -> tuple[Any, list[str]] | str:
    """Return the decoded output of a merge, of files of different ranks by default, and its report without sizes."""
    try:
        report = merge_traces(
            str(output),
            [str(path) for path in paths],
            overwrite=True,
            ranks=dict(zip((path.name for path in paths), ranks or range(len(paths)), strict=True)),
            **options,
        )
    except TracekitError as error:
        return str(error)
    return json.loads(output.read_bytes(), parse_float=str), [_SIZE.sub("", line) for line in report.lines()]


def assert_same(found: Any, other: Any) -> None:
    """Compare two merges."""
    assert found == other
