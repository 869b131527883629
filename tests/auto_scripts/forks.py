"""Trains in forked and in spawned children, and starts other children that do no training."""

import multiprocessing
import os
import subprocess
import sys

import torch
from torch import nn


def train(seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    print(seed, *losses, flush=True)


def main() -> None:
    for seed, method in enumerate(("fork", "spawn")):
        process = multiprocessing.get_context(method).Process(target=train, args=(seed,))
        process.start()
        process.join()
        assert process.exitcode == 0, method
    subprocess.run([sys.executable, "-c", "import torch; print(torch.ones(2).sum().item())"], check=True)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    train(2)


if __name__ == "__main__":
    main()
