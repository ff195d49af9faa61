"""Remedies for CEL selectors: the literal, name or domain that was meant, a guard against a missing name, or less.

A mistake in one literal is mended in that literal. Which literals help is tried on the published devices that the other
selectors of the request match: the devices that the request can mean. So no value of another vendor's hardware is
proposed. A selector of a class is changed for all who use the class, so that of a claim comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from typing import Final, NamedTuple

from dra_api.resource import CELDeviceSelector, Device, DeviceClass, DeviceSelector, ResourceClaim
from dra_api.values import Quantity
from dra_cel import CompileError, EvaluationError, Reference, Selector, compile, device_selectors, prepare
from dra_ledger.errors import shortened
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.kubectl.why.changes import Change, Effort, Patch
from dra_operator.kubectl.why.published import Published, accessors, likely_meant, value_of
from dra_operator.kubectl.why.request_changes import Wanted, every_request, named, with_request
from dra_operator.scheduling import CycleState

TOKEN: Final = re.compile(
    r"""(?P<string>"(?:[^"\\\n])*"|'(?:[^'\\\n])*')|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<number>(?:(?<=[=<>(,\[])-|(?<=[=<>(,\[] )-)?\d+(?:\.\d+)?)"""
)
"""Texts without escapes, names and numbers with their sign; a number in a name is none."""
PATTERN_ENDS: Final = re.compile(r"^[\^(.*]+|[$).*]+$")
"""What a regular expression has around the value that is meant."""
COMPARED: Final = re.compile(
    r"([\w.?\[\]\"'/-]+?)\s*(<=|>=|==|!=|<|>)\s*(\"[^\"]*\"|'[^']*'|\d+|(?:quantity|semver)\([^()]*\))"
)
STARTS: Final = re.compile(r"([\w.?\[\]\"'/-]+?)\.startsWith\(([\"'])v?(\d+)(?:\.(\d+))?\.?\2\)")
"""Comparisons written for numbers and texts. Versions and quantities do not have them."""
TEXT_CALL_BEFORE: Final = re.compile(r"\.(contains|startsWith|endsWith|matches)\(\s*$")
PART_LETTERS: Final = 3
"""Letters that a text has at least which is taken for a part of a published one."""
CALL_BEFORE: Final = re.compile(r"\b(quantity|semver)\(\s*$")
AFTER_COMPARISON: Final = re.compile(r"compareTo\(.*\)\s*(?:[<>]=?|[=!]=)\s*-?\s*$", re.DOTALL)
"""A number behind this is the result of a comparison, and no value of a device."""
MOST_VALUES: Final = 3
"""Published values that are tried in the place of a literal."""
MOST_KINDS: Final = 400
"""Other selectors are tried on at most this many devices that differ in the values that selectors read."""


class Other(NamedTuple):
    """An expression to try instead, in words with ``{where}``. ``after`` is None for no selector at all."""

    text: str
    effort: int
    after: str | None


class Token(NamedTuple):
    """A text, name or number of an expression; ``word`` is a text without its quotes."""

    kind: str
    start: int
    end: int
    word: str


def selector_remedies(
    cluster: Cluster, cycle_state: CycleState, published: Published, *, failing: bool
) -> Iterator[Change]:
    """Other selectors; ``failing``: one of them raises an error on a device."""
    of_classes: dict[str, list[Change]] = {}
    for claim in cycle_state.resource_claims:
        if claim.status.allocation is not None:
            continue
        for name, wanted in every_request(claim):
            class_ = cluster.classes.get(wanted.device_class_name)
            rest = expressions_of(class_.spec.selectors if class_ is not None else None)
            yield from _of_request(claim, name, wanted, rest, published, failing=failing)
            if class_ is not None and class_.metadata.name not in of_classes:
                own = expressions_of(wanted.selectors)
                of_classes[class_.metadata.name] = list(_of_class(class_, own, published, failing=failing))
    for changes in of_classes.values():
        yield from changes


def expressions_of(selectors: Iterable[DeviceSelector] | None) -> list[str]:
    """Their CEL texts."""
    return [it.cel.expression for it in selectors or () if it.cel is not None]


