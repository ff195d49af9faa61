"""Turns tokens into a tree.

A descent over CEL's grammar, run by :func:`walk` so that nesting does not use the Python stack. Nesting is limited as
in the reference, in two ways: no rule of the grammar may be inside itself more than 250 times, and no path through
the tree may meet more than 250 operators, selections and calls of methods. Chains of operators and of selections nest
on their left in the second sense only; ``&&`` and ``||`` take any number of terms, and count in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from dra_cel.basics.errors import CompileError
from dra_cel.basics.limits import Walk, walk

from .lexer import Source, Token, bytes_, number, string, tokens
from .macros import Macros
from .tree import Call, Entry, Field, Ident, ListLiteral, Literal, MapLiteral, Node, Select, StructLiteral

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
