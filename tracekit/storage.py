"""Files, globs, folders and URLs: the only module that imports fsspec, and only for URLs.

Local paths use the standard library, so that recording to a local disk never imports fsspec.
"""

from __future__ import annotations

import contextlib
import errno
import glob as _glob
import inspect
import io
import os
import shlex
import stat
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from tracekit.errors import StorageError
from tracekit.version import DISTRIBUTION
from tracekit.wording import escape_surrogates, hide_secrets, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

PRIVATE_MODE: Final = 0o600
"""Default mode of files. Traces contain names of hosts, folders and models, so only their user may read them."""

# Names of the errors for missing or wrong credentials in clients of object stores. They do not derive from OSError.
_NO_CREDENTIALS: Final = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)
PIPE_FOLDER: Final = "tracekit-pipe-"
"""The beginning of the name of the folder of a copy of a pipe."""

_PIECE_BYTES: Final = 8 << 20
_REASON_CHARACTERS: Final = 300  # the reason may be an HTML page of a server
_ONE_REQUEST_BYTES: Final = 5 << 30  # S3's limit for a single PUT


class AlreadyThereError(StorageError):
    """An object of that name exists, and may not be replaced."""


class ExistsError(StorageError):
    """An output already exists and may not be replaced.

    Args:
        name: The output, for messages.
        reason: Description of the problem, and a way to avoid it without replacing the output.
    """

    def __init__(self, name: str, reason: str = "already exists; choose another name") -> None:
        self._name = name
        self._reason = reason
        super().__init__(name, reason)

    def __str__(self) -> str:
        return self.message("overwrite=True")

    def message(self, option: str) -> str:
        """Return the message with the caller's option for replacing the output."""
        return f"{self._name}: {self._reason}, or pass {option} to replace it"


class RefusedError(StorageError):
    """The storage refuses the request permanently: wrong or missing credentials, no permission, no such bucket."""


class TooSlowError(StorageError):
    """The storage did not answer within the timeout."""


class UnconfirmedError(StorageError):
    """The storage accepted an object and does not have it: a proxy or login page answers 200 to everything."""


def is_remote(path: str) -> bool:
    """Return True if ``path`` is a URL (``s3://``, ``memory://`` ...), not a local path; see `resolve_path` for ``file://``."""
    return "://" in path


def without_secrets(path: str) -> str:
    """Return ``path`` for messages and reports.

    Omits user information and query of a URL, and the folder of a copy of a pipe. Escapes bytes of a file name that are not
    UTF-8.
    """
    if not path.isascii():
        path = escape_surrogates(path)
    return basename(path) if PIPE_FOLDER in path and "://" not in path else hide_secrets(path)


def shell_word(path: str) -> str:
    """Return ``path`` as a word of a shell command for messages, see `without_secrets`."""
    # A shell reads bytes that are not UTF-8 only as $'\xff'.
    is_utf_8 = not any("\ud800" <= character <= "\udfff" for character in path)
    name = without_secrets(path)
    return shlex.quote(name) if is_utf_8 else "$'" + name.replace("'", "\\'") + "'"


def basename(path: str) -> str:
    """Return the last component of a path or URL."""
    if "://" in path:
        return PurePosixPath(path.split("?", 1)[0]).name
    # Not pathlib, which interns every part of every path that it sees.
    name = path[path.rfind("/") + 1 :] if os.sep == "/" else os.path.basename(path)  # noqa: PTH119
    return Path(path).name if name in ("", ".") else name


def printable_name(path: str) -> str:
    """Return the last component of a path or URL for messages and metadata, with bytes escaped that are not UTF-8."""
    name = basename(path)
    return name if name.isascii() else escape_surrogates(name)


