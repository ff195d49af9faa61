"""Remedies for CEL selectors: the value or the domain that devices do publish, a guard against a missing name, or less.

A selector of a class is changed for all who use the class, so that of a claim comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Final

from dra_api.resource import CELDeviceSelector, DeviceClass, DeviceSelector
from dra_cel import CompileError, Reference, Selector, compile, device_selectors
from dra_ledger.errors import shortened
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.kubectl.why.published import Published
from dra_operator.scheduling import CycleState

from .change import Change, Edit
from .claim_remedies import named
from .requests import every_request, with_fields, with_request

LITERAL: Final = re.compile(r'"([^"\\]*)"|\'([^\'\\]*)\'')
TYPO_SIMILARITY: Final = 0.9
"""From this similarity on, the name of a driver may be a slip of the pen; others are other drivers."""
MOST_VALUES: Final = 3
"""Published values that are tried in the place of a literal."""


def selector_remedies(
    cluster: Cluster, cycle_state: CycleState, published: Published, *, failing: bool
) -> Iterator[Change]:
    """Other selectors; ``failing``: one of them raises an error on a device."""
    classes: dict[str, None] = {}
    for claim in cycle_state.resource_claims:
        if claim.status.allocation is not None:
            continue
        for name, wanted in every_request(claim):
            classes[wanted.device_class_name] = None
            selectors = wanted.selectors or ()
            for place, selector in enumerate(selectors):
                for text, effort, after in _others(selector, published, failing=failing):
                    edit = with_request(claim, name, with_fields(selectors=_replaced(selectors, place, after) or None))
                    where = f"selector #{place} of {named(claim, name)}"
                    yield Change(text.format(where=where), (edit,), effort, f"selector {claim.key} {name} {place}")
    for class_ in filter(None, map(cluster.classes.get, classes)):
        yield from _of_class(class_, published, failing=failing)


def _of_class(class_: DeviceClass, published: Published, *, failing: bool) -> Iterator[Change]:
    selectors, name = class_.spec.selectors or (), class_.metadata.name
    for place, selector in enumerate(selectors):
        for text, effort, after in _others(selector, published, failing=failing):
            if after is None:
                continue  # a class without its selectors would be another class
            spec = replace(class_.spec, selectors=_replaced(selectors, place, after))
            edit = Edit(DeviceClass, name, replace(class_, spec=spec))
            where = f"selector #{place} of class {name}"
            yield Change(text.format(where=where), (edit,), effort + 1, f"class {name} {place}")


def _replaced(selectors: Sequence[DeviceSelector], place: int, after: str | None) -> tuple[DeviceSelector, ...]:
    made = () if after is None else (DeviceSelector(cel=CELDeviceSelector(expression=after)),)
    return (*selectors[:place], *made, *selectors[place + 1 :])


def _others(selector: DeviceSelector, published: Published, *, failing: bool) -> Iterator[tuple[str, int, str | None]]:
    """Words, effort and the expression to try instead; None for none at all."""
    expression = selector.cel.expression if selector.cel is not None else ""
    read = references_of(expression)
    if failing and read:
        guard = " && ".join(f'"{one.id}" in device.{one.kind}["{one.domain}"]' for one in sorted(read))
        after = f"{guard} && ({expression})"
        yield f"allow for devices without the name in {{where}}: {_braced(after)}", 2, after
    for old, new in (*_domains(read, published), *_values(expression, read, published)):
        after = LITERAL.sub(partial(_instead, old, new), expression)
        yield f'write "{_braced(new)}" instead of "{_braced(old)}" in {{where}}', 2, after
    yield f"remove {{where}} ({_braced(shortened(expression))})", 8, None


def _instead(old: str, new: str, found: re.Match[str]) -> str:
    return f'"{new}"' if (found[1] if found[1] is not None else found[2]) == old else found[0]


def _domains(read: Iterable[Reference], published: Published) -> Iterator[tuple[str, str]]:
    """A domain that no device uses for a name, and one in which devices publish that name."""
    for one in sorted(read):
        if not published.values(one):
            for domain in published.domains_of(one.kind, one.id):
                yield one.domain, domain


def _values(expression: str, read: Iterable[Reference], published: Published) -> Iterator[tuple[str, str]]:
    """A literal that no device has, and values that devices have; the most similar first."""
    literals = {found[1] if found[1] is not None else found[2] for found in LITERAL.finditer(expression)}
    names = {part for one in read for part in (one.domain, one.id)}
    known: dict[str, None] = {}
    for one in sorted(read):
        known.update(dict.fromkeys(published.values(one)))
    for literal in sorted(literals - names - set(known) - set(published.drivers)):
        if "device.driver" in expression:
            similar = get_close_matches(literal, published.drivers, 1, TYPO_SIMILARITY)
            yield from ((literal, driver) for driver in similar)
        similar = get_close_matches(literal, known, MOST_VALUES, 0.4)
        yield from ((literal, value) for value in dict.fromkeys([*similar, *known]) if '"' not in value)


def references_of(expression: str) -> frozenset[Reference]:
    """The names that a selector reads; none if it does not compile."""
    selector = _compiled(expression)
    return selector.references if selector is not None else frozenset()


def drivers_of(expression: str) -> frozenset[str]:
    """The drivers that a selector names; none if it does not compile."""
    selector = _compiled(expression)
    return selector.drivers if selector is not None else frozenset()


def _compiled(expression: str) -> Selector | None:
    try:
        return compile(expression, device_selectors(list_attributes=True))
    except CompileError:
        return None


def _braced(text: str) -> str:
    """Kept as it is by ``str.format``."""
    return text.replace("{", "{{").replace("}", "}}")
