"""The exceptions of tracekit.

::

    TracekitError
    ├── ConfigError            a wrong argument; raised before training starts  (also a ValueError)
    │   └── TimeError          a wrong time, time string, unit or state dict
    ├── HandlerError           a trace handler or source failed; raised only under TRACEKIT_STRICT=1
    ├── StorageError           a file, folder or URL cannot be read or written
    ├── TraceFormatError       a trace file cannot be read in its format
    ├── MergeError             the inputs of a merge do not fit together
    ├── TimerError             a timer is used in an invalid order, or a rank's timers are missing
    ├── QueryError             a query is wrong, or exceeds its limits
    ├── MissingExtraError      an optional dependency is not installed  (also an ImportError)
    └── CommandError           a command line run ends with this message and exit code

Every message is a sentence or two: what happened, where, and what to do. At run time tracekit logs and counts
instead of raising (see ``recording/lifecycle.py``), so none of these reaches a training loop after it has started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.version import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Callable


class TracekitError(Exception):
    """Base of every error that tracekit raises on purpose."""


class ConfigError(TracekitError, ValueError):
    """An argument is wrong. The message names the accepted values."""


class TimeError(ConfigError):
    """A training time, time string, unit or state dict is wrong. The message names the accepted values."""


class HandlerError(TracekitError):
    """A trace handler or a source failed while recording. Raised only under ``TRACEKIT_STRICT=1``."""


class StorageError(TracekitError):
    """A file, folder or URL cannot be read or written."""


class TraceFormatError(TracekitError):
    """A trace file cannot be read.

    Attributes:
        path: The file, as the user named it.
        offset_bytes: Offset of the error in the (decompressed) file, or None for the whole file.
        reason: Description of the error.
    """

    def __init__(self, path: str, reason: str, *, offset_bytes: int | None = None) -> None:
        self.path = path
        self.offset_bytes = offset_bytes
        self.reason = reason
        where = path if offset_bytes is None else f"{path}, byte {offset_bytes}"
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[Callable[..., TraceFormatError], tuple[str, str, int | None]]:
        return _trace_format_error, (self.path, self.reason, self.offset_bytes)


def _trace_format_error(path: str, reason: str, offset_bytes: int | None) -> TraceFormatError:
    """Rebuild an error that comes from another process."""
    return TraceFormatError(path, reason, offset_bytes=offset_bytes)


class MergeError(TracekitError):
    """The inputs of a merge do not fit together, for example two files that claim one rank and one process."""


class TimerError(TracekitError):
    """A timer is started twice, stopped without a start or read while it is off, or a report lacks ranks, a writer or a step."""


class QueryError(TracekitError):
    """A query is wrong, exceeds its limits, or the engine that runs it has failed."""


class MissingExtraError(TracekitError, ImportError):
    """An optional dependency is missing; the message names the extra to install.

    Args:
        package: The package that could not be imported.
        extra: The extra of tracekit that brings it.
        purpose: The feature that needs it, as the start of a sentence.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install '{DISTRIBUTION}[{extra}]'")


class CommandError(TracekitError):
    """Ends a command with a message on standard error.

    Attributes:
        exit_code: 1 failure, 2 wrong usage, 3 problems found.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(message)