def common_folder(paths: Iterable[str]) -> str:
    """Return the common folder or prefix of some files, with its slash; empty if they have none in common."""
    folders = {path[: path.rfind("/") + 1] for path in paths}
    levels = zip(*(folder.split("/")[:-1] for folder in folders), strict=False)
    return "".join(f"{names[0]}/" for names in takewhile(lambda names: len(set(names)) == 1, levels))


def filesystem_of(path: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it."""
    try:
        import fsspec.core
    except ImportError as error:  # pragma: no cover - fsspec is a core dependency
        raise StorageError(
            f"{without_secrets(path)}: reading and writing URLs needs fsspec: pip install fsspec"
        ) from error
    try:
        filesystem, inner = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise _no_driver(path, error) from error
    except Exception as error:
        # Some file systems, such as FTP, connect here.
        raise explained(path, error, "be reached") from error
    return filesystem, str(inner)


def explained(path: str, error: BaseException, what: str) -> StorageError:
    """Return the error for a failed action on a file or URL."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    reason = one_line(reason, _REASON_CHARACTERS)
    return StorageError(f"{without_secrets(path)}: cannot {what}: {reason}")


def signed_url(url: str, life_s: int) -> str:
    """Return an address that lets anyone read an object for a limited time. An ``http`` URL is returned unchanged.

    Args:
        url: The object.
        life_s: Life of the address in seconds. Drivers without signatures return the public address of the object.

    Raises:
        StorageError: The storage has no such address, or the object does not exist.
    """
    if url.startswith(("http://", "https://")):
        return url
    if not is_remote(url) or not exists(url):
        raise StorageError(f"{without_secrets(url)}: no such object; give the URL of a trace in an object store")
    filesystem, inner = filesystem_of(url)
    for name, options in (("sign", {"expiration": life_s}), ("url", {})):
        call = getattr(filesystem, name, None)
        try:
            address = "" if call is None else str(call(inner, **options))
        except NotImplementedError:
            continue
        except Exception as error:
            raise explained(url, error, "be signed") from error
        if address.startswith(("http://", "https://")):
            return address
    raise StorageError(f"{without_secrets(url)}: the driver of this storage gives no address that a browser can read")


def exists(path: str) -> bool:
    """Return True if a file, folder or object of that name exists."""
    if not is_remote(path):
        return Path(path).exists()
    filesystem, inner = filesystem_of(path)
    try:
        return bool(filesystem.exists(inner))
    except Exception as error:
        raise explained(path, error, "be reached") from error


def refuse_existing(path: str) -> None:
    """Raise if a file or object of this name exists: a check before long work.

    Raises:
        ExistsError: The file or object exists.
        StorageError: The storage cannot be reached.
    """
    if exists(path):
        raise ExistsError(without_secrets(path))


def size_bytes(path: str) -> int | None:
    """Return the size of a file, or None if the storage does not report it."""
    try:
        if not is_remote(path):
            return Path(path).stat().st_size
        filesystem, inner = filesystem_of(path)
        size = filesystem.size(inner)
        return None if size is None else int(size)
    except Exception as error:
        raise explained(path, error, "be read") from error


def modified_ns(path: str) -> int | None:
    """Return the time of the last write to a local file, ns since the epoch; None for a remote file or if unknown."""
    if is_remote(path):
        return None
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


def remote_version(path: str) -> str:
    """Return a string that changes when a remote file is replaced: its ETag and other properties from the storage.

    Raises:
        StorageError: The storage cannot be reached, or the file cannot be read.
    """
    try:
        filesystem, inner = filesystem_of(path)
        facts = filesystem.info(inner)
    except Exception as error:
        raise explained(path, error, "be read") from error
    keys = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "mtime", "created", "size")
    return repr([str(facts[key]) for key in keys if key in facts])


def same_file(first: str, second: str) -> bool:
    """Return True if two names are one file: by inode for local files, by name for URLs."""
    return first == second or file_identity(first) == file_identity(second)


