"""``perfetto_manifest``: the JSON document in an archive by which Perfetto v58 and later place its traces.

Source of the rules: Perfetto's "Trace manifest format" (version 1) and its reader. What one field can break is in
``schemas/perfetto_manifest.schema.json``; what needs several, or the archive, is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.trace_event import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MANIFEST_KEY", "MANIFEST_NAME", "encode_manifest", "file_entry", "manifest_problems"]

MANIFEST_KEY: Final = "perfetto_manifest"
MANIFEST_NAME: Final = "perfetto_manifest.json"


def file_entry(path: str, machine: str, sync_to: str | None, offset_ns: int) -> dict[str, Any]:
    """Return what a manifest says of one file.

    Args:
        path: The member of the archive.
        machine: The name of the machine that its processes are shown under; files of one machine share processes.
        sync_to: The member whose clock is the reference; None for that one itself.
        offset_ns: What to add to its times to get those of the reference.
    """
    entry: dict[str, Any] = {"path": path, "machine": {"name": machine}}
    if sync_to is not None:
        entry["clocks"] = {"sync_to": {"file": sync_to}, "offset_ns": offset_ns}
    return entry


def encode_manifest(files: list[dict[str, Any]], attributes: dict[str, str | int]) -> bytes:
    """Return a manifest.

    Args:
        files: As `file_entry` makes them.
        attributes: What else shall be known about the archive.
    """
    # Perfetto knows it by its first bytes, so the key stands first and nothing stands before it.
    return encode_json({MANIFEST_KEY: {"version": 1, "files": files, "attributes": attributes}}) + b"\n"


def manifest_problems(document: Any, members: Iterable[str] | None = None) -> list[str]:
    """Return what is wrong with a manifest that fits its schema.

    Args:
        document: The document, decoded.
        members: The traces in its archive; None when there is no archive to look at.
    """
    manifest = document[MANIFEST_KEY]
    files = manifest.get("files", [])
    paths = [entry["path"] for entry in files]
    problems = [
        f"files: {path!r} is listed twice" for path in sorted({path for path in paths if paths.count(path) > 1})
    ]
    if members is not None:
        present = set(members)
        problems += [f"files: {path!r} is not in the archive" for path in paths if path not in present]
    machines = {entry["path"]: _machines(entry) for entry in files}
    wanted = manifest.get("trace_time", {})
    if "file" in wanted:
        problems += _reference_problems("trace_time", wanted, machines)
    for entry in files:
        clocks = entry.get("clocks")
        if clocks is None:
            continue
        where = f"files: clocks of {entry['path']!r}"
        reference = clocks["sync_to"]
        problems += _reference_problems(f"{where}: sync_to", reference, machines)
        if reference["file"] == entry["path"] and clocks.get("clock") == reference.get("clock"):
            problems.append(f"{where}: a file cannot be placed by itself")
        own = machines[entry["path"]]
        if own is not None and clocks.get("machine") not in own:
            problems.append(f"{where}: name which of its machines the clock is on")
    return problems


def _machines(entry: dict[str, Any]) -> set[str] | None:
    """Return the machines that a file of several declares, None for a file of one."""
    return {machine["name"] for machine in entry["machines"]} if "machines" in entry else None


def _reference_problems(where: str, reference: dict[str, Any], machines: dict[str, set[str] | None]) -> list[str]:
    file = reference["file"]
    if file not in machines:
        return [f"{where}: {file!r} is not listed in files"]
    declared = machines[file]
    if declared is not None and reference.get("machine") not in declared:
        return [f"{where}: name which machine of {file!r} is meant"]
    return []
