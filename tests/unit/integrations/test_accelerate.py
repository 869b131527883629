"""AcceleratorRecorder on a stand-in for an Accelerator; the runs with Accelerate itself are in tests/integration."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tracekit import MemoryTraceHandler, Profiler
from tracekit.integrations.accelerate import AcceleratorRecorder

torch = pytest.importorskip("torch", reason="torch is not installed")


class FakeAccelerator:
    """Prepares nothing, and does what an Accelerator on one process does."""

    num_processes = 2

    def prepare(self, *objects: Any) -> Any:
        return tuple(self.prepare_model(one) if isinstance(one, torch.nn.Module) else one for one in objects)

    def prepare_model(self, model: Any) -> Any:
        return torch.nn.Sequential(model)

    def prepare_optimizer(self, optimizer: Any) -> Any:
        return optimizer

    prepare_data_loader = prepare_optimizer

    def backward(self, loss: Any) -> None:
        loss.backward()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_recorder_makes_slices_and_steps_of_a_prepared_loop_and_leaves_it_as_it_was(one_by_one: bool) -> None:
    accelerator, memory = FakeAccelerator(), MemoryTraceHandler()
    with Profiler(memory, rank=0, record_batches=False, counts="global") as profiler:
        with AcceleratorRecorder(accelerator, profiler) as recorder:
            model = torch.nn.Linear(2, 1)
            data = torch.utils.data.DataLoader(torch.ones(6, 2), batch_size=2)
            if one_by_one:
                model = accelerator.prepare_model(model)
                optimizer = accelerator.prepare_optimizer(torch.optim.SGD(model.parameters(), 0.1))
                loader = accelerator.prepare_data_loader(data)
            else:
                model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
            for batch in loader:
                accelerator.backward(model(batch).sum())
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                model.eval()(torch.ones(1, 2))
            state = recorder.state_dict()
        model(torch.ones(1, 2))  # records nothing any more
        assert (profiler.timestamp.batch, profiler.timestamp.epoch, profiler.timestamp.sample) == (3, 1, 12)
        recorder.load_state_dict(state)
        assert profiler.timestamp.batch == 3
    found = Counter(start.label.name for start, _ in memory.slices)
    assert found == {
        "dataloader": 4,
        "fetch": 3,
        "collate": 3,  # the last wait ends the epoch
        "forward": 3,
        "backward": 3,
        "optimizer": 3,
        "eval forward": 1,
    }
    assert vars(accelerator) == {}


def test_two_recorders_of_one_accelerator_leave_it_as_it_was() -> None:
    accelerator, memory = FakeAccelerator(), MemoryTraceHandler()
    with (
        Profiler(memory, rank=0) as profiler,
        AcceleratorRecorder(accelerator, profiler),
        AcceleratorRecorder(accelerator, profiler),
    ):
        accelerator.backward(torch.ones(1, requires_grad=True).sum())
    assert vars(accelerator) == {}
    assert [start.label.name for start, _ in memory.slices] == ["backward"]
