r"""Repair of one JSON object that a strict parser refused.

torch.profiler writes such objects itself: names, stack file names and metadata with unescaped quotes, raw control
characters, bare NaN (pytorch#146900); other tools add trailing commas and bare words. The repair walks the text once
and decides for every quote inside a string whether it can be the closing one by what follows it.
"""

from __future__ import annotations

import re
from typing import Final

_MOST_NESTED: Final = 20_000
"""Levels of brackets beyond which no decoder follows: deeper objects are not repaired."""

_SPACE: Final = re.compile(rb"\s*")
_WORD: Final = re.compile(rb'[^\s,:{}\[\]"]+')
_LITERAL: Final = re.compile(rb"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NOT_FINITE: Final = re.compile(rb"[+-]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]+')
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')

# What may follow the quote that closes a key, a value in an object, a value in an array.
_AFTER_KEY: Final = re.compile(rb'"\s*:\s*["\[{\dtfnNiI+-]')
_AFTER_VALUE: Final = re.compile(rb'"\s*(?:,\s*(?:"[^"\\]*(?:\\.[^"\\]*)*"\s*:|\})|\}\s*(?:[,}\]]|\Z))', re.DOTALL)
_AFTER_ITEM: Final = re.compile(rb'"\s*(?:,\s*["\[{\dtfnN\]-]|\]\s*(?:[,}\]]|\Z))')

_SURROGATES: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)

_SIGN: Final = b'\\\\"'
# An even number of backslashes before a quote: the last two are the last character of the text.
_FINAL: Final = re.compile(rb'(?<!\\)((?:\\\\)*)\\\\(?=")')


def repair_text(text: bytes) -> tuple[bytes, list[str]]:
    r"""Make ``text`` valid UTF-8 without ``\ud83d\ude00`` escapes, which Perfetto refuses.

    Returns:
        The text, and the kinds of repair: "invalid_utf8", "surrogate_escape" (a pair, now the character itself),
        "lone_surrogate" (half a pair, now U+FFFD). Both lists are empty for the usual text, at the cost of a scan.
    """
    kinds: list[str] = []
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            text = text.decode(errors="replace").encode()
            kinds.append("invalid_utf8")
    if b"\\" in text and b"\\u" in text and _SURROGATES.search(text):

        def character(match: re.Match[bytes]) -> bytes:
            slashes, high, low = match.groups()
            if high is None:
                kinds.append("lone_surrogate")
                return bytes(slashes) + b"\\ufffd"
            kinds.append("surrogate_escape")
            code = 0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)
            return bytes(slashes) + chr(code).encode()

        text = _SURROGATES.sub(character, text)
    return text, kinds


def repair_object(text: bytes, start: int, limit: int) -> tuple[bytes, int, list[str]] | None:
    """Repair the object that begins at ``start``.

    Returns:
        The repaired object, where it ends in ``text``, and the kinds of repair; or None when it cannot be told where it
        ends before ``limit``, or it is nested too deeply.
    """
    text = text[start:limit]
    out = bytearray()
    kinds: list[str] = []
    closers: list[int] = []
    expect_key = False
    at = 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at >= len(text):
            return None
        char = text[at]
        if char in b"{[":
            if len(closers) == _MOST_NESTED:
                return None
            closers.append(ord("}") if char == ord("{") else ord("]"))
            expect_key = char == ord("{")
            out.append(char)
            at += 1
        elif char in b"}]":
            if not closers or closers.pop() != char:
                return None
            if out.endswith(b","):
                del out[-1]
                kinds.append("trailing_comma")
            out.append(char)
            at += 1
            expect_key = False
            if not closers:
                return bytes(out), start + at, kinds
        elif char == ord(","):
            out.append(char)
            at += 1
            expect_key = bool(closers) and closers[-1] == ord("}")
        elif char == ord(":"):
            out.append(char)
            at += 1
            expect_key = False
        elif char == ord('"'):
            in_object = bool(closers) and closers[-1] == ord("}")
            after = _AFTER_KEY if expect_key else _AFTER_VALUE if in_object else _AFTER_ITEM
            end = _repair_string(text, at + 1, after, out, kinds)
            if end < 0:
                return None
            at = end
        else:
            word = _WORD.match(text, at)
            if word is None:
                return None
            if _LITERAL.fullmatch(word[0]):
                out += word[0]
            else:
                kinds.append("not_finite" if _NOT_FINITE.fullmatch(word[0]) else "bare_word")
                _repair_string(word[0] + b'"]', 0, _AFTER_ITEM, out, [])
            at = word.end()


def _repair_string(text: bytes, at: int, after: re.Pattern[bytes], out: bytearray, kinds: list[str]) -> int:
    """Append the string whose content begins at ``at`` and return where it ends, or -1 when it does not."""
    out.append(ord('"'))
    while at < len(text):
        plain = _PLAIN.match(text, at)
        if plain:
            out += plain[0]
            at = plain.end()
            continue
        char = text[at]
        if char == ord('"'):
            if after.match(text, at):
                out.append(char)
                return at + 1
            kinds.append("unescaped_quote")
            out += b'\\"'
        elif char == ord("\\"):
            escape = _ESCAPE.match(text, at)
            if escape:
                out += escape[0]
                at = escape.end()
                continue
            kinds.append("bad_escape")
            out += b"\\\\"
        else:
            kinds.append("control_character")
            out += b"\\u%04x" % char
        at += 1
    return -1


def has_final_backslash(text: bytes) -> bool:
    """Tell whether a text in some JSON ends with a backslash that is written as two."""
    return _has_sign(text) and _FINAL.search(text) is not None


def without_final_backslash(text: bytes) -> bytes:
    r"""Return JSON that means the same, with ``\u005c`` for the backslash at the end of a text.

    Perfetto v52 takes the quote behind ``\\`` for an escaped one: it refuses the file, or (where the text stands in arguments)
    shows nothing of it. ``\u005c`` is the same character to every reader, and Perfetto shows it as it is written.
    """
    return _FINAL.sub(rb"\1\\u005c", text) if _has_sign(text) else text


def _has_sign(text: bytes) -> bool:
    # Most traces have no backslash at all; one character alone is searched for many times as fast as several.
    return b"\\" in text and _SIGN in text
