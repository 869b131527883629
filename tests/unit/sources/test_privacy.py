"""What a private recording says of its process, and what torch.profiler's files say."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import privacy
from tracekit.distributed import ProcessInfo, detect_process
from tracekit.sources.torch_window import hide_origin

if TYPE_CHECKING:
    from pathlib import Path

HOST = "gpu-node-17.cluster.example"
BOOT = "53c2ee1b-a65b-4f4f-9a4f-7b1d7d6b2f11"


def process() -> ProcessInfo:
    return dataclasses.replace(detect_process(environ={}), run_id="123.0", host=HOST, boot_id=BOOT)


@pytest.mark.parametrize(
    ("argument", "variable", "wanted"),
    [
        (None, None, False),
        (None, "", False),
        (None, "0", False),
        (None, "1", True),
        (False, "1", False),
        (True, "0", True),
    ],
)
def test_the_argument_counts_before_the_environment(argument: bool | None, variable: str | None, wanted: bool) -> None:
    environ = {} if variable is None else {"TRACEKIT_PRIVATE": variable}
    assert privacy.is_wanted(argument, environ) is wanted


def test_nothing_of_the_host_is_left_and_ranks_of_one_run_can_still_be_told_to_share_it() -> None:
    def private(**changes: Any) -> ProcessInfo:
        return privacy.anonymous(dataclasses.replace(process(), **changes), environ={})

    here = private()
    assert here.private
    assert not [text for text in (HOST, "gpu-node", BOOT, BOOT[:8]) if text in repr(here)]
    for same in (private(pid=7), here.as_child("worker 0", 0)):
        assert (same.private, same.host, same.boot_id) == (True, here.host, here.boot_id)
    container = private(host="9f8e7d")  # of the same machine: its own name, the same clock
    assert (container.host == here.host, container.boot_id == here.boot_id) == (False, True)
    assert private(boot_id="another").boot_id != here.boot_id
    assert private(boot_id=None).boot_id is None
    other_run = private(run_id="124.0")
    assert (other_run.host == here.host, other_run.boot_id == here.boot_id) == (False, False)


@pytest.mark.parametrize(
    ("run_id", "kept"),
    [
        ("20261121-110347-30639", True),
        ("4711", True),
        ("4711.0", True),
        ("4711.batch", True),
        ("10.1.2.3-29500", False),
        (f"{HOST}-29500", False),
        (f"prterun-{HOST}-4711@1", False),
    ],
)
def test_a_run_id_is_kept_where_it_tells_nothing_or_was_chosen(run_id: str, kept: bool) -> None:
    own = dataclasses.replace(process(), run_id=run_id)
    found = privacy.anonymous(own, environ={}).run_id
    assert (found == run_id) == kept
    assert kept or (found.startswith("run-") and "gpu" not in found and "10.1" not in found)
    assert privacy.anonymous(own, run_id, {}).run_id == run_id
    for variable in ("TRACEKIT_RUN_ID", "TORCHELASTIC_RUN_ID"):
        assert privacy.anonymous(own, None, {variable: run_id}).run_id == run_id


@pytest.mark.parametrize("host", ["h", HOST])
@pytest.mark.parametrize("events", [0, 5000])
def test_kineto_s_host_and_folder_are_replaced_and_nothing_else(tmp_path: Path, host: str, events: int) -> None:
    trace = tmp_path / "torch-1.json"
    before = {
        "schemaVersion": 1,
        "host_name": host,
        "traceEvents": [{"name": "aten::add", "ts": number / 8} for number in range(events)],
        "traceName": "/home/alice/secret project/tracekit-torch-4lz41/torch-1.json",
    }
    trace.write_text(json.dumps(before, indent=2))
    size = trace.stat().st_size
    hide_origin(trace, "host-0123456789abcdef")
    after = json.loads(trace.read_text())
    assert trace.stat().st_size == size
    assert after.pop("host_name") == "host-0123456789abcdef"[: len(host)]
    assert after.pop("traceName") == "torch-1.json"
    assert after == {key: value for key, value in before.items() if key not in ("host_name", "traceName")}
