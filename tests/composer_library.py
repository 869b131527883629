"""Puts Composer into ``.cache/composer-VERSION`` of the repository, once, beside the torch that the tests use.

Its last release allows torch up to 2.7 only, so it cannot be installed with everything else; it runs with the torch of today all
the same. It is installed without what it requires, and with the few packages that it imports and the tests do not have.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.perfetto.install import CACHE, call, folder_that_appears_whole, only_one_at_a_time

if TYPE_CHECKING:
    from pathlib import Path

COMPOSER = "mosaicml==0.32.1"
# In one exact version each: nothing else sees to it that they fit together, and newer ones may need packages that are not here.
# torchvision's compiled part does not fit any build of torch; what Composer imports of it is Python.
BESIDE_IT = (
    "coolname==5.0.0",
    "importlib-metadata==8.7.0",
    "pillow==13.0.0",
    "py-cpuinfo==9.0.0",
    "pytorch-ranger==0.1.1",
    "tabulate==0.10.0",
    "torch-optimizer==0.3.0",
    "torchvision==0.29.1",
    "zipp==4.1.2",
)

PREFACE = '''"""Import this before Composer."""

import torch

# torchvision describes these two operators of its compiled part, which is not loaded.
OPERATORS = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
'''

CLIENT = '"""Stands for the client of a hosted service, which Composer imports and uses nowhere else."""\n'


def composer_library() -> Path:
    """Return the folder to put on the path of a process that imports ``composer_preface`` and then Composer.

    Raises:
        UnavailableError: It cannot be installed here.
    """
    folder = CACHE.parent / COMPOSER.replace("mosaicml==", "composer-")
    with only_one_at_a_time():
        if not folder.is_dir():
            with folder_that_appears_whole(folder) as unfinished:
                command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"]
                call([*command, str(unfinished), COMPOSER, *BESIDE_IT])
                (unfinished / "composer_preface.py").write_text(PREFACE, encoding="utf-8")
                (unfinished / "mcli.py").write_text(CLIENT, encoding="utf-8")
    return folder
