"""A plain training loop: gradient accumulation, evaluation, checkpoints. Prints each loss exactly."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
train = DataLoader(data, batch_size=8, shuffle=True)
test = DataLoader(data, batch_size=32)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

for _ in range(3):
    model.train()
    for number, (x, y) in enumerate(train):
        loss = nn.functional.mse_loss(model(x), y) / 2
        loss.backward()
        print(loss.item().hex())
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        print(sum(nn.functional.mse_loss(model(x), y) for x, y in test).item().hex())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")

torch.save(model, "model.pt")
print(len(Path("model.pt").read_bytes()) > 0)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
