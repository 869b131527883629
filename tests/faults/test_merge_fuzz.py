"""Fuzzing of merge, seeded: whatever the bytes and whatever the values, it ends in a merge that adds up or in one clear error."""

from __future__ import annotations

import copy
import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.errors import TracekitError
from tracekit.merge import Selection, merge_traces

if TYPE_CHECKING:
    from collections.abc import Callable

BASE_NS = 1_790_857_026_000_000_000
ROUNDS = 150
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30, -(10**30), 0.5, 1e308, -1e-9, "", "0", "x", "1.5",
    "-3", "0x1f", "NaN", " 7 ", "é", "\U0001f600", "\\", '"', "\x00", [], {}, [1], {"a": 1}, {"local": 1}, {"global": "g"},
    [[[]]], {"name": "n"}, {"name": 5}, {"sort_index": "x"}, {"rank": -1}, {"batch": "b"}, "X" * 300, "g", "p", "e",
]  # fmt: skip
KEYS = ["ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "id2", "bind_id", "bp", "s", "args", "tts", "sf", "other"]
NAMES = [
    "x", "process_name", "thread_name", "process_labels", "thread_sort_index", "tracekit_metadata", "tracekit_summary",
    "tracekit_loss", "tracekit_companion", "tracekit_timestamp", "tracekit.gap", "tracekit_dump", "ProfilerStep#3",
]  # fmt: skip


def good_events(random_: random.Random, pid: int) -> list[dict[str, Any]]:
    events = []
    for number in range(random_.randrange(1, 25)):
        phase = random_.choice("XXXXXBEiCsfbenM")
        event: dict[str, Any] = {
            "ph": phase,
            "name": random_.choice(NAMES),
            "pid": pid,
            "tid": random_.choice([pid, 7]),
        }
        event |= {"ts": 10**7 + random_.randrange(5000) / 8, "args": {"n": number}, "cat": random_.choice(["a", "b,c"])}
        if phase == "X":
            event["dur"] = random_.randrange(4000) / 8
        elif phase in "sfben":
            event["id"] = random_.randrange(4)
        events.append(event)
    return events


def good_file(random_: random.Random, rank: int, events: list[dict[str, Any]]) -> bytes:
    own = {"rank": rank, "pid": 100 + rank, "host": "h", "run_id": "r", "baseTimeNanoseconds": BASE_NS}
    if random_.random() < 0.5:
        head = {"ph": "M", "name": "tracekit_metadata", "pid": 100 + rank, "args": own}
        text = "[\n" + ",\n".join(json.dumps(event, ensure_ascii=False) for event in [head, *events]) + "\n]\n"
    else:
        header: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "baseTimeNanoseconds": BASE_NS}
        indent = random_.choice([None, 2])
        text = json.dumps({**header, "traceEvents": events}, indent=indent, ensure_ascii=False)
    return text.encode()


def odd_value(random_: random.Random, depth: int = 0) -> Any:
    if depth < 3 and random_.random() < 0.2:
        return {random_.choice(KEYS): odd_value(random_, depth + 1) for _ in range(random_.randrange(4))}
    return copy.deepcopy(random_.choice(ODD))


def with_odd_values(random_: random.Random, data: bytes) -> bytes:
    """Put values of any type into a file that stays JSON."""
    document = json.loads(data)
    events = document if isinstance(document, list) else document["traceEvents"]
    for _ in range(random_.randrange(1, 12)):
        event = random_.choice(events)
        if isinstance(event, dict):
            key = random_.choice(KEYS)
            if random_.random() < 0.2:
                event.pop(key, None)
            elif key == "args" and isinstance(event.get("args"), dict) and random_.random() < 0.7:
                event["args"][
                    random_.choice(["rank", "pid", "name", "batch", "lost_events", "dropped", "file", "n"])
                ] = odd_value(random_)
            else:
                event[key] = odd_value(random_)
        if random_.random() < 0.1:
            events.insert(random_.randrange(len(events) + 1), odd_value(random_))
    if isinstance(document, dict):
        for _ in range(random_.randrange(3)):
            keys = [
                "tracekit",
                "distributedInfo",
                "deviceProperties",
                "baseTimeNanoseconds",
                "viztracer_metadata",
                "rank",
            ]
            document[random_.choice(keys)] = odd_value(random_)
    return json.dumps(document, ensure_ascii=random_.random() < 0.3).encode("utf-8", "surrogatepass")