def file_identity(path: str) -> Hashable:
    """Return a key that all names of one file share; see `same_file`."""
    if is_remote(path):
        return path.rstrip("/")
    try:
        found = os.stat(path)  # noqa: PTH116 - pathlib interns every part of every path that it sees
    except OSError:
        return Path(path).absolute()
    return found.st_dev, found.st_ino


class _LocalFile(io.FileIO):
    """A local file. A read that fails, as of a network file system, raises StorageError."""

    def readinto(self, buffer: Any) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise explained(str(self.name), error, "be read") from error

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise explained(str(self.name), error, "be read") from error


def open_read(path: str) -> BinaryIO:
    """Open a file or URL for reading bytes; a local file raises StorageError when a read fails, too.

    Raises:
        StorageError: The file does not exist or cannot be read.
    """
    try:
        if not is_remote(path):
            return io.BufferedReader(_LocalFile(path))  # the caller closes it
        filesystem, inner = filesystem_of(path)
        # By default, s3fs reads ahead and keeps about 50 MiB.
        return cast("BinaryIO", filesystem.open(inner, "rb", block_size=_PIECE_BYTES))
    except StorageError:
        raise
    except Exception as error:
        raise explained(path, error, "be read") from error


def refuse_pipe(path: str) -> None:
    """Raise if a path is a pipe or socket: a check for callers that read a file more than once.

    Raises:
        StorageError: The path is a pipe or socket.
    """
    if is_remote(path):
        return
    with contextlib.suppress(OSError):  # the caller's read reports it
        mode = Path(path).stat().st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            raise StorageError(
                f"{without_secrets(path)}: pipes are not supported, because a trace is read more than once; "
                "write the trace to a file first"
            )


def expand(
    pattern: str, suffixes: tuple[str, ...], fits: Callable[[str], bool] | None = None, *, pipes: bool = False
) -> list[str]:
    """Return the files of a path, a glob or a folder, sorted by name.

    A folder is replaced by the files below it with one of the ``suffixes``; hidden files are skipped. A file is returned with
    any suffix.

    Args:
        pattern: Path, glob, folder or URL.
        suffixes: Suffixes of the files in a folder.
        fits: Returns True for other files of a folder to include.
        pipes: Accept a pipe, which can be read only once.

    Raises:
        StorageError: There is no such file, the glob matches nothing, the folder has no such files, or the path is a pipe.
    """
    if is_remote(pattern):
        return _expand_remote(pattern, suffixes, fits)
    if os.path.isfile(pattern):  # noqa: PTH113 - as in `basename`
        return [pattern]
    path = Path(pattern)
    try:
        if path.is_dir():
            found = sorted(
                os.fspath(file)
                for file in path.rglob("*")
                if (fits is not None or file.name.endswith(suffixes))
                and not _hidden(file.relative_to(path))
                and file.is_file()
                and (file.name.endswith(suffixes) or (fits is not None and fits(os.fspath(file))))
            )
            if not found:
                os.scandir(path).close()  # rglob skips a folder that may not be read
                raise StorageError(f"{without_secrets(pattern)}: the folder holds no {' or '.join(suffixes)} file")
            return found
        if path.exists():
            if not pipes:
                refuse_pipe(pattern)
            return [pattern]
        if _glob.has_magic(pattern):
            found = sorted(file for file in _glob.glob(pattern, recursive=True) if Path(file).is_file())
            if not found:
                raise StorageError(f"{without_secrets(pattern)}: the pattern matches no file")
            return found
    except OSError as error:
        raise explained(pattern, error, "be read") from error
    raise StorageError(f"{without_secrets(pattern)}: no such file or folder")


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _expand_remote(pattern: str, suffixes: tuple[str, ...], fits: Callable[[str], bool] | None) -> list[str]:
    filesystem, inner = filesystem_of(pattern)
    try:
        if _glob.has_magic(inner):
            found = filesystem.glob(inner)
        elif filesystem.isdir(inner):
            found = [
                name
                for name in filesystem.find(inner)
                if str(name).endswith(suffixes) or (fits is not None and fits(str(filesystem.unstrip_protocol(name))))
            ]
        elif filesystem.exists(inner):
            return [pattern]
        else:
            raise StorageError(f"{without_secrets(pattern)}: no such file or folder")
    except StorageError:
        raise
    except Exception as error:
        raise explained(pattern, error, "be read") from error
    if not found:
        raise StorageError(f"{without_secrets(pattern)}: nothing there ends with {' or '.join(suffixes)}")
    return sorted(str(filesystem.unstrip_protocol(name)) for name in found)


