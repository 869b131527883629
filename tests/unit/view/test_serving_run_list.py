"""The list of runs: searching, filtering, ordering and paging, and tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tracekit.view.serve.runs import PER_PAGE, RankRow, Run, RunQuery, list_runs
from tracekit.view.serve.store import MAX_TAGS, Tags

if TYPE_CHECKING:
    from pathlib import Path


def run(name: str, **values: Any) -> Run:
    fields: dict[str, Any] = {"ranks": (), "states": (("finished", 1),), "rank_words": "1 rank", **values}
    return Run(id=name, name=name, folder="", changed_s=0.0, start_s=0.0, **fields)


RUNS = [
    run("llama/7b", step=10, step_time_ns=500, bytes=30),
    run(
        "BERT",
        states=(("recording", 2), ("cut", 1)),
        step=20,
        bytes=10,
        ranks=(RankRow("0", "cut", "", host="gpu-17"),),
    ),
    run("dlrm", step_time_ns=900, bytes=20),
]
TAGS = {"dlrm": ("nightly",), "BERT": ("baseline", "nightly")}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"q": "bert"}, ["BERT"]),
        ({"q": "LLAMA 7b"}, ["llama/7b"]),
        ({"q": "gpu-17"}, ["BERT"]),
        ({"q": "nightly"}, ["BERT", "dlrm"]),
        ({"q": "llama bert"}, []),
        ({"state": "cut"}, ["BERT"]),
        ({"tag": "nightly"}, ["BERT", "dlrm"]),
        ({"tag": "nightly", "state": "finished"}, ["dlrm"]),
        # The largest come first, and the unknown last.
        ({}, ["llama/7b", "BERT", "dlrm"]),
        ({"order": "name"}, ["BERT", "dlrm", "llama/7b"]),
        ({"order": "step_time"}, ["dlrm", "llama/7b", "BERT"]),
        ({"order": "step"}, ["BERT", "llama/7b", "dlrm"]),
        ({"order": "size"}, ["llama/7b", "dlrm", "BERT"]),
    ],
    ids=str,
)
def test_runs_are_searched_filtered_and_ordered(query: dict[str, str], found: list[str]) -> None:
    assert [one.name for one in list_runs(RUNS, RunQuery(**query), TAGS).runs] == found


def test_every_run_is_on_exactly_one_page() -> None:
    runs = [run(f"run {number}") for number in range(2 * PER_PAGE + 1)]
    pages = [list_runs(runs, RunQuery(page=page), {}) for page in (1, 2, 3)]
    assert [one.id for page in pages for one in page.runs] == [one.id for one in runs]
    assert {page.pages for page in pages} == {3}
    assert list_runs(runs, RunQuery(page=99), {}).query.page == 3
    assert list_runs([], RunQuery(), {}).pages == 1


def test_query_takes_any_parameters_and_gives_them_back() -> None:
    query = RunQuery.of({"q": " a&b ", "state": "cut", "order": "size", "page": "3"})
    assert query == RunQuery("a&b", "cut", "", "size", 3)
    assert query.address() == "/?q=a%26b&state=cut&order=size&page=3"
    assert query.address(page=1, state="") == "/?q=a%26b&order=size"
    assert RunQuery.of({"order": "random", "page": "-1"}) == RunQuery.of({"page": "9" * 30}) == RunQuery()
    assert RunQuery().address() == "/"


def test_tags_are_words_once_each_and_outlive_the_server(tmp_path: Path) -> None:
    tags = Tags(tmp_path / "tags.json")
    tags.set("one", " nightly,  baseline nightly\n")
    tags.set("two", " ".join(f"tag{number}" for number in range(99)))
    assert tags.all()["one"] == ("nightly", "baseline")
    assert len(tags.all()["two"]) == MAX_TAGS
    assert Tags(tmp_path / "tags.json").all() == tags.all()
    tags.set("one", "")
    assert Tags(tmp_path / "tags.json").all().keys() == {"two"}


@pytest.mark.parametrize("content", ["", "[]", '{"one": 3, "two": []}', "\0"])
def test_tags_in_a_damaged_file_count_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "tags.json").write_text(content)
    assert Tags(tmp_path / "tags.json").all() == {}
