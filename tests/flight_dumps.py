"""Dumps of torch's flight recorder as NCCL leaves them, and as torch writes them: in JSON and as a pickle.

They are made after torch's own source; real ones are recorded by tests/integration/test_flight_dumps_of_torch.py.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

BASE_NS = 1_795_291_887_000_000_000
MS = 1_000_000


def entry(
    number: int,
    name: str = "nccl:all_reduce",
    *,
    created_ns: int,
    started_ns: int | None = None,
    completed_ns: int | None = None,
    group: tuple[str, str] = ("0", "default_pg"),
    pg_id: int = 0,
    seq: int | None = None,
    p2p_seq: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return one collective, as the pickle has it."""
    state = "completed" if completed_ns else "started" if started_ns else "scheduled"
    return {
        "frames": [{"name": "train", "filename": "/home/ann/train.py", "line": 7 + number}],
        "record_id": number,
        "pg_id": pg_id,
        "process_group": group,
        "thread_name": "pt_main",
        "thread_id": "140480970779520",
        "collective_seq_id": number + 1 if seq is None else seq,
        "p2p_seq_id": p2p_seq or 0,
        "op_id": number + 1,
        "profiling_name": name,
        "time_created_ns": created_ns,
        "input_sizes": [[4, 4], []],
        "input_dtypes": ["Float", "Long"],
        "output_sizes": [[8, 4]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": started_ns,
        "time_discovered_completed_ns": completed_ns,
        "retired": completed_ns is not None,
        "timeout_ms": 600_000,
        "is_p2p": p2p_seq is not None,
        **more,
    }


def dump(entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a dump of one rank of two."""
    return {
        "version": "2.10",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
            "1": {"name": "1", "desc": "undefined", "ranks": "[0]"},
        },
        "comm_lib_version": "2.27.5",
        "pg_status": {
            "0": {"last_enqueued_collective": 4, "last_started_collective": 3, "last_completed_collective": 2},
        },
        "entries": entries,
        **more,
    }


def hung(at_ns: int = BASE_NS) -> dict[str, Any]:
    """Return a dump of a rank that hangs in its third collective.

    Two collectives that were in flight at once, a send and a receive that were launched as one, one that started, one that
    waits behind it, and one of another group that timed out.
    """

    def at(ms: float) -> int:
        return at_ns + round(ms * MS)

    p2p = {"seq": 2, "p2p_seq": 1}
    return dump(
        [
            entry(0, created_ns=at(0), started_ns=at(2), completed_ns=at(9), duration_ms=6.5),
            entry(1, "nccl:_all_gather_base", created_ns=at(1), started_ns=at(10), completed_ns=at(12)),
            entry(2, "nccl:send 0->1", created_ns=at(13), **p2p),
            entry(3, "nccl:recv 0<-1", created_ns=at(13.5), **p2p),
            entry(4, "nccl:coalesced", created_ns=at(14), started_ns=at(15), completed_ns=at(16), **p2p),
            entry(5, created_ns=at(20), started_ns=at(21), seq=3),
            entry(6, "nccl:reduce_scatter", created_ns=at(30), seq=4),
            entry(7, "nccl:barrier", created_ns=at(31), group=("1", "undefined"), pg_id=1, seq=1, retired=True),
        ]
    )


def as_pickle(value: Any, protocol: int = 2) -> bytes:
    """Return a dump as torch's watchdog writes it."""
    return pickle.dumps(value, protocol=protocol)


def as_json(value: dict[str, Any]) -> bytes:
    """Return a dump as ``_dump_nccl_trace_json`` gives it: sorted, without frames, 0 for no time, texts for the status."""
    entries = [
        {key: 0 if item is None else item for key, item in found.items() if key != "frames"}
        for found in value["entries"]
    ]
    status = {group: {key: str(number) for key, number in found.items()} for group, found in value["pg_status"].items()}
    whole = {**value, "entries": entries, "pg_status": status}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
