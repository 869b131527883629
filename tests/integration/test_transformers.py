"""transformers' real Trainer with tracekit's callback, on a tiny model that is made up."""

from __future__ import annotations

import functools
import json
import runpy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")

import torch
from torch.optim.swa_utils import AveragedModel
from transformers import Trainer, TrainerCallback

from tests.integration.two_rank_runs import TOKENS, trainer
from tracekit import JSONTraceHandler, MemoryTraceHandler, Profiler, merge_traces

if TYPE_CHECKING:
    from tests.perfetto import Engine

# The warnings of transformers are its own; tracekit warns by its log.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_folder")]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Run:
    """One training, with a trace in ``NAME/rank0.json``."""

    def __init__(self, name: str, counts: str = "rank", resume: str | None = None, **options: Any) -> None:
        memory = MemoryTraceHandler()
        self.profiler = Profiler([JSONTraceHandler(f"{name}/rank0.json"), memory], counts=counts, run_id=name, rank=0)
        self.trainer = trainer(self.profiler, **options)
        before = type(self.trainer.get_train_dataloader()), len(self.trainer.model._forward_hooks)
        self.trainer.train(resume_from_checkpoint=resume)
        assert not self.profiler.started
        assert self.profiler.stats.failures == {}
        loader = self.trainer.callback_handler.train_dataloader
        assert (type(loader), len(self.trainer.model._forward_hooks)) == before, "all is left as it was"
        self.slices = Counter(begin.label.name for begin, _ in memory.slices)
        steps = [begin.timestamp.batch for begin, _ in memory.slices if begin.label.name == "training step"]
        self.first_batch = min(map(int, steps))
        now = self.profiler.timestamp
        self.time = [int(now.epoch), int(now.batch), int(now.sample), int(now.token), int(now.batch_in_epoch)]


PARENTS = """
    select distinct slice.name, parent.name from slice join slice parent on slice.parent_id = parent.id where slice.name in
    ('training step', 'forward', 'backward', 'optimizer', 'evaluation', 'save', 'eval forward', 'epoch')
"""


def test_every_part_of_the_training_is_a_slice_and_the_steps_are_the_trainers(tmp_path: Path, engine: Engine) -> None:
    evaluation = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 20}
    run = Run("rank", dataloader_num_workers=1, **evaluation)
    assert run.slices == {
        "train": 1,
        "epoch": 2,
        "batch": 6,
        "dataloader": 10,
        "training step": 10,
        "forward": 10,
        "backward": 10,
        "optimizer": 6,
        "evaluation": 3,
        "eval forward": 3,
        "save": 3,
    }
    assert run.time == [2, 6, 40, 40 * TOKENS, 0]

    report = merge_traces(str(tmp_path / "merged.json"), [str(tmp_path / "rank")])
    assert {"rank 0", "rank 0 · worker 0"} <= set(report.ranks[0].processes)
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'read'") == 40
        parents = trace.rows(PARENTS)
    # The last evaluation and the last checkpoint of an epoch come after its end.
    assert set(parents) - {("save", "train"), ("evaluation", "train"), ("save", "epoch"), ("evaluation", "epoch")} == {
        ("training step", "epoch"),
        ("forward", "training step"),
        ("backward", "training step"),
        ("optimizer", "epoch"),
        ("eval forward", "evaluation"),
        ("epoch", "train"),
    }


@pytest.mark.parametrize(
    ("counts", "has_time", "samples"),
    # A checkpoint without the time: 4 steps of 2 batches of 4 are computed, and one of them was shorter.
    [("rank", True, 40), ("global", True, 40), ("global", False, 4 * 8 + 8 + 4)],
)
def test_a_resumed_run_goes_on_from_the_training_time_in_the_checkpoint(
    counts: str, has_time: bool, samples: int
) -> None:
    seen = {"include_num_input_tokens_seen": "all" if counts == "global" else "no"}
    whole = Run("whole", counts, **seen)
    assert whole.time == [2, 6, 40, 40 * TOKENS, 0]
    assert whole.trainer.state.num_input_tokens_seen == (240 if counts == "global" else 0)
    checkpoint = Path("out", "checkpoint-4")
    if not has_time:
        state = checkpoint / "trainer_state.json"
        written = json.loads(state.read_text())
        assert written["stateful_callbacks"].pop("tracekit")
        state.write_text(json.dumps(written))
    resumed = Run("resumed", counts, str(checkpoint), **seen)
    assert (resumed.first_batch, resumed.slices["forward"], resumed.slices["batch"]) == (4, 3, 2)
    assert resumed.time == [2, 6, samples, 40 * TOKENS, 0]