def make_folders(folder: Path, mode: int = PRIVATE_MODE) -> None:
    """Make a folder and its missing parents, by default for the user alone (0700), independent of the umask.

    Args:
        folder: The folder.
        mode: The mode of the files in it: users who may read them may also list and enter the folder.

    Raises:
        OSError: The folder cannot be made.
    """
    # makedirs gives its mode to the last folder only; parents follow the umask.
    for parent in reversed([parent for parent in (folder, *folder.parents) if not parent.exists()]):
        with contextlib.suppress(FileExistsError):  # another process made it meanwhile
            parent.mkdir(mode=0o700)
            parent.chmod(mode | (mode & 0o444) >> 2)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))


def temporary_file(folder: str | Path, name: str) -> tuple[int, str]:
    """Create a file that becomes another one when it is complete. Its mode is 0600.

    Its name is random: one that a killed process has left, on any host, is passed over.

    Args:
        folder: Folder of both.
        name: Name of the other one.

    Returns:
        The descriptor, open for writing and reading, and the path.

    Raises:
        OSError: It cannot be created.
    """
    while True:
        path = os.path.join(folder, f".{name}.{os.urandom(4).hex()}.tmp")  # noqa: PTH118 - text, for os.open
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), path


def name_temporary(temporary: str, path: Path) -> None:
    """Give a temporary file its name. A link, unlike a rename, does not replace a file that somebody else made meanwhile."""
    try:
        os.link(temporary, path)
    except OSError:
        if os.path.lexists(path):
            raise
        os.rename(temporary, path)  # a file system without links