def _of_request(
    claim: ResourceClaim, name: str, wanted: Wanted, of_class: list[str], published: Published, *, failing: bool
) -> Iterator[Change]:
    expressions = expressions_of(wanted.selectors)
    for place, expression in enumerate(expressions):
        others = of_class + expressions[:place] + expressions[place + 1 :]
        where = f"selector #{place} of {named(claim, name)}"
        for other in Mending(expression, others, published, failing=failing).others():

            def make(now: Wanted, old: str = expression, new: str | None = other.after) -> Wanted:
                return replace(now, selectors=_replaced(now.selectors or (), old, new) or None)

            text = other.text.format(where=where)
            yield Change(text, (with_request(claim, name, make),), other.effort, f"selector {claim.key} {name} {place}")


def _of_class(class_: DeviceClass, own: list[str], published: Published, *, failing: bool) -> Iterator[Change]:
    expressions, name = expressions_of(class_.spec.selectors), class_.metadata.name
    for place, expression in enumerate(expressions):
        others = expressions[:place] + expressions[place + 1 :] + own
        where = f"selector #{place} of class {name}"
        for other in Mending(expression, others, published, failing=failing).others():
            if other.effort > Effort.MENDED_SELECTOR:
                continue  # a class of other devices, or of more, would be another class

            def make(now: DeviceClass, old: str = expression, new: str | None = other.after) -> DeviceClass:
                return replace(now, spec=replace(now.spec, selectors=_replaced(now.spec.selectors or (), old, new)))

            text = other.text.format(where=where)
            yield Change(text, (Patch(DeviceClass, name, make),), other.effort + 1, f"class {name} {place}")


def _replaced(selectors: Sequence[DeviceSelector], old: str, new: str | None) -> tuple[DeviceSelector, ...]:
    made = () if new is None else (DeviceSelector(cel=CELDeviceSelector(expression=new)),)
    found: list[DeviceSelector] = []
    for selector in selectors:
        found += made if selector.cel is not None and selector.cel.expression == old else (selector,)
    return tuple(found)


