"""Actions at the end of imports."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tracekit import imports
from tracekit.imports import act_on_imported, when_imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that can be imported, and a finder that has not left, which other tests do to the one of the process."""
    monkeypatch.setattr(imports, "_finder", imports._Finder())
    name = "waited_for_package"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from waited_for_package import inner\nvalue = inner.value + 1\n")
    (tmp_path / name / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [found for found in sys.modules if found.startswith(name)]:
        monkeypatch.delitem(sys.modules, module)
    yield name
    act_on_imported()


def test_an_action_gets_the_complete_module_once(package: str) -> None:
    seen: list[int] = []

    def act(module: ModuleType) -> None:
        seen.append(module.value)

    when_imported(package, act)
    when_imported(f"{package}.inner", act)
    assert package not in sys.modules
    module = importlib.import_module(package)
    assert seen == [1, 2]
    assert module.__spec__ is not None
    assert module.__spec__.name == package
    importlib.reload(module)
    assert seen == [1, 2]
    when_imported(package, act)  # it is there: now
    assert seen == [1, 2, 2]


def test_a_failing_action_or_an_absent_module_leaves_the_import_and_the_other_actions_alone(package: str) -> None:
    seen: list[str] = []

    def fail(_module: ModuleType) -> None:
        raise RuntimeError("not this torch")

    when_imported(package, fail)
    when_imported(package, lambda module: seen.append(module.__name__))
    when_imported(f"{package}.absent", lambda module: pytest.fail(f"{module} is not there"))
    assert importlib.import_module(package).value == 2
    assert seen == [package]
    with pytest.raises(ModuleNotFoundError, match="absent"):
        importlib.import_module(f"{package}.absent")


def test_after_the_watch_no_finder_is_left_and_actions_run_at_the_next_call(package: str) -> None:
    finder: Any = imports._finder
    seen: list[int] = []
    when_imported(f"{package}.inner", lambda module: seen.append(module.value))
    assert finder in sys.meta_path
    act_on_imported()
    assert finder not in sys.meta_path
    when_imported(package, lambda module: seen.append(module.value))
    importlib.import_module(package)
    assert (finder in sys.meta_path, seen) == (False, [])
    act_on_imported()
    act_on_imported()
    assert seen == [1, 2]


def test_a_module_in_the_middle_of_its_import_is_acted_on_later(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    act_on_imported()
    seen: list[str] = []
    when_imported(package, lambda module: seen.append(module.__name__))
    module = importlib.import_module(package)
    monkeypatch.setattr(module.__spec__, "_initializing", True, raising=False)
    assert act_on_imported()
    assert seen == []
    monkeypatch.setattr(module.__spec__, "_initializing", False)
    assert not act_on_imported()
    assert seen == [package]
