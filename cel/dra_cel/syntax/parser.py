"""Turns the text of an expression into a tree.

Tokens are the longest that CEL's grammar allows; the values of literals are read from them. The parser is a descent
over CEL's grammar, run by :func:`walk` so that nesting does not use the Python stack. Nesting is limited as
in the reference, in two ways: no rule of the grammar may be inside itself more than 250 times, and no path through
the tree may meet more than 250 operators, selections and calls of methods. Chains of operators and of selections nest
on their left in the second sense only; ``&&`` and ``||`` take any number of terms, and count in neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from dra_cel.basics.errors import CompileError, Issue, Walk, walk
from dra_cel.basics.values import INT_MAX, INT_MIN, UINT_MAX, Uint
from dra_cel.syntax.tree import (
    Call,
    Entry,
    Field,
    Ident,
    ListLiteral,
    Literal,
    Macros,
    MapLiteral,
    Node,
    Select,
    Source,
    StructLiteral,
)

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


DEPTH_LEVELS: Final = 250
_RESERVED: Final = frozenset(
    {
        "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
        "namespace", "return", "var", "void", "while",
    }
)  # fmt: skip
_RELATIONS: Final = frozenset({"<", "<=", ">=", ">", "==", "!=", "in"})
_FACTORS: Final = frozenset({"*", "/", "%"})
_TERMS: Final = frozenset({"+", "-"})
Rule = Callable[[], Walk[Node]]
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}


def parse(source: Source, macros: Macros) -> Node:
    """The tree of an expression, macros expanded. Raises CompileError."""
    text = source.text
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        source.fail(0, "the expression is not valid Unicode text")
    found, stray = tokens(source)
    try:
        node: Node = walk(_Parser(source, found, macros).start())
    except CompileError as error:
        if stray is None or error.position < stray.place:
            raise
    else:
        if stray is None:
            return node
    raise CompileError((stray,), source.text)


class _Parser:
    def __init__(self, source: Source, tokens: list[Token], macros: Macros) -> None:
        self.source = source
        self.macros = macros
        self.tokens = tokens
        self.index = 0
        self.depths = {"expression": 0, "relation": 0, "calculation": 0, "member": 0}
        self.height = 0
        """Operators, selections and methods on the longest path through what was parsed last."""

    # --- tokens -----------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def take(self, *kinds: str) -> Token | None:
        """The current token if it is one of these; the parser moves on."""
        token = self.token
        if token.kind not in kinds:
            return None
        self.index += 1
        return token

    def expect(self, *kinds: str) -> Token:
        return self.take(*kinds) or self.unexpected(" or ".join(kinds))

    def unexpected(self, wanted: str) -> NoReturn:
        token = self.token
        found = "the end of the expression" if token.kind == "end" else repr(token.text)
        self.source.fail(token.at, f"expected {wanted}, found {found}")

    def enter(self, rule: str) -> None:
        self.depths[rule] += 1
        if self.depths[rule] > DEPTH_LEVELS:
            self.too_deep()

    def raised(self, *below: int) -> int:
        """The height of a node on top of others of these heights, which is noted."""
        self.height = 1 + max(below)
        if self.height > DEPTH_LEVELS:
            self.too_deep()
        return self.height

    def too_deep(self) -> NoReturn:
        self.source.fail(self.token.at, f"the expression is nested more than {DEPTH_LEVELS} levels deep")

    # --- operators --------------------------------------------------------------------------

    def start(self) -> Walk[Node]:
        node: Node = yield self.expression()
        if self.token.kind != "end":
            self.unexpected("an operator or the end of the expression")
        return node

    def expression(self) -> Walk[Node]:
        self.enter("expression")
        node: Node = yield self.logical("||")
        if question := self.take("?"):
            below = [self.height]
            yes: Node = yield self.logical("||")
            below.append(self.height)
            self.expect(":")
            no: Node = yield self.expression()
            self.raised(*below, self.height)
            node = Call(question.at, "_?_:_", None, [node, yes, no])
        self.depths["expression"] -= 1
        return node

    def logical(self, operator: str) -> Walk[Node]:
        """A chain of ``||`` or ``&&``: one call with all the terms."""
        term = self.relation if operator == "&&" else lambda: self.logical("&&")
        first: Node = yield term()
        terms = [first]
        height = self.height
        at = self.token.at
        while self.take(operator):
            terms.append((yield term()))
            height = max(height, self.height)
        self.height = height
        return first if len(terms) == 1 else Call(at, f"_{operator}_", None, terms)

    def relation(self) -> Walk[Node]:
        return self.chain("relation", self.sum, _RELATIONS)

    def sum(self) -> Walk[Node]:
        return self.chain("calculation", self.product, _TERMS)

    def product(self) -> Walk[Node]:
        return self.chain("calculation", self.unary, _FACTORS, counted=False)

    def chain(
        self, rule: str, operand: Callable[[], Walk[Node]], operators: frozenset[str], *, counted: bool = True
    ) -> Walk[Node]:
        """Operators of one precedence, grouped from the left."""
        before = self.depths[rule]
        if counted:
            self.enter(rule)
        node: Node = yield operand()
        height = self.height
        while operator := self.take(*operators):
            self.enter(rule)
            right: Node = yield operand()
            self.depths[rule] -= 1
            height = self.raised(height, self.height)
            node = Call(operator.at, "@in" if operator.kind == "in" else f"_{operator.kind}_", None, [node, right])
        self.depths[rule] = before
        return node

    def unary(self) -> Walk[Node]:
        """``!`` and ``-``; pairs cancel out, and one minus before a number belongs to the number."""
        operator = self.token
        if operator.kind not in ("!", "-"):
            plain: Node = yield self.member()
            return plain
        count = 0
        while self.take(operator.kind):
            count += 1
        if operator.kind == "-" and count == 1 and self.token.kind in ("int", "float"):
            self.index -= 1
            number: Node = yield self.member()
            return number
        node: Node = yield self.member()
        return node if count % 2 == 0 else Call(operator.at, f"{operator.kind}_", None, [node])

    # --- operands ---------------------------------------------------------------------------

    def member(self) -> Walk[Node]:
        """A primary followed by any number of ``.name``, ``.method(...)`` and ``[index]``."""
        self.enter("member")
        self.height = 0
        node: Node = yield self.primary()
        while operator := self.take(".", "["):
            height = self.height
            optional = self.take("?") is not None
            if operator.kind == "[":
                index: Node = yield self.expression()
                self.expect("]")
                self.raised(height, self.height)
                node = Call(operator.at, "_[?_]" if optional else "_[_]", None, [node, index])
                continue
            name = self.name_after_dot()
            self.height = 0
            if optional:
                node = Call(operator.at, "_?._", None, [node, Literal(name.at, name.text)])
            elif opening := self.take("("):
                node = yield self.call(opening.at, name.text, node)
            else:
                node = Select(operator.at, node, name.text)
            self.raised(height, self.height)
        self.depths["member"] -= 1
        return node

    def name_after_dot(self) -> Token:
        if quoted := self.take("quoted"):
            self.source.fail(quoted.at, "unsupported syntax '`': use [\"...\"] for such names")
        return self.take("name") or self.unexpected("a name")

    def call(self, at: int, name: str, target: Node | None) -> Walk[Node]:
        """The rest of a call after its opening parenthesis. A misused macro is reported before a missing end."""
        args: list[Node] = []
        highest = 0
        more = self.token.kind != ")"
        while more:
            args.append((yield self.expression()))
            self.height = highest = max(highest, self.height)
            more = self.take(",") is not None
        node = self.macros.expand(self.source, at, name, target, args)
        self.end_of_list(")")
        return node

    def primary(self) -> Walk[Node]:
        token = self.token
        node: Node
        if self.take("("):
            node = yield self.expression()
            self.expect(")")
        elif self.take("["):
            node = yield self.list_literal(token.at)
        elif self.take("{"):
            node = yield self.map_literal(token.at)
        elif token.kind in ("name", "."):
            node = yield self.named()
        else:
            node = self.literal()
        return node

    def literal(self) -> Node:
        token = self.token
        self.index += 1
        if token.kind == "-" and self.token.kind in ("int", "float"):
            self.index += 1
            return Literal(token.at, number(self.source, self.tokens[self.index - 1], negative=True))
        if token.kind in ("int", "uint", "float"):
            return Literal(token.at, number(self.source, token))
        if token.kind == "string":
            return Literal(token.at, string(self.source, token))
        if token.kind == "bytes":
            return Literal(token.at, bytes_(self.source, token))
        if token.kind not in _CONSTANTS:
            self.index -= 1
            self.unexpected("a value")
        return Literal(token.at, _CONSTANTS[token.kind])

    def named(self) -> Walk[Node]:
        """A variable, a call of a global function, or ``type.name{field: value}``."""
        dot = "." if self.take(".") else ""
        first = self.expect("name")
        if struct := self.struct_name(dot + first.text):
            literal: Node = yield self.struct_literal(struct)
            return literal
        if first.text in _RESERVED:
            self.source.fail(first.at, f"reserved identifier: {first.text}")
        if opening := self.take("("):
            call: Node = yield self.call(opening.at, dot + first.text, None)
            return call
        return Ident(first.at, dot + first.text)

    def struct_name(self, name: str) -> str | None:
        """The dotted name if it is followed by an opening brace; the parser then stands on the brace."""
        index = self.index
        while self.tokens[index].kind == "." and self.tokens[index + 1].kind == "name":
            name += "." + self.tokens[index + 1].text
            index += 2
        if self.tokens[index].kind != "{":
            return None
        self.index = index
        return name

    def entries(self, close: str, entry: Callable[[], Walk[None]]) -> Walk[None]:
        """The entries of a literal and its closing bracket. A comma may follow the last entry, or stand alone."""
        highest = 0
        if self.take(","):
            self.expect(close)
            return
        while not self.take(close):
            yield entry()
            self.height = highest = max(highest, self.height)
            if not self.take(","):
                self.end_of_list(close)
                return

    def end_of_list(self, close: str) -> None:
        """The closing bracket where a comma would have been possible as well."""
        if not self.take(close):
            self.unexpected(f", or {close}")

    def list_literal(self, at: int) -> Walk[Node]:
        elements: list[Node] = []
        optional: set[int] = set()

        def element() -> Walk[None]:
            if self.take("?"):
                optional.add(len(elements))
            elements.append((yield self.expression()))

        yield self.entries("]", element)
        return ListLiteral(at, elements, frozenset(optional))

    def map_literal(self, at: int) -> Walk[Node]:
        entries: list[Entry] = []

        def entry() -> Walk[None]:
            optional = self.take("?") is not None
            key: Node = yield self.expression()
            below = self.height
            colon = self.expect(":")
            value: Node = yield self.expression()
            self.height = max(below, self.height)
            entries.append(Entry(colon.at, key, value, optional))

        yield self.entries("}", entry)
        return MapLiteral(at, entries)

    def struct_literal(self, name: str) -> Walk[Node]:
        literal = StructLiteral(self.expect("{").at, name)

        def field() -> Walk[None]:
            optional = self.take("?") is not None
            named = self.name_after_dot()
            self.expect(":")
            value: Node = yield self.expression()
            literal.fields.append(Field(named.at, named.text, value, optional))

        yield self.entries("}", field)
        return literal