class Twice(Trainer):
    """Its loss needs two passes of the model, as R-Drop's and DPO's do."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
        return model(**inputs).loss + model(**inputs).loss


def test_a_loss_that_calls_the_model_twice_counts_its_samples_once() -> None:
    run = Run("twice", kind=Twice, num_train_epochs=1)
    assert (run.time, run.slices["forward"]) == ([1, 3, 20, 20 * TOKENS, 0], 10)
    # In the first epoch of a resumed run the batches cannot be looked at: the one of 4 passes for two.
    assert Run("resumed", "rank", "out/checkpoint-2", kind=Twice).time == [2, 6, 40 + 4, (40 + 4) * TOKENS, 0]


class Replicas(Trainer):
    """Calls the model on threads, as `torch.nn.DataParallel` calls its replicas."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
        shards = [{name: value[half::2] for name, value in inputs.items()} for half in (0, 1)]
        with ThreadPoolExecutor(2) as threads:
            return sum(threads.map(lambda shard: model(**shard).loss, shards))


class Averaging(TrainerCallback):
    """Copies the model while it is recorded, as averages of weights and models of reference are made."""

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.average = AveragedModel(named["model"])
        self.average(input_ids=torch.arange(TOKENS).unsqueeze(0))


def test_copies_replicas_and_compiled_models_are_left_alone() -> None:
    copied = Run("averaged", save_strategy="no", max_steps=2, callbacks=[Averaging()])
    assert (copied.slices["batch"], copied.slices["forward"]) == (2, 4)
    replicas = Run("replicas", kind=Replicas, save_strategy="no")
    # Nothing of the recording may become a part of the graph of a model that is compiled as a whole.
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = Run("compiled", save_strategy="no", torch_compile=True, torch_compile_backend="eager")
    assert not torch._dynamo.utils.counters["graph_break"]
    for run in (replicas, compiled):
        assert run.time == [2, 6, 40, 40 * TOKENS, 0]
        assert run.slices["training step"] == 10
        assert not {"forward", "backward"} & set(run.slices)


class Told(MemoryTraceHandler):
    error: BaseException | None = None

    def stopping(self, error: BaseException | None) -> None:
        self.error = error


def test_an_exception_in_training_reaches_the_handlers_and_a_later_training_is_recorded(
    tmp_path: Path, engine: Engine
) -> None:
    told, calls = Told(), []
    with (  # noqa: PT012
        pytest.raises(RuntimeError, match="the model fails"),
        Profiler([JSONTraceHandler("failing.json"), told], rank=0) as profiler,
    ):
        one = trainer(profiler, save_strategy="no")
        forward = one.model.forward

        @functools.wraps(forward)
        def fails(*args: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == 4:
                raise RuntimeError("the model fails")
            return forward(*args, **named)

        one.model.forward = fails
        with pytest.raises(RuntimeError):
            one.train()
        assert profiler.timestamp.batch == 1
        one.train()
        assert profiler.timestamp.batch == 6
        calls.clear()
        one.train()
    assert repr(told.error) == "RuntimeError('the model fails')"
    kinds = [type(event).__name__ for event in told.events]
    assert sum(begin.label.name == "forward" for begin, _ in told.slices) == 4 + 10 + 4
    # "train", "epoch" and "training step" are open; the trace marks them so.
    assert kinds.count("SliceBegin") - kinds.count("SliceEnd") == 3
    with engine.load(tmp_path / "failing.json") as trace:
        assert trace.errors() == []
        assert trace.scalar("select count(*) from slice where name = 'train'") == 3


def test_a_training_with_a_profiler_that_has_ended_goes_on_without_it_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = trainer(Profiler(MemoryTraceHandler(), rank=0), max_steps=1, save_strategy="no")
    one.train()
    one.train()
    assert one.state.global_step == 1
    assert "tracekit: this training is not recorded" in caplog.text


def test_the_example_opens(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    monkeypatch.setenv("TRACEKIT_RUN_ID", "example")
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "transformers_trainer.py"), run_name="__main__")
    (path,) = Path("traces").glob("example/*.json")
    with engine.load(path.absolute()) as trace:
        assert trace.errors() == []
        counts = dict(trace.rows("select name, count(*) from slice group by name"))
    assert {"train": 1, "epoch": 2, "batch": 10, "forward": 20, "evaluation": 2, "save": 2}.items() <= counts.items()
