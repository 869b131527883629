r"""Repair of one JSON object that a strict parser refused.

torch.profiler writes such objects itself: names, stack file names and metadata with unescaped quotes, raw control
characters, bare NaN (pytorch#146900); other tools add trailing commas and bare words. The repair walks the text once
and decides for every quote inside a string whether it can be the closing one by what follows it.
"""

from __future__ import annotations

import re
from typing import Final

_MOST_NESTED: Final = 20_000  # levels of brackets beyond which no decoder follows: deeper objects are not repaired
_SPACE: Final = re.compile(rb"\s*")
_WORD: Final = re.compile(rb'[^\s,:{}\[\]"]+')
_LITERAL: Final = re.compile(rb"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NOT_FINITE: Final = re.compile(rb"[+-]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]+')
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')

# Characters of a string that need a backslash.
_BAD: Final = {ord('"'): ("unescaped_quote", b'\\"'), ord("\\"): ("bad_escape", b"\\\\")}

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
        The repaired object, its end in ``text``, and the kinds of repair; None if it has no clear end, or is nested too deeply.
    """
    out = bytearray()
    kinds: list[str] = []
    closers: list[int] = []
    expect_key = False
    at, limit = start, min(limit, len(text))
    while (at := _end_of(_SPACE, text, at, limit)) < limit:
        char = text[at]
        if char in b"{[":
            if len(closers) == _MOST_NESTED:
                return None
            closers.append(ord("}") if char == ord("{") else ord("]"))
            expect_key = char == ord("{")
        elif char in b"}]":
            if not closers or closers.pop() != char:
                return None
            if out.endswith(b","):
                del out[-1]
                kinds.append("trailing_comma")
            expect_key = False
            if not closers:
                return bytes(out) + b"%c" % char, at + 1, kinds
        elif char in b",:":
            expect_key = char == ord(",") and closers[-1:] == [ord("}")]
        elif char == ord('"'):
            after = _AFTER_KEY if expect_key else _AFTER_VALUE if closers[-1:] == [ord("}")] else _AFTER_ITEM
            at = _repair_string(text, at + 1, limit, after, out, kinds)
            if at < 0:
                return None
            continue
        else:
            end = _end_of(_WORD, text, at, limit)
            word = text[at:end]
            if not word:
                return None
            if _LITERAL.fullmatch(word):
                out += word
            else:
                kinds.append("not_finite" if _NOT_FINITE.fullmatch(word) else "bare_word")
                _repair_string(word + b'"]', 0, end - at + 2, _AFTER_ITEM, out, [])
            at = end
            continue
        out.append(char)
        at += 1
    return None


def _end_of(pattern: re.Pattern[bytes], text: bytes, at: int, limit: int) -> int:
    match = pattern.match(text, at, limit)
    return match.end() if match else at


def _repair_string(text: bytes, at: int, limit: int, after: re.Pattern[bytes], out: bytearray, kinds: list[str]) -> int:
    """Append the string whose content begins at ``at`` and return where it ends, or -1 when it does not."""
    out.append(ord('"'))
    while at < limit:
        end = _end_of(_PLAIN, text, at, limit)
        out += memoryview(text)[at:end]
        at = end
        if at == limit:
            break
        char = text[at]
        if char == ord('"') and after.match(text, at, limit):
            out.append(char)
            return at + 1
        if char == ord("\\") and (end := _end_of(_ESCAPE, text, at, limit)) > at:
            out += text[at:end]
            at = end
            continue
        kind, escaped = _BAD.get(char, ("control_character", b"\\u%04x" % char))
        kinds.append(kind)
        out += escaped
        at += 1
    return -1


def has_final_backslash(text: bytes) -> bool:
    """Return True if a text in some JSON ends with a backslash that is written as two."""
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
