"""Values of literals: numbers, and text with its escapes."""

from __future__ import annotations

import re
from typing import Final

from dra_cel.basics.values import INT_MAX, INT_MIN, UINT_MAX, Uint

from .lexer import Source, Token

_ESCAPE: Final = re.compile(
    r"\\(?:([0-3][0-7]{2})|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SINGLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def number(source: Source, token: Token, *, negative: bool = False) -> int | float:
    """The value of an int, uint or double literal. Raises CompileError when it is out of range."""
    text = token.text
    if token.kind == "float":
        value = float(text)
        if value == float("inf"):
            source.fail(token.at, "invalid double literal: out of range")
        return -value if negative else value
    digits = text[:-1] if token.kind == "uint" else text
    if len(digits) > 40 and len(digits.lstrip("0x")) > 40:
        source.fail(token.at, f"invalid {token.kind} literal: out of range")
    whole = int(digits, 16) if digits.startswith("0x") else int(digits)
    whole = -whole if negative else whole
    if token.kind == "uint":
        if whole > UINT_MAX:
            source.fail(token.at, "invalid uint literal: out of range")
        return Uint(whole)
    if not INT_MIN <= whole <= INT_MAX:
        source.fail(token.at, "invalid int literal: out of range")
    return whole


def string(source: Source, token: Token) -> str:
    """The text of a string literal."""
    raw, body = _body(token.text)
    if raw:
        return body

    def character(match: re.Match[str]) -> str:
        octal, byte, short, long, single = match.groups()
        if single is not None:
            return _SINGLE.get(single, single)
        code = int(octal, 8) if octal else int(byte or short or long, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            source.fail(token.at, f"{match.group()} is not a Unicode character")
        return chr(code)

    return _ESCAPE.sub(character, body)


def bytes_(source: Source, token: Token) -> bytes:
    """The value of a bytes literal: escapes are bytes, other characters their UTF-8 encoding."""
    raw, body = _body(token.text[1:])
    if raw:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(body):
        octal, byte, short, long, single = match.groups()
        if short or long:
            source.fail(token.at, f"{match.group()} is not possible in bytes: use \\x escapes")
        code = _SINGLE.get(single, single) if single is not None else chr(int(octal, 8) if octal else int(byte, 16))
        parts += [body[end : match.start()].encode(), code.encode("latin-1")]
        end = match.end()
    return b"".join([*parts, body[end:].encode()])


def _body(text: str) -> tuple[bool, str]:
    """Whether a literal is raw, and what its quotes hold. Line ends are normalised."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    width = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1
    return raw, text[width:-width]
