"""Reads a pickle that holds nothing but plain values, from whomever it comes: nothing in it is called, imported or looked up.

Python's own reader runs what a pickle asks for, and one that is kept from that still makes whatever the pickle claims: a memo
with 2**32 places, a text of many GB. This one knows the opcodes of containers, numbers and texts (protocol 2 to 5, the binary
ones), refuses all others by name, and is bounded: in opcodes, in containers, in the length of numbers.

Source: CPython's ``Lib/pickletools.py``.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PickleRefusedError", "is_pickle", "read_pickle"]

_MAX_OPCODES: Final = 8_000_000
_MAX_CONTAINERS: Final = 2_000_000
_MAX_INTEGER_BYTES: Final = 16
_NEWEST: Final = 5

_UINT16: Final = Struct("<H")
_INT32: Final = Struct("<i")
_UINT32: Final = Struct("<I")
_UINT64: Final = Struct("<Q")
_DOUBLE: Final = Struct(">d")

_REFUSED: Final = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x50: "PERSID",
    0x51: "BINPERSID",
}
"""What makes objects of other kinds, as they are called in pickletools."""


class PickleRefusedError(ValueError):
    """A pickle holds more than plain values, or is none, or is beyond the bounds."""


class _CutError(Exception):
    """The pickle ends before its end."""


def is_pickle(head: bytes) -> bool:
    """Tell whether a file that begins so is a pickle of protocol 2 to 5."""
    return head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05"


def read_pickle(data: bytes) -> tuple[Any, bool]:
    """Return the value that a pickle holds, and whether it is whole; one that is cut off holds what came before.

    A value may occur at several places, and within itself: whoever walks through it bounds that.

    Raises:
        PickleRefusedError: It asks for something to be called or imported, is damaged, or is beyond the bounds.
    """
    machine = _Machine(data)
    try:
        machine.run()
        return machine.result(), True
    except _CutError:
        return machine.rescued(), False
    except (IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, PickleRefusedError):
            raise
        raise PickleRefusedError(f"the pickle is damaged at byte {machine.at}") from error


class _Machine:
    """The machine that a pickle is a program for: a stack, and a memo of what was made."""

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0
        self._do = self._operations()

    def run(self) -> None:
        """Go through the opcodes up to STOP."""
        data, operations = self._data, self._do
        for _ in range(_MAX_OPCODES):
            if self.at >= len(data):
                raise _CutError
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                return
            operation = operations.get(code)
            if operation is None:
                what = _REFUSED.get(code)
                why = f"it asks for an object to be made ({what})" if what else f"its opcode {code:#04x} is not known"
                raise PickleRefusedError(
                    f"the pickle holds more than plain values: at byte {self.at - 1} {why}; it is not read any further"
                )
            operation()
        raise PickleRefusedError(f"the pickle has more than {_MAX_OPCODES} opcodes")

    def result(self) -> Any:
        """Return the value at the end."""
        (value,) = self._stack
        return value

    def rescued(self) -> Any:
        """Return what a pickle that is cut off has made, with all containers closed that were being filled."""
        try:
            while self._marks:
                below = self._stack[self._marks[-1] - 1] if self._marks[-1] else None
                if isinstance(below, list):
                    self._appends()
                elif isinstance(below, dict):
                    if (len(self._stack) - self._marks[-1]) % 2:
                        self._stack.pop()
                    self._set_items()
                else:
                    del self._stack[self._marks.pop() :]
            return self._stack[0] if self._stack else None
        except (IndexError, TypeError):
            return None

    # What the opcodes do.

    def _operations(self) -> dict[int, Callable[[], object]]:
        push = self._push
        return {
            0x80: self._protocol,
            0x95: lambda: self._take(8),  # FRAME
            0x28: lambda: self._marks.append(len(self._stack)),  # MARK
            0x30: self._pop,
            0x31: self._marked,  # POP_MARK
            0x32: lambda: push(self._stack[-1]),  # DUP
            0x4E: lambda: push(None),
            0x88: lambda: push(True),
            0x89: lambda: push(False),
            0x4B: lambda: push(self._take(1)[0]),  # BININT1
            0x4D: lambda: push(_UINT16.unpack(self._take(2))[0]),
            0x4A: lambda: push(_INT32.unpack(self._take(4))[0]),
            0x8A: lambda: self._integer(self._take(1)[0]),  # LONG1
            0x8B: lambda: self._integer(_INT32.unpack(self._take(4))[0]),
            0x47: lambda: push(_DOUBLE.unpack(self._take(8))[0]),
            0x43: lambda: push(self._take(self._take(1)[0])),  # SHORT_BINBYTES
            0x42: lambda: push(self._take(_UINT32.unpack(self._take(4))[0])),
            0x8E: lambda: push(self._take(_UINT64.unpack(self._take(8))[0])),
            0x55: lambda: self._text(self._take(1)[0]),  # SHORT_BINSTRING, of Python 2
            0x54: lambda: self._text(_INT32.unpack(self._take(4))[0]),
            0x8C: lambda: self._text(self._take(1)[0]),
            0x58: lambda: self._text(_UINT32.unpack(self._take(4))[0]),
            0x8D: lambda: self._text(_UINT64.unpack(self._take(8))[0]),
            0x5D: lambda: self._container([]),
            0x7D: lambda: self._container({}),
            0x29: lambda: push(()),
            0x85: lambda: self._tuple(1),
            0x86: lambda: self._tuple(2),
            0x87: lambda: self._tuple(3),
            0x74: lambda: self._container(tuple(self._marked())),
            0x6C: lambda: self._container(self._marked()),
            0x64: self._dict,
            0x61: self._append,
            0x65: self._appends,
            0x73: self._set_item,
            0x75: self._set_items,
            0x68: lambda: push(self._memo[self._take(1)[0]]),  # BINGET
            0x6A: lambda: push(self._memo[_UINT32.unpack(self._take(4))[0]]),
            0x71: lambda: self._remember(self._take(1)[0]),  # BINPUT
            0x72: lambda: self._remember(_UINT32.unpack(self._take(4))[0]),
            0x94: lambda: self._remember(len(self._memo)),  # MEMOIZE
        }

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _take(self, count: int) -> bytes:
        if count < 0:
            raise PickleRefusedError(f"the pickle is damaged at byte {self.at}: a negative length")
        end = self.at + count
        if end > len(self._data):
            raise _CutError
        taken, self.at = self._data[self.at : end], end
        return taken

    def _protocol(self) -> None:
        if self._take(1)[0] > _NEWEST:
            raise PickleRefusedError(f"the pickle is of a protocol later than {_NEWEST}")

    def _integer(self, count: int) -> None:
        if count > _MAX_INTEGER_BYTES:
            raise PickleRefusedError(f"at byte {self.at} of the pickle there is a number of {count} bytes")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def _text(self, count: int) -> None:
        self._push(self._take(count).decode("utf-8", "replace"))

    def _container(self, value: Any) -> None:
        self._containers += 1
        if self._containers > _MAX_CONTAINERS:
            raise PickleRefusedError(f"the pickle holds more than {_MAX_CONTAINERS} lists and dicts")
        self._stack.append(value)

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _pop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _marked(self) -> list[Any]:
        """Take what is on the stack above the last mark."""
        at = self._marks.pop()
        values = self._stack[at:]
        del self._stack[at:]
        return values

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._container(values)

    def _list_below(self) -> list[Any]:
        found = self._stack[-1]
        if not isinstance(found, list):
            raise TypeError
        return found

    def _dict_below(self) -> dict[Any, Any]:
        found = self._stack[-1]
        if not isinstance(found, dict):
            raise TypeError
        return found

    def _append(self) -> None:
        value = self._stack.pop()
        self._list_below().append(value)

    def _appends(self) -> None:
        values = self._marked()
        self._list_below().extend(values)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _set(self._dict_below(), key, value)

    def _set_items(self) -> None:
        values = self._marked()
        target = self._dict_below()
        for key, value in zip(values[::2], values[1::2], strict=True):
            _set(target, key, value)

    def _dict(self) -> None:
        values = self._marked()
        found: dict[Any, Any] = {}
        for key, value in zip(values[::2], values[1::2], strict=True):
            _set(found, key, value)
        self._container(found)


def _set(target: dict[Any, Any], key: Any, value: Any) -> None:
    # The hash of a tuple is that of all that is in it, however deep; those of integers repeat from 2^61 - 1 on.
    if not isinstance(key, (str, bytes)) and not (isinstance(key, int) and abs(key) < sys.hash_info.modulus):
        raise TypeError
    target[key] = value
