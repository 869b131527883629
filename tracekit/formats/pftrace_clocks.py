"""The clocks of a native trace: every time becomes ns since the epoch where the trace knows that clock.

A packet tells its time on a clock of its own choice; snapshots say what several clocks showed at one moment. Clocks 64 to
127 belong to one sequence of packets, and may count from the packet before.
"""

from __future__ import annotations

from typing import Final

from tracekit.formats.protobuf_wire import fields

__all__ = ["BOOTTIME", "Clocks"]

BOOTTIME: Final = 6
_REALTIME: Final = 1
_FIRST_OF_SEQUENCE: Final = 64
_LAST_OF_SEQUENCE: Final = 127


class Clocks:
    """What is known about the clocks of a trace so far."""

    def __init__(self) -> None:
        # By clock (and by sequence, for its own ones): what to add to its ns to have those of boot time.
        self._to_boot_ns: dict[tuple[int, int], int] = {(0, BOOTTIME): 0}
        self._units_ns: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._boot_to_real_ns: int | None = None

    def snapshot(self, sequence: int, message: bytes) -> None:
        """Learn from a ``ClockSnapshot``."""
        found: dict[tuple[int, int], int] = {}
        for number, value in fields(message):
            if number == 1 and isinstance(value, bytes):
                clock = {key: item for key, item in fields(value) if isinstance(item, int)}
                key = self._key(sequence, clock.get(1, 0))
                unit_ns = clock.get(4, 1) or 1
                found[key] = clock.get(2, 0) * unit_ns
                self._units_ns[key] = unit_ns
                if clock.get(3):
                    self._last[key] = found[key]
        known = next((key for key in ((0, BOOTTIME), *found) if key in found and key in self._to_boot_ns), None)
        if known is None:
            return
        boot_ns = found[known] + self._to_boot_ns[known]
        for key, time_ns in found.items():
            self._to_boot_ns[key] = boot_ns - time_ns
        real = found.get((0, _REALTIME))
        if real is not None and self._boot_to_real_ns is None:
            # One relation for the whole trace: later ones differ by steps of the clock.
            self._boot_to_real_ns = real - boot_ns

    def time_ns(self, sequence: int, clock: int, time: int) -> int | None:
        """Return the time of a packet, ns since the epoch (or since boot, where the trace knows no more); None if unknown."""
        key = self._key(sequence, clock)
        time_ns = time * self._units_ns.get(key, 1)
        if key in self._last:
            time_ns = self._last[key] = self._last[key] + time_ns
        to_boot_ns = self._to_boot_ns.get(key)
        return None if to_boot_ns is None else time_ns + to_boot_ns + (self._boot_to_real_ns or 0)

    @staticmethod
    def _key(sequence: int, clock: int) -> tuple[int, int]:
        return (sequence if _FIRST_OF_SEQUENCE <= clock <= _LAST_OF_SEQUENCE else 0, clock)
