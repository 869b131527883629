"""Three loaders at once: with workers, without, and of an iterable dataset; two optimizers take a step in each iteration."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Squares(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index) ** 2 / 1600)


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(40):
            yield torch.full((4,), index / 40)


def main() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)]
    for _ in range(2):
        with_workers = DataLoader(Squares(), batch_size=4, num_workers=2, shuffle=True)
        plain = DataLoader(Squares(), batch_size=4)
        stream = DataLoader(Stream(), batch_size=4)
        for batches in zip(with_workers, plain, stream, strict=True):
            x = torch.cat(batches)
            loss = second(first(x)).square().mean()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            print(loss.item().hex())


if __name__ == "__main__":
    main()
