"""Attributes that requests compute for each device, for constraints to compare (DRADerivedAttributes, K37-DA-01, -02).

Whether an expression compiles, and what all of a claim may cost together (K37-DA-03), is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.resource import DeviceClaim, DeviceDerivedAttribute
from dra_api.validation.errors import Errors, invalid, required, too_long
from dra_api.validation.formats import fully_qualified_name, size
from dra_api.validation.lists import unique

from .selectors import EXPRESSION_BYTES

DERIVED_ATTRIBUTES_LIMIT: Final = 32


def derived_attributes(claim: DeviceClaim, path: str) -> Errors:
    """Those of all requests and alternatives of a claim: each is compared by a constraint that applies there."""
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
            if item.name not in compared:
                detail = "must be the matchAttribute or distinctAttribute of a constraint that applies to the request"
                yield invalid(f"{path}.name", item.name, detail)

        yield from unique(items, place, DERIVED_ATTRIBUTES_LIMIT, one, lambda item: item.name)


def _places(claim: DeviceClaim, path: str) -> Iterator[tuple[str, set[str], tuple[DeviceDerivedAttribute, ...] | None]]:
    """Each list with its path and the names by which constraints mean its request."""
    for index, request in enumerate(claim.requests or ()):
        where = f"{path}.requests[{index}]"
        if request.exactly is not None:
            yield f"{where}.exactly.derivedAttributes", {request.name}, request.exactly.derived_attributes
        for number, sub in enumerate(request.first_available or ()):
            names = {request.name, f"{request.name}/{sub.name}"}
            yield f"{where}.firstAvailable[{number}].derivedAttributes", names, sub.derived_attributes
