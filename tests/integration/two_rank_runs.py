"""What each of two ranks counts, under Accelerate and under transformers' Trainer; started by torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from pathlib import Path

from transformers_runs import trainer  # a module beside this one

from tracekit import JSONTraceHandler, Profiler

EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerate_loop.py"


def counted(counts: str) -> list[int]:
    handler = JSONTraceHandler(f"traces/{counts}/rank{{rank}}-{{attempt}}.json")
    profiler = Profiler(handler, counts=counts)
    trainer(profiler, save_strategy="no", include_num_input_tokens_seen="all" if counts == "global" else "no").train()
    now = profiler.timestamp
    assert profiler.stats.failures == {}
    return [int(now.epoch), int(now.batch), int(now.sample), int(now.token)]


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        results = {counts: counted(counts) for counts in ("global", "rank")}
    Path(f"rank{os.environ['RANK']}-counts.json").write_text(json.dumps(results), encoding="utf-8")
