"""torch.compile of a whole graph, in place, with graph breaks, and of an optimizer's step; prints Dynamo's counters."""

import torch
from torch import nn
from torch._dynamo.utils import counters, get_compilation_metrics


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


torch.manual_seed(0)
model = Net()
whole = torch.compile(model, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD(whole.parameters(), lr=0.05)
other = Net()
other_optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
other.compile(backend="aot_eager", fullgraph=True)
third = Net()
third_optimizer = torch.optim.Adam(third.parameters(), lr=0.01)


@torch.compile(backend="aot_eager")
def step() -> None:
    third_optimizer.step()


@torch.compile(backend="aot_eager", fullgraph=True)
def inlined(x: torch.Tensor) -> torch.Tensor:
    return third(x).square().mean()


@torch.compile(backend="aot_eager")
def broken(x: torch.Tensor) -> torch.Tensor:
    y = third(x).square().mean()
    y.backward()
    print("in between")
    optimizer.zero_grad()
    return y + 1


@torch.compile(backend="aot_eager")
def direct(x: torch.Tensor) -> torch.Tensor:
    y = third(x).square().mean()
    torch.autograd.backward(y)
    return y + 1


for number in range(8):
    x = torch.randn(4 + number % 3, 8)
    optimizer.zero_grad()
    other_optimizer.zero_grad()
    loss = whole(x).square().mean() + other(x).square().mean()
    loss.backward()
    optimizer.step()
    other_optimizer.step()
    more = inlined(x)
    more.backward()
    step()
    third_optimizer.zero_grad()
    print(loss.item().hex(), more.item().hex(), broken(x).item().hex(), direct(x).item().hex())
    if number == 4:
        whole.eval()
        with torch.no_grad():
            print(whole(x).sum().item().hex())
        whole.train()

for name in ("stats", "graph_break"):
    print(name, sorted((str(key).splitlines()[0], count) for key, count in counters[name].items()))
metrics = get_compilation_metrics()
print("compiled", [metric.co_name for metric in metrics])
print("recompiled", [metric.co_name for metric in metrics if metric.recompile_reason is not None])
