"""The encoders of native traces in C and in Python write the same bytes."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.both_cores import damaged
from tracekit import core
from tracekit.errors import StorageError
from tracekit.merge.write import pftrace_output
from tracekit.merge.write.pftrace_output import PacketEncoder

pytestmark = pytest.mark.core

NAMES = ["aten::add", "", "π\U0001f600", 'say "hi"\n', "back\\slash", "\x01", "x" * 300, "\u2028", "k" * 40]
PHASES = "XXXXXXXXBBEEbenSFTpiIRstfsfCCCMPND"
SCALARS: list[Any] = [
    0, 1, -1, 127, 128, 2**31, 2**53, 10**17, 10**18, 2**63 - 1, -(2**63), 2**64 - 1, 10**25, 0.5, -0.25, 1e-7, 1e22, 1.0,
    123456.789, 5e-324, 1.7976931348623157e308, True, False, None, "", "text", "y" * 250, 'q"\\', "\U0001f680", [], {},
]  # fmt: skip
KEYS = [
    "External id",
    "correlation",
    "Seq",
    "Process Group Name",
    "Process Group Ranks",
    "rss_bytes",
    *["a", "b", "", "k\n", "π"],
]


def value(source: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    if depth < 4 and source.random() < 0.2:
        return [value(source, depth + 1) for _ in range(source.randrange(4))]
    if depth < 4 and source.random() < 0.2:
        return {source.choice(KEYS): value(source, depth + 1) for _ in range(source.randrange(4))}
    return source.choice(SCALARS)


def event(source: random.Random) -> str:
    """Return an event as the merge writes it, now and then with fields that viewers pass over."""
    phase = source.choice(PHASES)
    text: dict[str, Any] = {"ph": phase, "cat": source.choice(["cpu_op", "ac2g", ""]), "name": source.choice(NAMES)}
    if phase == "X" and source.random() < 0.95:
        text["dur"] = source.choice([0, 0.001, 1, 2.5, 3, 1000])
    if phase in "stf" or source.random() < 0.03:
        text["id"] = source.choice([1, 2, 3, 10**17])
    if phase in "benSFTp":
        text[source.choice(["id", "id2"])] = source.choice([5, "0x1f", {"local": 3}, {"local": 'a " b'}])
    if phase == "f" and source.random() < 0.7:
        text["bp"] = "e"
    if phase in "iIR" and source.random() < 0.7:
        text["s"] = source.choice("tp")
    if source.random() < 0.05:
        text.update(bind_id=source.choice([7, 8]), flow_out=True, flow_in=source.random() < 0.5)
    if source.random() < 0.05:
        text.update(tts=source.choice([1, 2.5]), cname="good", sf=["f (c)", "g"])
    if source.random() < 0.03:
        text["mine"] = value(source)
    if phase == "C":
        text["args"] = {source.choice(KEYS): source.choice([1, -2, 2.5, 1e300, 10**16]) for _ in range(2)}
    elif source.random() < 0.8:
        text["args"] = {source.choice(KEYS): value(source) for _ in range(source.randrange(6))}
    head = json.dumps(text, ensure_ascii=source.random() < 0.5, separators=source.choice([(",", ":"), (", ", ": ")]))
    pid, tid = source.randrange(1, 4), str(source.choice([1, 2, 3 * 2**30])).ljust(10)
    time = source.choice(["%d.000", "%d", "%d.500"]) % source.randrange(8)
    return f'{head[:-1]},"pid":{pid},"tid":{tid},"ts":{time}}}'


def text_of(source: random.Random) -> bytes:
    """Return a run of events."""
    return source.choice([",", ",\n", " , "]).join(event(source) for _ in range(source.randrange(1, 60))).encode()


def encoded(runs: list[bytes]) -> bytes | type[Exception]:
    """Return the packets of runs of events, or the kind of error."""
    part = PacketEncoder(3, 1_790_857_026_000_000_000, 2**63 + 17, tempfile.gettempdir())
    try:
        return b"".join([part.encode(run) for run in runs] + list(part.close([], lambda **_: b"")))
    except ValueError as error:
        return type(error)


@pytest.mark.parametrize("seed", range(40))
def test_the_core_writes_the_same_bytes_as_python(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    source = random.Random(seed)
    runs = [text_of(source) for _ in range(4)]
    if seed % 3 == 0:
        monkeypatch.setattr(pftrace_output, "MAX_TEXTS", source.choice([0, 1, 5]))
    if seed % 4 == 0:
        monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", source.choice([0, 1000, 5000]))
    found = encoded(runs)
    assert isinstance(found, bytes)
    with monkeypatch.context() as patch:
        patch.setattr(core, "merge", None)
        assert encoded(runs) == found
    for run in runs:  # damaged, they are packets or an error
        assert encoded([damaged(source, run)]) is not None


def test_keys_that_differ_in_escapes_only_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b'{"ph":"i","s":"t","name":"a","pid":1,"tid":1,"ts":1,"args":'
    keys = [rb'"a\\nb"', rb'"a\nb"', rb'"a\u005cnb"', rb'"c\\"', rb'"c"']
    runs = [b",".join(b"%b{%b:1}}" % (head, key) for key in [*keys, *reversed(keys)])]
    found = encoded(runs)
    monkeypatch.setattr(core, "merge", None)
    assert encoded(runs) == found


def test_the_core_encodes_usual_events_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []
    monkeypatch.setattr(PacketEncoder, "_add", lambda self, events: given.append(events) or b"")
    usual = (
        b'{"ph":"X","cat":"kernel","name":"a \\"b\\"","pid":1,"tid":7         ,"ts":1.000,"dur":2.000,"args":{"n":[1,{"x":2}]}},'
        b'{"ph":"s","id":5,"cat":"ac2g","name":"ac2g","pid":1,"tid":7         ,"ts":1.000},'
        b'{"ph":"b","cat":"task","id2":{"local":"0x1"},"name":"t","pid":1,"tid":7         ,"ts":1.000,"sf":["f"]},'
        b'{"ph":"C","name":"memory","pid":1,"tid":7         ,"ts":1.000,"args":{"used_bytes":1.5,"free":2}}'
    )
    encoded([usual])
    assert given == []


EVENT = b'{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}'


def test_a_failing_disk_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", 0)
    encoder = PacketEncoder(3, 0, 0, str(tmp_path / "missing"))
    with pytest.raises(StorageError, match=r"the scratch file in .*missing cannot be written or read: .*No such file"):
        encoder.encode(EVENT)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the file without a name in /proc")
def test_a_scratch_file_that_is_lost_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pftrace_output, "MAX_MEMORY_BYTES", 0)
    encoder = PacketEncoder(3, 0, 0, str(tmp_path))
    encoder.encode(EVENT)
    assert list(tmp_path.iterdir()) == []
    opened = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    [scratch] = [path for path in opened if str(tmp_path) in str(path.readlink())]
    os.truncate(scratch, 0)
    with pytest.raises(StorageError, match=r"the scratch file in .* cannot be written or read"):
        list(encoder.close([], lambda **_: b""))