class Mending:
    """One selector that matches too little or fails; ``rest``: the others of the same request."""

    def __init__(self, expression: str, rest: Sequence[str], published: Published, *, failing: bool) -> None:
        self._expression, self._rest, self._published, self._failing = expression, rest, published, failing
        self._names = sorted(references_of(expression))
        self._terms = terms(expression)
        self._seen: set[str] = set()

    def others(self) -> list[Other]:
        """The likeliest first."""
        return sorted(self._others_there_are(), key=lambda other: other.effort)

    def _others_there_are(self) -> Iterator[Other]:
        if self._failing:
            yield from self._of_other_types()
        if self._lacks_driver:
            yield from self._drivers()
            if not self._driver_is_typed_wrong and not self._asks_for_another_driver:
                return  # no change of a selector brings the devices of a driver that publishes none
        yield from self._spelled()
        yield from self._domains()
        yield from self._identifiers()
        yield from self._values()
        if not self._failing:
            yield from self._of_other_types()
        yield from self._guarded()
        yield from self._without_a_term()
        if not drivers_of(self._expression) or self._asks_for_another_driver:
            yield Other(f"remove {{where}} ({_braced(shortened(self._expression))})", Effort.NO_SELECTOR, None)

    # --- which devices the request can mean ---

    @cached_property
    def _kinds(self) -> list[tuple[str, Device]]:
        return self._kinds_by(frozenset())

    def _kinds_by(self, more: frozenset[Reference]) -> list[tuple[str, Device]]:
        """The devices that the other selectors match, one for each set of values of the names that are read and of
        ``more``. Other wrong selectors are left out, from the last on; one that names a driver never is."""
        names = more.union(*map(references_of, (self._expression, *self._rest)))
        every = self._published.kinds(sorted(names), MOST_KINDS)
        of_drivers = [text for text in self._rest if drivers_of(text)]
        rest = [text for text in self._rest if text not in of_drivers]
        for number in range(len(rest), -1, -1):
            kept = of_drivers + rest[:number]
            if found := [kind for kind in every if all(_matches(text, *kind) for text in kept)]:
                return found
        return []

    def _helps(self, expression: str) -> bool:
        """Whether some device that the request can mean is selected, and it is a new proposal."""
        if expression == self._expression or expression in self._seen:
            return False
        more = references_of(expression) - references_of(self._expression)
        if any(_matches(expression, *kind) for kind in (self._kinds_by(more) if more else self._kinds)):
            self._seen.add(expression)
            return True
        return False

    @property
    def _tokens(self) -> list[Token]:
        return tokens_of(self._expression)

    def _written(self, token: Token, new: str) -> str:
        return self._expression[: token.start] + new + self._expression[token.end :]

    def _everywhere(self, old: str, new: str, kinds: Sequence[str] = ("string", "name")) -> str:
        """Return the expression with each text and name ``old`` replaced by ``new``."""
        text = self._expression
        for token in reversed(self._tokens):
            if token.kind in kinds and token.word == old:
                text = text[: token.start] + (f'"{new}"' if token.kind == "string" else new) + text[token.end :]
        return text

    # --- drivers, domains and names ---

    @property
    def _lacks_driver(self) -> bool:
        asked = drivers_of(self._expression)
        return bool(asked) and not asked & set(self._published.drivers)

    @property
    def _asks_for_another_driver(self) -> bool:
        """Whether the other selectors, such as the class's, exclude all drivers that this one allows."""
        rest = [selector for text in self._rest if (selector := compiled(text)) is not None]
        return all(any(it.excludes(driver) for it in rest) for driver in drivers_of(self._expression))

    @property
    def _driver_is_typed_wrong(self) -> bool:
        return any(likely_meant(driver, self._published.drivers) for driver in drivers_of(self._expression))

    def _drivers(self) -> Iterator[Other]:
        for driver in sorted(drivers_of(self._expression)):
            for other in likely_meant(driver, self._published.drivers)[:MOST_VALUES]:
                yield _instead(other, driver, Effort.MENDED_SELECTOR, self._everywhere(driver, other))

    def _domains(self) -> Iterator[Other]:
        """The domain in which the drivers that the request can mean publish a name, or one that was mistyped."""
        its = {driver for driver, _ in self._kinds}
        named = {driver for text in (self._expression, *self._rest) for driver in drivers_of(text)}
        for name in self._names:
            if self._published.values(name):
                continue
            known = self._published.domains_of(name.kind, name.id)
            own = [it for it in known if named and self._published.publishers(name.kind, it, name.id) & its]
            for domain in dict.fromkeys([*own, *likely_meant(name.domain, known)]):
                yield _instead(
                    domain, name.domain, Effort.MENDED_SELECTOR, self._everywhere(name.domain, domain, ("string",))
                )

    def _identifiers(self) -> Iterator[Other]:
        for name in self._names:
            if self._published.values(name):
                continue
            for other in likely_meant(name.id, self._published.names_of(name.kind, name.domain))[:MOST_VALUES]:
                yield _instead(other, name.id, Effort.MENDED_SELECTOR, self._everywhere(name.id, other), quoted=False)

    def _spelled(self) -> Iterator[Other]:
        """Read a published name where the expression misses it: ``capacity`` for ``attributes``, with its domain."""
        drivers = {driver for driver, _ in self._kinds}
        for wrong in accessors(self._expression):
            old = self._expression[wrong.start : wrong.end]
            for new in self._published.spellings(wrong, drivers)[:MOST_VALUES]:
                after = self._expression[: wrong.start] + new + self._expression[wrong.end :]
                if self._helps(after):
                    yield _instead(new, old, Effort.MENDED_SELECTOR, after, quoted=False)
                elif typed := next(filter(self._helps, _in_types(after, wrong.start)), None):
                    yield Other(f"write {_braced(typed)} as {{where}}", Effort.MENDED_SELECTOR, typed)
                elif compiled(after) is not None and after not in self._seen:
                    self._seen.add(after)  # another change follows
                    yield _instead(new, old, Effort.MENDED_SELECTOR, after, quoted=False)

    # --- literals ---

    def _values(self) -> Iterator[Other]:
        for term in self._terms:
            names = sorted(references_of(term.word)) or self._names
            for token in self._literals(term):
                yield from self._of_literal(token, names)

    def _literals(self, term: Token) -> Iterator[Token]:
        parts = {part for name in self._names for part in (name.domain, name.id)} | drivers_of(self._expression)
        for token in self._tokens:
            is_inside = term.start <= token.start < term.end
            before = self._expression[: token.start]
            is_result = token.kind == "number" and AFTER_COMPARISON.search(before) is not None
            is_value = token.kind != "name" or token.word in ("true", "false")
            if is_inside and is_value and token.word not in parts and not is_result:
                yield token

    def _of_literal(self, token: Token, names: Sequence[Reference]) -> Iterator[Other]:
        call = CALL_BEFORE.search(self._expression[: token.start])
        known = [value for name in names for value in self._published.values(name)]
        if token.kind == "string" and call is None:
            yield from self._of_text(token, known)
            return
        candidates: Iterable[str] = ()
        if token.kind == "name":
            candidates = [other for other in ("true", "false") if other != token.word]
        elif token.kind == "number":
            candidates = _near_numbers(token.word, known)
        elif call is not None:
            candidates = (_near_quantities if call[1] == "quantity" else _near_versions)(token.word, known)
        found = 0
        for new in candidates:
            written = f'"{new}"' if token.kind == "string" else new
            if found < MOST_VALUES and self._helps(after := self._written(token, written)):
                found += 1
                effort = Effort.OTHER_VALUE if token.kind == "name" else Effort.MENDED_SELECTOR
                yield _instead(new, token.word, effort, after, quoted=token.kind == "string")

    def _of_text(self, token: Token, known: Sequence[str]) -> Iterator[Other]:
        """A likely slip; of a value that is published elsewhere, and in this combination nowhere, another one."""
        texts = [value for value in dict.fromkeys(known) if '"' not in value and "\\" not in value]
        if token.word not in texts:
            core = PATTERN_ENDS.sub("", token.word)
            call = TEXT_CALL_BEFORE.search(self._expression[: token.start])
            parts = _parts_in(core, texts, call[1] if call is not None else "", token.word)
            helping = islice((it for it in parts if self._helps(self._written(token, f'"{it}"'))), MOST_VALUES)
            meant = [token.word.replace(core, it) for it in likely_meant(core, texts)[:MOST_VALUES]] if core else []
            for new in chain(helping, meant) if call is not None else chain(meant, helping):
                yield _instead(new, token.word, Effort.MENDED_SELECTOR, self._written(token, f'"{new}"'))
        elif len(self._terms) > 1:
            for new in texts[:MOST_KINDS]:
                if self._helps(after := self._written(token, f'"{new}"')):
                    yield _instead(new, token.word, Effort.OTHER_VALUE, after)

    def _of_other_types(self) -> Iterator[Other]:
        """A literal as the type that devices publish: ``semver("1.2.3")`` for ``"1.2.3"``, ``5`` for ``"5"``."""
        for term in self._terms:
            names = sorted(references_of(term.word)) or self._names
            known = [value for name in names for value in self._published.values(name)]
            for token in self._literals(term):
                if CALL_BEFORE.search(self._expression[: token.start]):
                    continue
                for new in (*_retyped(token), *_versions_of(token, known)):
                    if self._helps(after := self._written(token, new)):
                        yield _instead(
                            new, self._expression[token.start : token.end], Effort.MENDED_SELECTOR, after, quoted=False
                        )
            for new in _compared(term.word):
                if self._helps(after := self._written(term, new)):
                    yield _instead(new, term.word, Effort.MENDED_SELECTOR, after, quoted=False)

    # --- less ---

    def _guarded(self) -> Iterator[Other]:
        """Only where a name is absent on some devices, and there on others."""
        kinds = self._kinds if self._failing else []
        read = [name for name in self._names if self._published.values(name)]
        if not read or all(value_of(device, driver, name) for driver, device in kinds for name in read):
            return
        guard = " && ".join(f'"{one.id}" in device.{one.kind}["{one.domain}"]' for one in read)
        after = f"{guard} && ({self._expression})"
        yield Other(f"allow for devices without the name in {{where}}: {_braced(after)}", Effort.MENDED_SELECTOR, after)

    def _without_a_term(self) -> Iterator[Other]:
        if len(self._terms) < 2:
            return
        for term in self._terms:
            if drivers_of(term.word) or "device.driver" in term.word:
                continue
            after = " && ".join(other.word for other in self._terms if other is not term)
            if self._helps(after):
                yield Other(f"remove {_braced(shortened(term.word))} from {{where}}", Effort.FEWER_TERMS, after)


