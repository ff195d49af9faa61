"""Attributes that requests compute for each device, for constraints to compare (K37-DA-01 to -03).

``dra_cel`` knows whether an expression compiles and what it may cost; it comes in as a function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.resource import DeviceClaim, DeviceDerivedAttribute
from dra_api.validation.errors import Errors, forbidden, invalid, required, too_long
from dra_api.validation.formats import fully_qualified_name, size
from dra_api.validation.lists import unique

from .selectors import COST_LIMIT, EXPRESSION_BYTES, SelectorCheck

DERIVED_ATTRIBUTES_LIMIT: Final = 32


def derived_attributes(claim: DeviceClaim, path: str, check: SelectorCheck) -> Errors:
    """Those of all requests and alternatives of a claim: each is compared by a constraint that applies there.

    Together they may cost as much as one selector.
    """
    costs: list[int] = []
    for place, names, items in _places(claim, path):
        compared = {
            attribute
            for constraint in claim.constraints or ()
            if not constraint.requests or names.intersection(constraint.requests)
            for attribute in (constraint.match_attribute, constraint.distinct_attribute)
        }

        def one(item: DeviceDerivedAttribute, path: str, compared: set[str | None] = compared) -> Errors:
            yield from fully_qualified_name(item.name, f"{path}.name")
            if not item.expression:
                yield required(f"{path}.expression")
            elif size(item.expression) > EXPRESSION_BYTES:
                yield too_long(f"{path}.expression", EXPRESSION_BYTES)
            else:
                verdict = check(item.expression, False)
                costs.append(verdict.max_cost)
                if verdict.error is not None:
                    yield invalid(f"{path}.expression", item.expression, verdict.error)
            if item.name not in compared:
                detail = "must be the matchAttribute or distinctAttribute of a constraint that applies to the request"
                yield invalid(f"{path}.name", item.name, detail)

        yield from unique(items, place, DERIVED_ATTRIBUTES_LIMIT, one, lambda item: item.name)
    if sum(costs) > COST_LIMIT:
        yield forbidden(f"{path}.requests", "derived attributes are too complex together, exceed cost limit")


def _places(claim: DeviceClaim, path: str) -> Iterator[tuple[str, set[str], tuple[DeviceDerivedAttribute, ...] | None]]:
    """Each list with its path and the names by which constraints mean its request."""
    for index, request in enumerate(claim.requests or ()):
        where = f"{path}.requests[{index}]"
        if request.exactly is not None:
            yield f"{where}.exactly.derivedAttributes", {request.name}, request.exactly.derived_attributes
        for number, sub in enumerate(request.first_available or ()):
            names = {request.name, f"{request.name}/{sub.name}"}
            yield f"{where}.firstAvailable[{number}].derivedAttributes", names, sub.derived_attributes
