"""Split source text into tokens, each the longest that CEL's grammar allows, and read the values of literals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from dra_cel.basics.errors import CompileError, Issue
from dra_cel.basics.values import INT_MAX, INT_MIN, UINT_MAX, Uint

SOURCE_CHARACTERS: Final = 100_000
"""Longest source, in code points (Kubernetes' API limits selectors to 10,240 bytes)."""

_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"""
_STRING = "|".join(
    [
        r'[rR]"""(?s:.*?)"""',
        r"[rR]'''(?s:.*?)'''",
        r'[rR]"[^"\n\r]*"',
        r"[rR]'[^'\n\r]*'",
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
    ]
)
_TOKENS: Final = re.compile(
    "|".join(
        [
            r"(?P<space>[\t \r\n\x0c]+|//[^\n]*)",
            rf"(?P<bytes>[bB](?:{_STRING}))",
            rf"(?P<string>{_STRING})",
            r"(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)",
            r"(?P<uint>0x[0-9a-fA-F]+[uU]|[0-9]+[uU])",
            r"(?P<int>0x[0-9a-fA-F]+|[0-9]+)",
            r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)",
            r"(?P<quoted>`[A-Za-z0-9_.\-/ ]+`)",
            r"(?P<sign>==|!=|<=|>=|&&|\|\||[<>\[\]{}().,\-!?:+*/%])",
        ]
    ),
    re.ASCII,
)
_KEYWORDS: Final = frozenset({"in", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is ``name``, ``int``, ``uint``, ``float``, ``string``, ``bytes``, ``quoted``, ``end``, or for signs and
    keywords the text itself."""

    kind: str
    text: str
    at: int


class Source:
    """The text of an expression, with positions and the errors about them."""

    def __init__(self, text: str) -> None:
        self.text = text

    def issue(self, at: int, kind: str, message: str) -> Issue:
        before = self.text[:at]
        return Issue(before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1, kind, message)

    def fail(self, at: int, message: str, kind: str = "syntax") -> NoReturn:
        raise CompileError((self.issue(at, kind, message),), self.text)


def tokens(source: Source) -> tuple[list[Token], Issue | None]:
    """The tokens of the source, the last of kind ``end``, and the complaint about the first character outside of all
    tokens. Raises CompileError if the source is too long."""
    text = source.text
    if len(text) > SOURCE_CHARACTERS:
        source.fail(0, f"the expression has {len(text)} characters, more than {SOURCE_CHARACTERS}")
    found: list[Token] = []
    stray: Issue | None = None
    at = 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            stray = stray or source.issue(at, "syntax", f"unexpected character {text[at]!r}{_hint(text[at])}")
            at += 1
            continue
        kind = match.lastgroup or ""
        if kind != "space":
            word = match.group()
            found.append(Token(word if kind == "sign" or word in _KEYWORDS else kind, word, at))
        at = match.end()
    found.append(Token("end", "", len(text)))
    return found, stray


def _hint(character: str) -> str:
    if character in "\"'":
        return ": the text that starts here does not end, or holds a bad escape"
    if character == "=":
        return ": equality is written =="
    if character in "&|":
        return f": the operator is written {character * 2}"
    return ""


_ESCAPED: Final = re.compile(
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

    return _ESCAPED.sub(character, body)


def bytes_(source: Source, token: Token) -> bytes:
    """The value of a bytes literal: escapes are bytes, other characters their UTF-8 encoding."""
    raw, body = _body(token.text[1:])
    if raw:
        return body.encode()
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPED.finditer(body):
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