def _instead(new: str, old: str, effort: int, after: str, *, quoted: bool = True) -> Other:
    mark = '"' if quoted else ""
    return Other(f"write {mark}{_braced(new)}{mark} instead of {mark}{_braced(old)}{mark} in {{where}}", effort, after)


def _near_numbers(word: str, known: Sequence[str]) -> list[str]:
    """Published whole numbers, and those beside them for ``<`` and ``>``; the nearest first."""
    if "." in word:
        return []
    published = {number for value in known for number in _numbers_in(value)}
    every = published | {value + step for value in published for step in (-1, 1)}
    near = sorted(every, key=lambda it: (abs(it - int(word)), it not in published, it))
    return [str(it) for it in near if it >= 0 or it in published]


def _numbers_in(value: str) -> Iterator[int]:
    """A number, the parts of a version (``major()``), or a quantity as a number (``asInteger()``)."""
    if re.fullmatch(r"-?\d+", value):
        yield int(value)
    elif (parts := re.match(r"(\d+)\.(\d+)\.(\d+)", value)) is not None:
        yield from map(int, parts.groups())
    else:
        with suppress(ValueError):
            yield Quantity(value).nanos // 10**9


def _near_quantities(word: str, known: Sequence[str]) -> list[str]:
    """Published amounts, and one unit less or more for ``<`` and ``>``; the nearest first."""
    found: dict[str, int] = {}
    spelled = _quantities_meant(word)
    with suppress(ValueError):
        asked = Quantity((*spelled, word)[0]).nanos
        for value in known:
            with suppress(ValueError):
                found.setdefault(value, Quantity(value).nanos)
                if (parts := re.fullmatch(r"(\d+)(\D*)", value)) is not None:
                    number, unit = int(parts[1]), parts[2]
                    for other in (f"{number - 1}{unit}", f"{number + 1}{unit}"):
                        found.setdefault(other, Quantity(other).nanos)
        order = sorted(found, key=lambda text: (text not in known, abs(found[text] - asked), text))
        return [*spelled, *(text for text in order if found[text] >= 0)]
    return []


