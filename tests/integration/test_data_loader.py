"""What real DataLoaders do, with workers of every kind and without, while the loader stays as it is."""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tracekit import JSONTraceHandler, MemoryTraceHandler, Profiler, marker, merge_traces

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.perfetto import Engine

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch and the workers wait as long for their end as a busy machine may need; otherwise 5 s and 2 s."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60.0)
    monkeypatch.setattr("tracekit.recording.profiler.SHUTDOWN_TIMEOUT_S", 50.0)


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        with marker("read"):
            return torch.full((2,), float(index))


class Stream(IterableDataset[Any]):
    """Gives each worker its share."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 8, step):
            yield torch.full((2,), float(index))


def add_up(samples: list[Any]) -> Any:
    return torch.stack(samples).sum(0)


def attributes(loader: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(loader).items() if name != "_iterator"}


def slices(path: Path) -> list[tuple[str, float, float, dict[str, Any]]]:
    """Return (name, start, end, arguments) of the slices of a trace, by their start."""
    found: list[tuple[str, float, float, dict[str, Any]]] = []
    begun: dict[int, list[Any]] = {}  # those that were open when the file was written, by thread
    events = [event for event in json.loads(path.read_text("utf-8")) if event["ph"] in "XBE"]
    for event in sorted(events, key=lambda event: (event["ts"], event["ph"] != "E")):  # a file need not be in order
        if event["ph"] == "X":
            found.append((event["name"], event["ts"], event["ts"] + event["dur"], event["args"]))
        elif event["ph"] == "B":
            begun.setdefault(event["tid"], []).append(event)
        elif event["ph"] == "E":
            start = begun[event["tid"]].pop()
            found.append((start["name"], start["ts"], event["ts"], {**start["args"], **event.get("args", {})}))
    return sorted(found, key=lambda slice_: (slice_[1], -slice_[2]))


def loaded(loader: Any, folder: Path, epochs: int = 1) -> tuple[list[Any], dict[str, list[Any]]]:
    """Load what there is under a profiler; return it, and the slices of each file by its name without the pid."""
    held = getattr(loader, "base_dataloader", loader)  # accelerate's, which counts its epochs beside
    before = attributes(held)
    handler = JSONTraceHandler(folder / "rank{rank}.json")
    with Profiler(handler, rank=0, record_batches=False, shutdown_timeout=50) as profiler:
        batches = [batch for _ in range(epochs) for batch in profiler.iterate(loader)]
        assert attributes(held) == before
    assert profiler.stats.failures == {}
    loader._iterator = None  # ends persistent workers, which write what they have
    gc.collect()
    found = {path.stem.rpartition("-")[0] or path.stem: slices(path) for path in sorted(folder.glob("rank0*.json"))}
    return batches, found


def names(found: list[Any]) -> dict[str, int]:
    return dict(Counter(name for name, *_ in found))


def assert_collates_lie_in_fetches(found: list[Any]) -> None:
    for name, start, end, _ in found:
        if name in {"collate", "read"}:
            assert any(a <= start and end <= b for other, a, b, _ in found if other == "fetch"), found


@pytest.mark.parametrize(
    ("loader", "fetches"),
    [
        pytest.param(lambda: DataLoader(Numbers(), batch_size=4), 2, id="batches"),
        pytest.param(lambda: DataLoader(Numbers(), batch_size=None), 8, id="single samples"),
        pytest.param(lambda: DataLoader(Numbers(), batch_size=4, collate_fn=add_up), 2, id="own collate_fn"),
        pytest.param(
            lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(8)), 4, drop_last=False)),
            2,
            id="batch_sampler",
        ),
        pytest.param(lambda: DataLoader(Stream(), batch_size=4), 3, id="iterable dataset"),
    ],
)
def test_without_workers_the_slices_stand_in_those_of_the_waiting(loader: Any, fetches: int, tmp_path: Path) -> None:
    expected = [batch.tolist() for batch in loader()]
    batches, found = loaded(loader(), tmp_path)
    assert [batch.tolist() for batch in batches] == expected
    (own,) = found.values()
    counts = names(own)
    assert counts["dataloader"] == len(expected) + 1
    assert counts["fetch"] == fetches, "a stream says that it has ended where it is asked for more"
    assert counts["collate"] == len(expected)
    assert_collates_lie_in_fetches(own)
    waits = [(start, end) for name, start, end, _ in own if name == "dataloader"]
    fetched = [(start, end) for name, start, end, _ in own if name == "fetch"]
    assert all(any(a <= start and end <= b for a, b in waits) for start, end in fetched)
    assert all("exception" not in arguments for *_, arguments in own)


def test_each_worker_has_fetches_and_collations_on_tracks_of_its_own(tmp_path: Path, engine: Engine) -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, collate_fn=add_up, multiprocessing_context="fork")
    batches, found = loaded(loader, tmp_path)
    assert [batch.tolist() for batch in batches] == [[1.0, 1.0], [5.0, 5.0], [9.0, 9.0], [13.0, 13.0]]
    assert names(found["rank0"]) == {"dataloader": 5}
    for worker in (0, 1):
        own = found[f"rank0-worker{worker}"]
        assert names(own) == {"fetch": 2, "collate": 2, "read": 4}
        assert_collates_lie_in_fetches(own)
    merge_traces(str(tmp_path / "merged.json"), [str(path) for path in tmp_path.glob("rank0*.json")], strict=True)
    with engine.load(tmp_path / "merged.json") as trace:
        assert trace.errors() == []
        rows = trace.rows(
            "select process.name, slice.name, count(*) from slice join thread_track on thread_track.id = track_id "
            "join thread using (utid) join process using (upid) where slice.name in ('fetch', 'collate') "
            "group by 1, 2 order by 1, 2"
        )
    assert rows == [(f"rank 0 · worker {worker}", name, 2) for worker in (0, 1) for name in ("collate", "fetch")]


def test_an_iterable_dataset_ends_in_its_workers_without_an_exception(tmp_path: Path) -> None:
    loader = DataLoader(Stream(), batch_size=2, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    batches, found = loaded(loader, tmp_path, epochs=2)
    assert sorted(value for batch in batches for value in batch[:, 0].tolist()) == sorted(
        2 * [float(n) for n in range(8)]
    )
    for worker in (0, 1):
        own = found[f"rank0-worker{worker}"]
        assert names(own)["collate"] == 4
        assert all("exception" not in arguments for *_, arguments in own)


@pytest.mark.slow
def test_the_loader_of_accelerate_records_as_the_one_that_it_holds(tmp_path: Path) -> None:
    data_loader = pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed")
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        plain = DataLoader(Numbers(), batch_size=2, num_workers=workers)
        loader = data_loader.DataLoaderShard(Numbers(), batch_size=2, num_workers=workers)
        batches, found = loaded(loader, folder)
        assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in plain]
        everywhere = Counter(name for own in found.values() for name, *_ in own)
        assert (everywhere["fetch"], everywhere["collate"]) == (4, 4)


def test_an_error_of_the_dataset_reaches_the_loop_as_it_is(tmp_path: Path) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> Any:
            raise LookupError("mine")

    memory = MemoryTraceHandler()
    with Profiler(memory, rank=0, record_batches=False) as profiler, pytest.raises(LookupError, match="mine"):
        list(profiler.iterate(DataLoader(Broken(), batch_size=2)))
    ended = {start.label.name: dict(end.label.args) for start, end in memory.slices}
    assert ended == {"fetch": {"exception": "LookupError"}, "dataloader": {"exception": "LookupError"}}


def test_nothing_of_torchs_or_of_the_loaders_stays_changed(tmp_path: Path) -> None:
    from torch.utils.data import _utils
    from torch.utils.data.dataloader import _DatasetKind

    fetch = _utils.fetch._MapDatasetFetcher
    before = (_DatasetKind.create_fetcher, fetch.fetch, fetch.__init__, DataLoader._get_iterator)
    dataset = Numbers()
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=2)
    with Profiler(rank=0) as profiler:
        for _ in profiler.iterate(loader):
            # While it runs as well: another loop over it is none of ours.
            assert "_get_iterator" not in vars(loader)
            assert type(iter(loader)._dataset_fetcher) is fetch
    assert (_DatasetKind.create_fetcher, fetch.fetch, fetch.__init__, DataLoader._get_iterator) == before
    assert type(loader) is DataLoader
    assert loader.dataset is dataset


def test_an_iterator_that_was_left_is_freed_at_once() -> None:
    """What a dataset's own iterator holds, such as files, is closed when the loop is left, as it is without a profiler."""

    class Held(Stream):
        freed: ClassVar[list[bool]] = []

        def __iter__(self) -> Iterator[Any]:
            held = Numbers()
            weakref.finalize(held, self.freed.append, True)
            for index in range(8):
                yield torch.full((len(held),), float(index))

    gc.disable()
    try:
        with Profiler(rank=0) as profiler:
            iterator = profiler.iterate(DataLoader(Held(), batch_size=2))
            next(iterator)
            iterator.close()
            del iterator
            assert Held.freed == [True]
    finally:
        gc.enable()