def _temporary_folder() -> Path:
    import tempfile  # here: a recording into local files needs none

    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def atomic_write(
    path: str, *, overwrite: bool = True, mode: int = PRIVATE_MODE, folder: str | None = None
) -> Iterator[BinaryIO]:
    """Yield a binary file that appears under ``path`` when the block ends, complete or not at all.

    A local file is written next to its final place, synced and renamed. A remote file is written to a local temporary file and
    uploaded. Otherwise, an object store would show half an object, or commit it after an error in the block.

    Args:
        path: The file. Missing local folders are made, see `make_folders`.
        overwrite: True to replace an existing file.
        mode: The mode of a local file, independent of the umask and of the mode of a file that it replaces.
        folder: Folder of the temporary file. For a local file, it must be on the same file system; None uses the same folder.

    Raises:
        StorageError: The file cannot be written, or it exists and ``overwrite`` is False.
    """
    if not overwrite:
        refuse_existing(path)
    remote = is_remote(path)
    target = _temporary_folder() / basename(path) if remote else Path(path)
    try:
        if not remote:
            make_folders(target.parent, mode)
        descriptor, temporary = temporary_file(folder or target.parent, target.name)
    except OSError as error:
        raise explained(path, error, "be written") from error
    try:
        os.close(descriptor)
        with Path(temporary).open("wb") as file:  # opened by name, so that callers can open it again
            yield file
            file.flush()
            if not remote:
                os.fsync(file.fileno())
        if not overwrite:
            refuse_existing(path)  # again, because writing may take long
        if remote:
            upload(temporary, path)
        else:
            os.chmod(temporary, mode)
            os.replace(temporary, target)
    except OSError as error:
        raise explained(path, error, "be written") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def upload(local: str, url: str) -> None:
    """Copy a local file to a URL as one object, which is visible only when complete.

    Raises:
        StorageError: The storage refused or could not be reached, or does not have the object afterwards.
    """
    filesystem, inner = filesystem_of(url)
    try:
        parent = inner.rpartition("/")[0]
        if parent:
            filesystem.makedirs(parent, exist_ok=True)
        # With its defaults, s3fs would keep half a gigabyte in memory.
        known = inspect.signature(filesystem._put_file if filesystem.async_impl else filesystem.put_file).parameters  # noqa: SLF001
        piece_bytes = max(_PIECE_BYTES, Path(local).stat().st_size // 9000)  # S3 accepts 10,000 pieces
        options = {"chunksize": piece_bytes, "max_concurrency": 4} if "max_concurrency" in known else {}
        filesystem.put_file(local, inner, **options)
        _check_size(filesystem, inner, url, Path(local).stat().st_size)
    except UnconfirmedError:
        raise
    except Exception as error:
        raise explained(url, error, "be written") from error


def download(url: str, local: str) -> None:
    """Copy an object to a local file.

    Raises:
        StorageError: The object does not exist, or the storage could not be reached.
    """
    filesystem, inner = filesystem_of(url)
    try:
        filesystem.get_file(inner, local)
    except Exception as error:
        raise explained(url, error, "be read") from error


def remove_all(url: str) -> None:
    """Remove a local file, an object, or everything below a prefix of objects. If it is missing, that is not an error.

    Raises:
        StorageError: The storage refused or could not be reached.
    """
    if not is_remote(url):
        try:
            Path(url).unlink(missing_ok=True)
        except OSError as error:
            raise explained(url, error, "be removed") from error
        return
    filesystem, inner = filesystem_of(url)
    filesystem.invalidate_cache()
    try:
        if _glob.has_magic(inner):
            for name in filesystem.find(inner):
                filesystem.rm_file(name)
        else:
            filesystem.rm(inner, recursive=True)
    except FileNotFoundError:
        pass
    except Exception as error:
        raise explained(url, error, "be removed") from error


# ---- objects that are written once ------------------------------------------------------------------------------------------


def check_protocol(url: str) -> None:
    """Refuse a URL without an installed driver, without using the network.

    Raises:
        StorageError: The protocol is unknown, or the package for it is not installed.
    """
    try:
        from fsspec.registry import get_filesystem_class

        get_filesystem_class(url.split("://", 1)[0].rpartition("::")[2])
    except (ImportError, ValueError) as error:
        raise _no_driver(url, error) from error


def _no_driver(url: str, error: Exception) -> StorageError:
    # fsspec's own message names the package to install ("Install s3fs to access S3") or the unknown protocol.
    extra = f": pip install '{DISTRIBUTION}[s3]'" if isinstance(error, ImportError) and "s3fs" in str(error) else ""
    return StorageError(f"{without_secrets(url)}: {error}{extra}")


def put(local: str, url: str, *, replace: bool = False, timeout_s: float | None = None) -> None:
    """Copy a local file to a URL as one object, which is visible only when complete.

    Uses one request if the storage supports that (S3 up to 5 GiB), so that no parts are left after a failure.

    Args:
        local: The file.
        url: The object's name.
        replace: Replace an existing object. Otherwise, the object is made exclusively if the storage supports that, else
            after a check that it does not exist.
        timeout_s: Timeout of the request in seconds, if the client of the storage supports one.

    Raises:
        AlreadyThereError: An object of that name exists.
        RefusedError: The storage refuses permanently; do not retry.
        TooSlowError: The request took longer than ``timeout_s``.
        UnconfirmedError: The storage accepted the object, but neither its answer nor a later check confirms it.
        StorageError: The storage could not be reached, or failed.
    """
    try:
        filesystem, inner = filesystem_of(url)
        put_file = filesystem._put_file if filesystem.async_impl else filesystem.put_file  # noqa: SLF001 - its arguments
        known = inspect.signature(put_file).parameters
        options: dict[str, Any] = {}
        limit = {"timeout": timeout_s} if filesystem.async_impl and timeout_s is not None else {}
        size_bytes = Path(local).stat().st_size
        if "s3" in filesystem.protocol and "mode" in known and size_bytes < _ONE_REQUEST_BYTES:
            if not _put_in_one_request(filesystem, local, inner, replace=replace, limit=limit):
                _check_size(filesystem, inner, url, size_bytes, **limit)
            return
        if not replace:
            if "mode" in known:
                options["mode"] = "create"
            elif filesystem.exists(inner):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        filesystem.put_file(local, inner, **options, **limit)
        _check_size(filesystem, inner, url, size_bytes, **limit)
    except Exception as error:
        raise _explain_put(url, error) from error


def _put_in_one_request(filesystem: Any, local: str, inner: str, *, replace: bool, limit: dict[str, float]) -> bool:
    """Put an object on S3; return True if the answer confirms it by the MD5 of the content.

    ``put_file`` of s3fs does not return the answer, and a check of the size needs the permission to read. For a bucket with KMS
    encryption, the ETag in the answer is not the MD5.
    """
    import hashlib
    import mimetypes

    content = Path(local).read_bytes()
    bucket, key, _ = filesystem.split_path(inner)
    options: dict[str, Any] = {} if replace else {"IfNoneMatch": "*"}
    content_type, _ = mimetypes.guess_type(local)
    if content_type is not None:
        options["ContentType"] = content_type
    answer = filesystem.call_s3("put_object", Bucket=bucket, Key=key, Body=content, **options, **limit)
    filesystem.invalidate_cache(inner)
    etag = str(answer.get("ETag", "")).strip('"')
    return etag == hashlib.md5(content, usedforsecurity=False).hexdigest()


def _check_size(filesystem: Any, inner: str, url: str, size_bytes: int, **limit: float) -> None:
    """Raise if an object that was just written does not exist with its size."""
    filesystem.invalidate_cache()
    try:
        found = filesystem.info(inner, **limit).get("size")
    except FileNotFoundError:
        found = None
    if found != size_bytes:
        there = "it is not there" if found is None else f"its size is {found} bytes"
        raise UnconfirmedError(
            f"{without_secrets(url)}: the storage accepted {size_bytes} bytes, and then {there}; is this an object store, or "
            "a proxy or login page in front of it?"
        )


def read(url: str, *, timeout_s: float | None = None) -> bytes | None:
    """Return the content of an object, or None if it does not exist.

    Raises:
        StorageError: The object cannot be read.
    """
    try:
        filesystem, inner = filesystem_of(url)
        options = {"timeout": timeout_s} if filesystem.async_impl and timeout_s is not None else {}
        return bytes(filesystem.cat_file(inner, **options))
    except FileNotFoundError:
        return None
    except Exception as error:
        raise _explain_put(url, error, "be read") from error


def _explain_put(url: str, error: Exception, what: str = "be written") -> StorageError:
    if isinstance(error, StorageError):
        return error
    if isinstance(error, TimeoutError):
        return TooSlowError(f"{without_secrets(url)}: cannot {what}: no answer in time")
    problem = explained(url, error, what)
    response = getattr(error.__cause__, "response", None) or {}  # of botocore; s3fs wraps its errors
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    if isinstance(error, FileExistsError) or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return AlreadyThereError(str(problem))
    status = next((getattr(error, name) for name in ("code", "status", "status_code") if hasattr(error, name)), None)
    refused = isinstance(error, PermissionError | FileNotFoundError) or type(error).__name__ in _NO_CREDENTIALS
    return RefusedError(str(problem)) if refused or status in (401, 403) else problem