def _quantities_meant(word: str) -> list[str]:
    """What a person may mean by an amount that is no quantity: ``40Gi`` or ``40G`` for ``40GB``, ``40 Gi`` for 40Gi."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtpe]?)(i?)(?:b|bytes?)?\s*", word, re.IGNORECASE)
    with suppress(ValueError):
        Quantity(word)
        return []
    if found is None:
        return []
    number, unit, binary = found.groups()
    decimal = f"{number}{'k' if unit in 'kK' and unit else unit.upper()}"
    return [f"{number}{unit.upper()}i"] * bool(unit) + [decimal] * (not binary)


def _near_versions(word: str, known: Sequence[str]) -> list[str]:
    """Published versions, and the one before or after each; the nearest first."""
    found: dict[str, tuple[int, ...]] = {}
    for value in known:
        if (parts := re.match(r"(\d+)\.(\d+)\.(\d+)", value)) is not None:
            major, minor, patch = (int(part) for part in parts.groups())
            found.setdefault(value, (major, minor, patch))
            found.setdefault(f"{major}.{minor}.{patch + 1}", (major, minor, patch + 1))
            below = (major, minor, patch - 1) if patch else (major, minor - 1, 0) if minor else (major - 1, 0, 0)
            if min(below) >= 0:
                found.setdefault(".".join(map(str, below)), below)
    asked = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", word)
    wanted = tuple(int(part or 0) for part in asked.groups()) if asked is not None else (0, 0, 0)

    def distance(text: str) -> tuple[bool, tuple[int, ...], str]:
        return text not in known, tuple(abs(one - two) for one, two in zip(found[text], wanted, strict=True)), text

    whole = ".".join(map(str, wanted))
    is_whole = asked is None or word.startswith(whole)
    return [whole] * (not is_whole) + sorted(found, key=distance)


def _parts_in(core: str, texts: Sequence[str], call: str, word: str) -> Iterator[str]:
    """Published texts, or the parts of them that a call asks for, in which ``core`` stands but for the case.

    ``call`` is the function of which ``word`` is the argument, or empty where whole texts are compared.
    """
    for text in texts if len(core) >= PART_LETTERS else ():
        at = text.lower().find(core.lower())
        if at < 0 or len(text.lower()) != len(text) or len(core.lower()) != len(core):
            continue
        end = at + len(core)
        if call == "startsWith":
            yield text[:end]
        elif call == "endsWith":
            yield text[at:]
        elif call:
            yield word.replace(core, text[at:end])
            if call == "matches":
                yield text[at:end]  # without what binds it to the start or the end
        elif not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            yield text


def _in_types(expression: str, place: int) -> Iterator[str]:
    """The expression with the comparison at a place as versions and quantities have it."""
    for term in terms(expression):
        if term.start <= place < term.end:
            for new in _compared(term.word):
                yield expression[: term.start] + new + expression[term.end :]


def _compared(term: str) -> Iterator[str]:
    """The term with a comparison that versions and quantities have: ``x.compareTo(quantity("40Gi")) >= 0``."""
    if (found := COMPARED.fullmatch(term)) is not None:
        its, operator, value = found.groups()
        if value.endswith(")"):
            yield f"{its}.compareTo({value}) {operator} 0"
            return
        word = value.strip("\"'")
        yield f'{its}.compareTo(quantity("{word}")) {operator} 0'
        yield f'{its}.compareTo(semver("{word}", true)) {operator} 0'
    if (found := STARTS.fullmatch(term)) is not None:
        its, _, major, minor = found.groups()
        yield f"{its}.major() == {major}" + (f" && {its}.minor() == {minor}" if minor else "")


def _retyped(token: Token) -> Iterator[str]:
    word = token.word
    if token.kind == "name":
        return
    if token.kind == "number":
        yield f'"{word}"'
        return
    if re.match(r"\d+\.\d+\.\d+", word):
        yield f'semver("{word}")'
    if re.fullmatch(r"v?\d+(\.\d+)*", word) and not re.fullmatch(r"\d+\.\d+\.\d+", word):
        yield f'semver("{word}", true)'
    if re.fullmatch(r"-?\d+|true|false", word):
        yield word
    with suppress(ValueError):
        Quantity(word)
        yield f'quantity("{word}")'


def _versions_of(token: Token, known: Sequence[str]) -> Iterator[str]:
    """The published versions that a text is the beginning of: ``semver("535.104.5")`` for ``"535"``."""
    if token.kind == "string" and re.fullmatch(r"v?\d+(\.\d+)*", token.word):
        start = token.word.removeprefix("v") + "."
        yield from (f'semver("{it}")' for it in known if it.startswith(start) and re.match(r"\d+\.\d+\.\d+", it))


def tokens_of(expression: str) -> list[Token]:
    """Texts, names and numbers, in their order."""
    found = []
    for match in TOKEN.finditer(expression):
        kind, text = match.lastgroup or "", match[0]
        found.append(Token(kind, match.start(), match.end(), text[1:-1] if kind == "string" else text))
    return found


def terms(expression: str) -> list[Token]:
    """The parts that ``&&`` joins on the top level; the whole if another operator of less rank is there."""
    depth, start, cuts = 0, 0, []
    texts = [(token.start, token.end) for token in tokens_of(expression) if token.kind == "string"]
    for at, letter in enumerate(expression):
        if any(begin <= at < end for begin, end in texts):
            continue
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and letter in "|?" and expression[at - 1 : at] not in (".", "["):
            return [Token("term", 0, len(expression), expression)]
        if depth == 0 and expression.startswith("&&", at):
            cuts.append((start, at))
            start = at + 2
    cuts.append((start, len(expression)))
    found = []
    for begin, end in cuts:
        text = expression[begin:end]
        found.append(Token("term", begin + len(text) - len(text.lstrip()), end, text.strip()))
    return found


def _matches(expression: str, driver: str, device: Device) -> bool:
    selector = compiled(expression)
    if selector is None:
        return False
    with suppress(EvaluationError, RecursionError):
        return selector.matches(prepare(driver, device, list_attributes=True))
    return False


def references_of(expression: str) -> frozenset[Reference]:
    """The names that a selector reads; none if it does not compile."""
    selector = compiled(expression)
    return selector.references if selector is not None else frozenset()


def drivers_of(expression: str) -> frozenset[str]:
    """The drivers that a selector names; none if it does not compile."""
    selector = compiled(expression)
    return selector.drivers if selector is not None else frozenset()


def compiled(expression: str) -> Selector | None:
    """The selector, or None if it does not compile."""
    try:
        return compile(expression, device_selectors(list_attributes=True))
    except CompileError:
        return None


def _braced(text: str) -> str:
    """Kept as it is by ``str.format``."""
    return text.replace("{", "{{").replace("}", "}}")
