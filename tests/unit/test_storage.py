"""Paths and URLs as words."""

from __future__ import annotations

import pytest

from tracekit.storage import common_folder


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        (["/runs/a/rank0.json", "/runs/a/rank1.json"], "/runs/a/"),
        (["/runs/a/rank0.json", "/runs/abc/rank1.json"], "/runs/"),
        (["/runs/a/node0/rank0.json", "/runs/a/rank1.json"], "/runs/a/"),
        (["runs/rank0.json", "rank1.json"], ""),
        (["rank0.json", "rank1.json"], ""),
        (["/rank0.json"], "/"),
        (["s3://bucket/a/rank0.json", "s3://bucket/b/rank1.json"], "s3://bucket/"),
        ([], ""),
    ],
)
def test_the_folder_that_all_files_are_in(paths: list[str], folder: str) -> None:
    assert common_folder(paths) == folder
