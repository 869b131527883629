"""Parses ``CUDA_VISIBLE_DEVICES`` (CUDA programming guide, "CUDA Environment Variables")."""

from __future__ import annotations

import re

_INDEX = re.compile(r"\s*\+?(\d+)")


def visible_devices(value: str | None) -> list[int | str] | None:
    """Return the devices that CUDA shows a process, in CUDA's order; None if it shows all.

    A number is an index, a string a UUID or the beginning of one ("GPU-8932f937", "MIG-...", "MIG-GPU-.../1/0"). As in CUDA,
    the first entry that is neither ends the list ("0,-1,1" shows only device 0), as does a UUID among numbers or a number
    among UUIDs. A duplicate entry makes the list empty.

    Args:
        value: The value of the variable, or None if it is not set.
    """
    if value is None:
        return None
    found: list[int | str] = []
    for entry in value.split(","):
        text = entry.strip()
        device: int | str
        if text.startswith(("GPU-", "MIG-")):
            device = text
        elif match := _INDEX.match(entry):  # CUDA reads a number as strtoul does: "1x" is 1
            device = int(match[1])
        else:
            break
        if found and type(device) is not type(found[0]):
            break
        if device in found:
            return []
        found.append(device)
    return found
