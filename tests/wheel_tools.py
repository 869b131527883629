"""Puts the dependency group "wheels" into ``.cache/wheel-tools-*`` of the repository, once: zig's compiler takes 400 MB."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING

from tests.native.cores import project
from tests.perfetto.install import CACHE, call, folder_that_appears_whole, only_one_at_a_time

if TYPE_CHECKING:
    from pathlib import Path


def wheel_tools() -> Path:
    """Return the folder to put on the path of the Python that scripts/wheels builds with.

    Raises:
        UnavailableError: They cannot be installed here.
    """
    group = project()["dependency-groups"]["wheels"]
    version = "".join(map(str, sys.version_info[:2]))
    folder = CACHE.parent / f"wheel-tools-{version}-{zlib.crc32(' '.join(group).encode()):08x}"
    with only_one_at_a_time():
        if not folder.is_dir():
            with folder_that_appears_whole(folder) as unfinished:
                options = ["--quiet", "--no-compile", "--target", str(unfinished)]
                call([sys.executable, "-m", "pip", "install", *options, *group])
    return folder
