"""Paths and URLs as words."""

from __future__ import annotations

import fsspec.core
import pytest

from tracekit.errors import StorageError
from tracekit.storage import common_folder, filesystem_of


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


def test_a_bucket_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    message = r"^s3://bucket/a.json: Install s3fs to access S3: pip install 'tracekit-ml\[s3\]'$"
    with pytest.raises(StorageError, match=message):
        filesystem_of("s3://bucket/a.json")
