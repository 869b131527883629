"""Read a pickle of plain values from an untrusted source. Never calls, imports or looks up anything in it.

Python's `pickle` calls functions that a pickle names. Even without calls, it allocates the sizes that a pickle claims:
a memo with 2**32 entries, a string of many GB. This module accepts the binary opcodes of containers, numbers and
strings (protocol 2 to 5), and rejects all others. It limits the number of opcodes, the number of containers and the
length of numbers.

Source: CPython's ``Lib/pickletools.py``, which has the table of all opcodes.
"""

from __future__ import annotations

import pickletools
import sys
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_OPCODES: Final = 8_000_000
_MAX_CONTAINERS: Final = 2_000_000
_MAX_INTEGER_BYTES: Final = 16
_NEWEST: Final = 5

_DOUBLE: Final = Struct(">d")
_OPCODES: Final = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_STOP: Final = ord(".")
# Sizes of the length fields in front of arguments.
_LENGTHS: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


class PickleRefusedError(ValueError):
    """The data is not a pickle, contains more than plain values, or exceeds a limit."""


class _CutError(Exception):
    """The pickle is cut off."""


def is_pickle(head: bytes) -> bool:
    """Return True if these first bytes are of a pickle of protocol 2 to 5."""
    return head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05"


def read_pickle(data: bytes) -> tuple[Any, bool]:
    """Return the value of a pickle, and True for a complete pickle. A cut pickle has the values before the cut.

    A value may occur several times, also within itself, so callers must limit their traversal.

    Raises:
        PickleRefusedError: The pickle needs a call or an import, is damaged, or exceeds a limit.
    """
    machine = _Machine(data)
    try:
        return machine.run(), True
    except _CutError:
        return machine.rescued(), False
    except PickleRefusedError:
        raise
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise PickleRefusedError(f"the pickle is damaged at byte {machine.at}") from error


class _Machine:
    """The machine that executes a pickle: a stack, and a memo of values."""

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0
        known = self._operations()
        self._do = {
            code: (known[opcode.name], 0 if opcode.arg is None else opcode.arg.n)
            for code, opcode in _OPCODES.items()
            if opcode.name in known
        }

    def run(self) -> Any:
        """Execute the opcodes up to STOP; return the value."""
        for _ in range(_MAX_OPCODES):
            (code,) = self._take(1)
            if code == _STOP:
                (value,) = self._stack
                return value
            if code not in self._do:
                name = _OPCODES[code].name if code in _OPCODES else "unknown"
                raise PickleRefusedError(
                    f"the pickle holds more than plain values: at byte {self.at - 1} it asks for another object "
                    f"(opcode {name}, {code:#04x}); it is not read any further"
                )
            operation, size = self._do[code]
            operation(self._argument(size) if size else b"")
        raise PickleRefusedError(f"the pickle has more than {_MAX_OPCODES} opcodes")

    def rescued(self) -> Any:
        """Return the values of a cut pickle. Close all containers that were being filled."""
        try:
            while self._marks:
                values = self._marked()
                below = self._stack[-1] if self._stack else None
                if isinstance(below, dict) and len(values) % 2:
                    values.pop()
                if isinstance(below, list | dict):
                    self._fill(values)
            return self._stack[0] if self._stack else None
        except (IndexError, TypeError):
            return None

    def _take(self, count: int) -> bytes:
        if count < 0:
            raise PickleRefusedError(f"the pickle is damaged at byte {self.at}: a negative length")
        end = self.at + count
        if end > len(self._data):
            raise _CutError
        taken, self.at = self._data[self.at : end], end
        return taken

    def _argument(self, size: int) -> bytes:
        if size >= 0:
            return self._take(size)
        length = self._take(_LENGTHS[size])
        return self._take(int.from_bytes(length, "little", signed=size == pickletools.TAKEN_FROM_ARGUMENT4))

    # The opcodes, each called with its argument.

    def _operations(self) -> dict[str, Callable[[bytes], object]]:
        push, container = self._stack.append, self._container
        return {
            "PROTO": self._protocol,
            "FRAME": lambda _: None,
            "MARK": lambda _: self._marks.append(len(self._stack)),
            "POP": self._pop,
            "POP_MARK": lambda _: self._marked(),
            "DUP": lambda _: push(self._stack[-1]),
            "NONE": lambda _: push(None),
            "NEWTRUE": lambda _: push(True),
            "NEWFALSE": lambda _: push(False),
            **dict.fromkeys(("BININT1", "BININT2"), lambda number: push(_unsigned(number))),
            **dict.fromkeys(("BININT", "LONG1", "LONG4"), self._integer),
            "BINFLOAT": lambda number: push(_DOUBLE.unpack(number)[0]),
            **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"), push),
            # The first two are of Python 2.
            **dict.fromkeys(
                ("SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
                lambda text: push(text.decode("utf-8", "replace")),
            ),
            "EMPTY_LIST": lambda _: container([]),
            "EMPTY_DICT": lambda _: container({}),
            "EMPTY_TUPLE": lambda _: push(()),
            "TUPLE1": lambda _: container(tuple(self._popped(1))),
            "TUPLE2": lambda _: container(tuple(self._popped(2))),
            "TUPLE3": lambda _: container(tuple(self._popped(3))),
            "TUPLE": lambda _: container(tuple(self._marked())),
            "LIST": lambda _: container(self._marked()),
            "DICT": self._dict,
            "APPEND": lambda _: self._fill(self._popped(1)),
            "SETITEM": lambda _: self._fill(self._popped(2)),
            **dict.fromkeys(("APPENDS", "SETITEMS"), lambda _: self._fill(self._marked())),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda number: push(self._memo[_unsigned(number)])),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda number: self._remember(_unsigned(number))),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
        }

    def _protocol(self, number: bytes) -> None:
        if number[0] > _NEWEST:
            raise PickleRefusedError(f"the pickle is of a protocol later than {_NEWEST}")

    def _integer(self, number: bytes) -> None:
        if len(number) > _MAX_INTEGER_BYTES:
            begin = self.at - len(number)
            raise PickleRefusedError(f"at byte {begin} of the pickle there is a number of {len(number)} bytes")
        self._stack.append(int.from_bytes(number, "little", signed=True))

    def _container(self, value: Any) -> None:
        self._containers += 1
        if self._containers > _MAX_CONTAINERS:
            raise PickleRefusedError(f"the pickle holds more than {_MAX_CONTAINERS} lists and dicts")
        self._stack.append(value)

    def _dict(self, _: bytes) -> None:
        values = self._marked()
        self._container({})
        self._fill(values)

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _pop(self, _: bytes) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _popped(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _marked(self) -> list[Any]:
        at = self._marks.pop()
        values = self._stack[at:]
        del self._stack[at:]
        return values

    def _fill(self, values: list[Any]) -> None:
        """Add values to the list, or keys and values to the dict, at the top of the stack."""
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(values)
            return
        if not isinstance(target, dict):
            raise TypeError
        for key, value in zip(values[::2], values[1::2], strict=True):
            # The hash of a tuple covers all its items at any depth; hashes of integers repeat from 2^61 - 1 on.
            if not isinstance(key, (str, bytes)) and not (isinstance(key, int) and abs(key) < sys.hash_info.modulus):
                raise TypeError
            target[key] = value


def _unsigned(number: bytes) -> int:
    return int.from_bytes(number, "little")
