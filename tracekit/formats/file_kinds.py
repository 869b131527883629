"""Recognise packed files, and files that are not traces, so that an error can name their kind and the way to convert them."""

from __future__ import annotations

import re
from typing import Final

HEAD_BYTES: Final = 4096
"""Number of first bytes that identify the kind of a file."""

GZIP_MAGIC: Final = b"\x1f\x8b"
_ZIP_MAGIC: Final = b"PK\x03\x04"
# A frame of zstd, or a skippable one as pzstd writes.
_ZSTD: Final = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
_TAR_MAGIC: Final = slice(257, 262)
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
# The first plane: its size, its optional number, and its name.
_XSPACE: Final = re.compile(
    rb"\n[\x80-\xff]*[\x00-\x7f](?:\x08[\x80-\xff]*[\x00-\x7f])?\x12[\x00-\x7f](?:/host:|/device:|Task Environment)"
)
# The first bytes of each binary kind.
_BINARY: Final = (
    (_ZIP_MAGIC, "a zip archive (or a file of torch.save); unpack it and merge what is in it"),
    (GZIP_MAGIC, "packed twice with gzip; unpack it once"),
    (b"BZh", "packed with bzip2; unpack it"),
    (b"\xfd7zXZ\0", "packed with xz; unpack it"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it"),
    (b"SQLite format 3\0", "an SQLite database, such as Nsight Systems exports"),
    (b"\x7fELF", "a program"),
    (b"\x89PNG", "a picture"),
    ((b"\xff\xfe", b"\xfe\xff"), "text in UTF-16; save it as UTF-8"),
    (b"version https://git-lfs", "a pointer of Git LFS; fetch the file itself with git lfs pull"),
)
# The first bytes of text kinds, after optional white space, in any case.
_TEXT: Final = (
    ((b"<!doctype html", b"<html"), "an HTML page, such as a login or error page that was saved in place of a file"),
    ((b"<?xml", b"<error"), "an XML document, such as the error message of an object store"),
)
# Patterns in the first bytes of kinds of JSON.
_JSON: Final = (
    (re.compile(rb'\A\{\s*"perfetto_manifest"'), "the manifest of an archive; merge the traces beside it"),
    (re.compile(rb'"schema"\s*:\s*"[^"]*chakra'), "an execution trace of torch, which is no timeline"),
    (
        re.compile(rb'"tracekit_index"'),
        "the index of a recording on a remote storage; merge the segments that it names",
    ),
    (re.compile(rb'"\$schema"\s*:\s*"[^"]*speedscope'), "a profile for speedscope"),
    (re.compile(rb'\A\{\s*"nodes"(?s:.*)"(?:samples|startTime)"'), "a CPU profile of a browser"),
    (re.compile(rb"\A\[\s*\[[\s\d,.]*\]"), "a memory timeline of torch.profiler, or another table of numbers"),
)
_MEMORY_SNAPSHOT: Final = re.compile(rb"device_traces|segments")


def packing_of(head: bytes) -> str:
    """Return the packing of a file from its first bytes: "gzip", "zstd", "zip" or "tar"; empty for any other file."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    if head.startswith(_ZIP_MAGIC):
        return "zip"
    if _ZSTD.match(head):
        return "zstd"
    return "tar" if head[_TAR_MAGIC] == b"ustar" else ""


def seems_to_be(head: bytes) -> str:
    """Return the kind of a file that is not a trace, and a way to convert it; empty if the kind is unknown.

    Args:
        head: Its first bytes, unpacked, usually `HEAD_BYTES` of them.
    """
    if not head.strip(b"\0"):
        return "nothing but zeros, as after a crash of the machine that wrote it" if head else ""
    for magic, words in _BINARY:
        if head.startswith(magic):
            return words
    if packing_of(head) == "tar":
        return "a tar archive; unpack it and merge what is in it"
    if _PICKLE.match(head):
        snapshot = "a memory snapshot of torch; look at it with memory_viz (a pickle)"
        return snapshot if _MEMORY_SNAPSHOT.search(head) else "a pickle of Python"
    text = head.lstrip()
    for starts, words in _TEXT:
        if text[:20].lower().startswith(starts):
            return words
    if text.startswith((b"{", b"[")):
        return next((words for pattern, words in _JSON if pattern.search(text)), "")
    if _XSPACE.match(head):
        return "a protobuf of XLA's profiler (xplane.pb), whose trace.json.gz is not next to it; merge that"
    # The first byte of Perfetto's protobuf is a line break in text.
    return "a protobuf trace of Perfetto (pftrace)" if head.startswith(b"\n") and _CONTROL.search(head) else ""
