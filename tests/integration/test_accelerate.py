"""Loops with a real Accelerator, recorded by one line; on one process, and the example on two."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed")

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from tests.scripts import run_script
from tracekit import JSONTraceHandler, MemoryTraceHandler, Profiler, marker, merge_traces
from tracekit.integrations.accelerate import AcceleratorRecorder

if TYPE_CHECKING:
    from tests.perfetto import Engine

# The warnings of accelerate are its own; tracekit warns by its log.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOKENS = 4  # of each sample


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        with marker("read"):
            return {"input_ids": torch.arange(TOKENS), "target": torch.ones(1)}


class Loop:
    """22 samples in batches of 4, two of them a step of the optimizer: 3 steps an epoch."""

    def __init__(self, folder: Path, counts: str = "rank", *, prepared_before: bool = False) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        self.memory = MemoryTraceHandler()
        handlers = [JSONTraceHandler(folder / f"rank0-{len(list(folder.iterdir()))}.json"), self.memory]
        self.profiler = Profiler(handlers, counts=counts, rank=0, run_id="loop")
        if prepared_before:
            self.prepare()
        self.recorder = AcceleratorRecorder(self.accelerator, self.profiler)
        if not prepared_before:
            self.prepare()

    def __enter__(self) -> Loop:
        self._recording = contextlib.ExitStack()
        self._recording.enter_context(self.profiler)
        self._recording.enter_context(self.recorder)
        return self

    def __exit__(self, *error: Any) -> None:
        self._recording.__exit__(*error)

    def prepare(self) -> None:
        model = nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(2 * TOKENS, 1))
        self.model, self.optimizer, self.loader, self.eval_loader = self.accelerator.prepare(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            DataLoader(Texts(), batch_size=4, num_workers=1),
            DataLoader(Texts(), batch_size=11),
        )

    def epoch(self, loader: Any = None, *, stop_after: int = -1) -> None:
        self.model.train()
        for number, batch in enumerate(self.loader if loader is None else loader, 1):
            with self.accelerator.accumulate(self.model):
                loss = (self.model(batch["input_ids"]) - batch["target"]).square().mean()
                self.accelerator.backward(loss)
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if number == stop_after:
                break
            if number == 4:
                self.evaluate()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for batch in self.eval_loader:
                self.model(batch["input_ids"])
        self.model.train()

    @property
    def slices(self) -> Counter[str]:
        self.profiler.flush()
        return Counter(begin.label.name for begin, _ in self.memory.slices)

    @property
    def time(self) -> list[int]:
        now = self.profiler.timestamp
        assert self.profiler.stats.failures == {}
        return [int(now.epoch), int(now.batch), int(now.sample), int(now.token), int(now.batch_in_epoch)]


@pytest.mark.parametrize(("counts", "prepared_before"), [("rank", False), ("global", True)])
def test_one_line_records_every_part_of_the_loop_and_leaves_everything_as_it_was(
    tmp_path: Path, engine: Engine, counts: str, prepared_before: bool
) -> None:
    with Loop(tmp_path, counts, prepared_before=prepared_before) as loop:
        recorded = type(loop.loader)
        loop.epoch()
        loop.epoch()
    assert loop.slices == {
        "dataloader": 2 * (6 + 1) + 2 * (2 + 1),  # each pass also waits for its end
        "forward": 12,
        "backward": 12,
        "clip gradients": 12,
        "optimizer": 6,
        "batch": 6,
        "eval forward": 4,
        "fetch": 4,  # of the evaluations, whose loader has no worker
        "collate": 4,
        "read": 44,  # of the evaluations; the training's are in the trace of its worker
    }
    assert loop.time == [2, 6, 44, 44 * TOKENS, 0]  # of the evaluations nothing is counted
    assert not {**loop.model._forward_hooks, **loop.optimizer.optimizer._optimizer_step_post_hooks}
    assert type(loop.loader) is not recorded
    assert issubclass(recorded, type(loop.loader))
    assert not {"prepare", "backward", "save_state"} & set(vars(loop.accelerator))

    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path)])
    assert {"rank 0", "rank 0 · worker 0"} <= set(report.ranks[0].processes)
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'read'") == 44 + 44


def test_an_epoch_that_is_broken_off_keeps_what_was_accumulated_for_the_next_step(tmp_path: Path) -> None:
    with Loop(tmp_path) as loop:
        loop.epoch(stop_after=3)  # no step is made of the third batch
        loop.evaluate()
        loop.epoch(stop_after=2)
        # 5 batches of 4: a step after 2, one after 4 in the next pass; the fifth waits for a step.
        assert loop.time == [0, 2, 16, 16 * TOKENS, 2]
        assert loop.slices["batch"] == loop.slices["optimizer"] == 2


@pytest.mark.parametrize(("stop_after", "batch"), [(-1, 3), (2, 1)], ids=["between epochs", "within an epoch"])
def test_a_run_goes_on_from_the_training_time_of_a_checkpoint(tmp_path: Path, stop_after: int, batch: int) -> None:
    with Loop(tmp_path) as first:
        first.accelerator.register_for_checkpointing(first.recorder)
        first.epoch(stop_after=stop_after)
        first.accelerator.save_state(str(tmp_path / "checkpoint"))
    with Loop(tmp_path) as second:
        second.accelerator.register_for_checkpointing(second.recorder)
        second.accelerator.load_state(str(tmp_path / "checkpoint"))
        if stop_after > 0:
            second.epoch(second.accelerator.skip_first_batches(second.loader, stop_after))
        second.epoch()
        assert second.time == [2, 6, 44, 44 * TOKENS, 0]
    assert first.slices["save checkpoint"] == second.slices["load checkpoint"] == 1
    assert second.slices["batch"] == second.slices["optimizer"] == 6 - batch
    forward = [begin.timestamp.batch for begin, _ in second.memory.slices if begin.label.name == "forward"]
    assert min(map(int, forward)) == batch


@pytest.mark.parametrize(
    ("how", "time"),
    [
        ("zip", [1, 2, 22, 22 * TOKENS, 0]),  # ends after two of the longer one
        ("within", [1, 6, 22, 22 * TOKENS, 0]),
        # The batch of 11 was read for the first step, as far as is known.
        ("held", [1, 6, 11 + 22, (11 + 22) * TOKENS, 0]),
    ],
)
def test_of_loaders_that_are_read_side_by_side_one_has_the_steps_and_the_epochs(
    tmp_path: Path, how: str, time: list[int]
) -> None:
    with Loop(tmp_path) as loop:
        loop.accelerator.gradient_accumulation_steps = 1
        if how == "zip":
            loop.epoch(second for _, second in zip(loop.eval_loader, loop.loader, strict=False))
        else:
            others = iter(loop.eval_loader)
            if how == "held":
                next(others)
                loop.epoch()
            else:
                batches = enumerate(loop.loader)
                loop.epoch(batch for number, batch in batches if number in (0, 5) or next(others, 1))
        assert loop.time == time


def test_copies_work_and_record_nothing(tmp_path: Path) -> None:
    with Loop(tmp_path) as loop:
        file = io.BytesIO()
        torch.save(loop.model, file)
        file.seek(0)
        tokens = torch.ones(1, TOKENS, dtype=torch.int64)
        for model in (AveragedModel(loop.model), torch.load(file, weights_only=False)):
            model(tokens)
        accelerator, _ = copy.deepcopy(loop.accelerator), copy.deepcopy(loop.optimizer)
        loop.model(tokens)
    assert loop.slices["forward"] == 1
    assert accelerator.backward.__func__ is Accelerator.backward
    assert b"tracekit" not in file.getvalue(), "it loads without tracekit"


def test_a_model_at_the_address_of_one_that_was_freed_is_recorded(tmp_path: Path) -> None:
    times, addresses = 0, set[int]()
    with Loop(tmp_path) as loop:
        # Which address is free depends on what else is allocated meanwhile.
        while times < 20 or (len(addresses) == times and times < 1000):
            times += 1
            model = loop.accelerator.prepare(nn.Linear(1, 1))
            addresses.add(id(model))
            model(torch.ones(1))
            loop.accelerator.free_memory(model)
            del model
            gc.collect()
    assert loop.slices["forward"] == times > len(addresses)


def test_a_loop_that_raises_leaves_no_slice_open(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), Loop(tmp_path) as loop:
        for batch in loop.loader:
            loop.accelerator.backward(loop.model(batch["input_ids"]).mean())
            loop.model(batch["missing"])
    kinds = [type(event).__name__ for event in loop.memory.events]
    assert kinds.count("SliceBegin") == kinds.count("SliceEnd") > 0
    assert loop.profiler.stats.failures == {}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks have left their traces, and what each of them has counted."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("ranks")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    script = Path(__file__).with_name("two_rank_runs.py")
    run_script(folder, "-W", "ignore", *torchrun, script, TRACEKIT_RUN_ID="example")
    return folder


def test_the_example_on_two_processes_is_one_timeline(two_ranks: Path, engine: Engine) -> None:
    merge_traces(str(two_ranks / "merged.json"), [str(two_ranks / "traces" / "example")])
    with engine.load(two_ranks / "merged.json") as trace:
        assert trace.errors() == []
        by_name = "select name, count(*) from slice where category is null or category != 'clock' group by name"
        counts = dict(trace.rows(by_name))
        assert trace.scalar("select count(distinct upid) from thread_track join thread using (utid)") == 2
    each_batch = dict.fromkeys(("fetch", "collate", "forward", "backward"), 32)
    assert counts == {"dataloader": 36, **each_batch, "optimizer": 16, "batch": 16}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_counts_its_own_samples_or_those_of_both_ranks_as_it_was_told(two_ranks: Path, rank: int) -> None:
    seen = json.loads((two_ranks / f"rank{rank}-counts.json").read_text())
    # 20 samples of 6 tokens, made even: 12 for each rank in each epoch, in steps of two batches of 4.
    assert seen == {"rank": [2, 4, 24, 24 * 6], "global": [2, 4, 48, 48 * 6]}
