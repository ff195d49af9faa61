"""Splits source text into tokens, each the longest that CEL's grammar allows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from dra_cel.basics.errors import CompileError, Issue

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
