"""Selectors and opaque configurations, which classes and claims have in common.

``dra_cel`` knows whether a CEL expression compiles and what it may cost. It comes in as a function, so that neither
package imports the other. Spec: api.md sections 5, 6 and 9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dra_api.resource import (
    DeviceAllocationConfiguration,
    DeviceClaimConfiguration,
    DeviceClassConfiguration,
    DeviceSelector,
)
from dra_api.validation.errors import Errors, forbidden, invalid, required, too_long
from dra_api.validation.formats import driver_name, raw_object, size
from dra_api.validation.lists import limited

SELECTORS_LIMIT: Final = 32
CONFIGS_LIMIT: Final = 32
EXPRESSION_BYTES: Final = 10 * 1024
COST_LIMIT: Final = 1_000_000


class SelectorVerdict(NamedTuple):
    """What the compiler answers: ``error`` if the expression does not compile, otherwise its highest possible cost."""

    error: str | None = None
    max_cost: int = 0


SelectorCheck = Callable[[str, bool], SelectorVerdict]
"""Compiles an expression; True as second argument selects the less strict environment of stored expressions."""


def accept_selectors(expression: str, stored: bool) -> SelectorVerdict:
    """The check without a compiler: only length limits apply."""
    return SelectorVerdict()


def selectors(
    items: tuple[DeviceSelector, ...] | None, path: str, check: SelectorCheck, *, stored: bool = False
) -> Errors:
    """At most 32 selectors; each is a CEL expression of at most 10 KiB that compiles and is not too costly."""

    def selector(item: DeviceSelector, path: str) -> Errors:
        if item.cel is None:
            yield required(f"{path}.cel")
            return
        path, expression = f"{path}.cel.expression", item.cel.expression
        if size(expression) > EXPRESSION_BYTES:
            yield too_long(path, EXPRESSION_BYTES)
            return
        verdict = check(expression, stored)
        if verdict.error is not None:
            yield invalid(path, expression, verdict.error)
        elif verdict.max_cost > COST_LIMIT:
            yield forbidden(path, "too complex, exceeds cost limit")

    yield from limited(items, path, SELECTORS_LIMIT, selector)


def configuration(
    config: DeviceClassConfiguration | DeviceClaimConfiguration | DeviceAllocationConfiguration,
    path: str,
    *,
    stored: bool = False,
) -> Errors:
    """A driver and its parameters; ``stored`` ones are exempt from the size limit."""
    if config.opaque is None:
        yield required(f"{path}.opaque")
        return
    yield from driver_name(config.opaque.driver, f"{path}.opaque.driver")
    yield from raw_object(config.opaque.parameters, f"{path}.opaque.parameters", stored=stored)