def with_odd_bytes(random_: random.Random, data: bytes) -> bytes:
    """Cut, repeat, move, flip and insert bytes."""
    for _ in range(random_.randrange(1, 6)):
        at, end = sorted(random_.randrange(len(data) + 1) for _ in range(2))
        what = random_.randrange(7)
        if what == 0:
            data = data[:at]
        elif what == 1:
            data = data[:at] + data[end:]
        elif what == 2:
            data = data[:end] + data[at : at + 200] + data[end:]
        elif what == 3:
            noise = random_.choice(
                [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\0", b"\xff", b"NaN", b"\\ud83d", b"\n", b'{"ph":"X"']
            )
            data = data[:at] + noise + data[at:]
        elif what == 4 and data:
            place = random_.randrange(len(data))
            data = data[:place] + bytes([random_.randrange(256)]) + data[place + 1 :]
        elif what == 5:
            data = data[:at] + data[end : end + 300] + data[at:end] + data[end:]
        else:
            data = data.replace(b"0", b"", random_.randrange(1, 3))
    return data


def any_selection(random_: random.Random) -> Selection | None:
    options: dict[str, Any] = {
        "ranks": {random_.randrange(3)},
        "steps": (0, random_.choice([1, None])),
        "time_window": (random_.choice([0, 1e-6, None]), random_.choice([1e-4, 1.0, None])),
        "categories": ["a"],
        "exclude_categories": ["b"],
        "min_duration_ns": random_.randrange(10**5),
    }
    return Selection(**{name: options[name] for name in random_.sample(sorted(options), random_.randrange(3))})


def check(folder: Path, random_: random.Random, paths: list[str], outcomes: list[str]) -> None:
    """Merge; hold what comes of it against what is promised."""
    output = folder / random_.choice(["m.json", "m.json", "m.json.gz", "m.pftrace", "m.tar", "m.zip"])
    ranks = {Path(path).name: number for number, path in enumerate(paths)} if random_.random() < 0.9 else {}
    try:
        report = merge_traces(str(output), paths, overwrite=True, ranks=ranks, select=any_selection(random_))
    except TracekitError as error:
        assert "\n" not in str(error)  # noqa: PT017 - the other way is as good
        outcomes.append("error")
    else:
        outcomes.append("merged")
        report.lines()
        json.dumps(report.to_json(), allow_nan=False)
        if output.suffix in (".json", ".gz"):
            data = output.read_bytes()
            merged = json.loads(gzip.decompress(data) if output.suffix == ".gz" else data, parse_constant=refuse)
            assert len(merged["traceEvents"]) == sum(report.events_out.values())
            again = merge_traces(str(folder / "again.json"), [str(output)], overwrite=True)
            # Without a base, a clock of 1970 beside one of today cannot be told from times that count from nowhere.
            assert not report.base_time_ns or not [drop for drop in again.dropped if drop.lost]
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in the output")


def fuzz(seed: int, change: Callable[[random.Random, bytes], bytes]) -> list[str]:
    random_ = random.Random(seed)
    outcomes: list[str] = []
    for round_ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = []
            for rank in range(random_.randrange(1, 4)):
                data = good_file(random_, rank, good_events(random_, 100 + rank))
                if rank == 0 or random_.random() < 0.3:
                    data = change(random_, data)
                packed = random_.random() < 0.2
                path = folder / f"{rank}.json{'.gz' if packed else ''}"
                path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
                if packed and random_.random() < 0.3:
                    path.write_bytes(with_odd_bytes(random_, path.read_bytes()))
                paths.append(str(path))
            try:
                check(folder, random_, paths, outcomes)
            except BaseException as error:
                files = {Path(path).name: Path(path).read_bytes() for path in paths}
                error.add_note(f"seed {seed}, round {round_}: {files}") if hasattr(error, "add_note") else None
                raise
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("change", [with_odd_values, with_odd_bytes])
def test_any_file_ends_in_a_merge_or_one_clear_error(
    seed: int, change: Callable[[random.Random, bytes], bytes]
) -> None:
    outcomes = fuzz(seed, change)
    # Both ways are taken, or this shows nothing.
    assert outcomes.count("merged") > ROUNDS // 4
    assert outcomes.count("error") > 0


def forms() -> dict[str, bytes]:
    """Return one small file in each of the forms that merge reads, with text that looks like its end."""
    events = [
        {
            "ph": "X",
            "name": f"a]}},{{ {number}",
            "pid": 100,
            "tid": 7,
            "ts": 10**7 + number,
            "dur": 0.5,
            "args": {"x": [number]},
        }
        for number in range(4)
    ]
    own = {"rank": 0, "pid": 100, "host": "h", "baseTimeNanoseconds": BASE_NS}
    rank = [{"ph": "M", "name": "tracekit_metadata", "pid": 100, "args": own}, *events]
    torch = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, "traceName": "x"}
    array = ("[\n" + ",\n".join(map(json.dumps, rank)) + "\n]\n").encode()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rank0.json").write_bytes(array)
        merge_traces(f"{folder}/merged.json", [f"{folder}/rank0.json"])
        merged = (Path(folder) / "merged.json").read_bytes()
    members = b"".join(gzip.compress(line, mtime=0) for line in array.splitlines(keepends=True))
    return {
        "array": array,
        "object": json.dumps(torch).encode(),
        "indented": json.dumps(torch, indent=2).encode(),
        "packed": gzip.compress(json.dumps(torch).encode(), mtime=0),
        "packed in members": members,
        "merged": merged,
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["array", "object", "indented", "packed", "packed in members", "merged"])
def test_every_prefix_of_a_file_gives_its_events_so_far(tmp_path: Path, form: str) -> None:
    data = forms()[form]
    path, output = tmp_path / "rank0.json", tmp_path / "out.json"
    most = 0
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        try:
            report = merge_traces(str(output), [str(path)], overwrite=True)
        except TracekitError as error:
            assert not most, f"{length} bytes give nothing, and fewer gave {most} events: {error}"  # noqa: PT017
            continue
        found = report.events_in.get("X", 0)
        assert most <= found <= 4
        assert sum(report.events_out.values()) == len(json.loads(output.read_text())["traceEvents"])
        most = found
    assert most == 4
