"""Recording of torch data loaders, in their workers or, without workers, in this process.

Neither the dataset nor the loader is wrapped. Slices are recorded where torch calls its fetchers; each worker and each
single-process iterator has one. This module never imports torch.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.errors import ConfigError
from tracekit.recording.children import ChildPlan, ChildRecording, Parent
from tracekit.recording.lifecycle import marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.recording.marker import Marker

CATEGORIES: Final = ("dataloader",)


class MarkingParent(Parent, Protocol):
    """A profiler that records data loaders."""

    def marker(self, name: str, categories: Sequence[str] = ()) -> Marker:
        """Return the marker of a name."""


class WorkerRecording(ChildRecording):
    """A ``worker_init_fn`` that starts recording in each worker, and then calls the user's ``worker_init_fn``."""

    def __init__(self, parent: Parent | ChildPlan | None, user_fn: Callable[[int], object] | None = None) -> None:
        if user_fn is not None and not callable(user_fn):
            raise ConfigError(f"a worker_init_fn must be a function of the worker's number, not {user_fn!r}")
        super().__init__(parent, "worker")
        self._user_fn = user_fn

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plan, self._user_fn)

    def __call__(self, *args: Any) -> None:
        """Start recording as worker ``args[0]``."""
        number = args[0] if args and isinstance(args[0], int) else None
        if self._profiler is None:
            self._profiler = self._start(self.name if number is None else f"{self.name} {number}", number)
            if self._profiler is not None:
                # Ask the schedule before each batch, not only at each flush: a short window may fit into one flush
                # interval.
                _record_fetchers_to_come(self._profiler.ask_schedule)
        if self._user_fn is not None:
            self._user_fn(*args)


@contextmanager
def recording_loader(loader: Any, parent: MarkingParent) -> Iterator[None]:
    """Make a torch DataLoader record the work of each iterator that it makes inside this context.

    Other loaders are left unchanged. On exit the attributes of the loader are restored, because it reads them only when
    it makes an iterator. Iterators made inside the context keep recording while the profiler does.
    """
    loader = _torch_loader(loader)
    changed = _changes(loader, parent)
    own = {name: loader.__dict__[name] for name in changed if name in loader.__dict__}
    with suppress(AttributeError, TypeError, ValueError):  # a subclass may refuse the attribute
        for name, value in changed.items():
            setattr(loader, name, value)
    try:
        yield
    finally:
        for name in changed:
            with suppress(AttributeError, TypeError, ValueError):
                if name in own:
                    setattr(loader, name, own[name])
                else:
                    delattr(loader, name)


def _changes(loader: Any, parent: MarkingParent) -> dict[str, Any]:
    """Return the attributes to set on a loader so that its next iterator records."""
    if loader is None:
        return {}
    if loader.num_workers:
        mine = isinstance(loader.worker_init_fn, WorkerRecording)
        return {} if mine else {"worker_init_fn": WorkerRecording(parent, loader.worker_init_fn)}
    make_iterator = getattr(loader, "_get_iterator", None)  # DataLoader makes every iterator with it
    if make_iterator is None:
        return {}
    return {"_get_iterator": functools.partial(_single_process_iterator, make_iterator, parent)}


def _torch_loader(loader: Any) -> Any:
    """Return the loader if it is a torch DataLoader, or the DataLoader that it wraps (accelerate), or None."""
    for candidate in (loader, getattr(loader, "base_dataloader", None)):
        kinds = type(candidate).__mro__
        if any(kind.__name__ == "DataLoader" and kind.__module__ == "torch.utils.data.dataloader" for kind in kinds):
            return candidate
    return None


def _single_process_iterator(make_iterator: Callable[[], Any], parent: MarkingParent) -> Any:
    iterator = make_iterator()
    with suppress(AttributeError):  # an unknown version of torch: its slices are missing
        iterator._dataset_fetcher = _RecordedFetcher(iterator._dataset_fetcher, parent.marker)  # noqa: SLF001
    return iterator


def _record_fetchers_to_come(before: Callable[[], object]) -> None:
    """In a worker: make all its future fetchers record slices. The fetchers do all work of a worker."""
    kind = getattr(sys.modules.get("torch.utils.data.dataloader"), "_DatasetKind", None)
    create = getattr(kind, "create_fetcher", None)
    if kind is None or create is None or hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def created(*args: Any, **options: Any) -> Any:
        return _RecordedFetcher(create(*args, **options), marker, before)

    kind.create_fetcher = staticmethod(created)


class _RecordedFetcher:
    """Wraps one of torch's fetchers. Records a slice "fetch" for each batch, and in it a slice "collate"."""

    def __init__(
        self,
        fetcher: Any,
        make_marker: Callable[[str, Sequence[str]], Marker],
        before: Callable[[], object] | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._slices = make_marker("fetch", CATEGORIES)
        self._before = before
        collate, collate_slices = fetcher.collate_fn, make_marker("collate", CATEGORIES)

        def recorded_collate(samples: Any) -> Any:
            with collate_slices:
                return collate(samples)

        fetcher.collate_fn = recorded_collate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    def fetch(self, index: Any) -> Any:
        """Fetch a batch."""
        if self._before is not None:
            self._before()
        with self._slices:
            try:
                return self._fetcher.fetch(index)
            except StopIteration as end:  # of an iterable dataset; no failure
                ended = end
        raise ended
