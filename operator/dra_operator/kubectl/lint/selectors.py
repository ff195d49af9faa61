"""Selectors: whether they compile, what they cost, and whether devices publish what they read."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from dra_api.resource import DeviceClass, DeviceSelector
from dra_api.validation.fields.requests import COST_LIMIT
from dra_cel import CompileError, Environment, Reference, compile, device_selectors

from dra_operator.allocator import Features
from dra_operator.kubectl.why.fixes.requests import every_request
from dra_operator.kubectl.why.published import Published
from dra_operator.wording import counted, listed

from .manifest import Finding, Manifest, Severity, Surroundings, claims_in

SIMILAR_NAMES: Final = 3
"""Published names that are told in the place of an unknown one."""


def faulty_selectors(around: Surroundings, published: Published) -> Iterator[Finding]:
    """In claims, templates and classes."""
    environment = _environment(around.made.allocator.inventory.features)
    for manifest, path, selector in _selectors(around):
        if selector.cel is not None:
            yield from _of_selector(manifest, path, selector.cel.expression, environment, published)


def _environment(features: Features) -> Environment:
    return device_selectors(
        new=True, consumable_capacity=features.consumable_capacity, list_attributes=features.list_attributes
    )


def _selectors(around: Surroundings) -> Iterator[tuple[Manifest, str, DeviceSelector]]:
    for manifest in around.manifests:
        if isinstance(manifest.obj, DeviceClass):
            for place, selector in enumerate(manifest.obj.spec.selectors or ()):
                yield manifest, f"spec.selectors[{place}]", selector
    for manifest, claim, spec in claims_in(around.manifests):
        for name, wanted in every_request(claim):
            for place, selector in enumerate(wanted.selectors or ()):
                yield manifest, f"{spec}.devices.requests[{name}].selectors[{place}]", selector


def _of_selector(
    manifest: Manifest, path: str, expression: str, environment: Environment, published: Published
) -> Iterator[Finding]:
    try:
        selector = compile(expression, environment)
    except CompileError as error:
        for issue in error.issues:
            text = f"line {issue.line}, column {issue.column}: {issue.message}"
            yield manifest.finding(Severity.ERROR, path, text)
        return
    if selector.max_cost > COST_LIMIT:
        text = f"too complex: it may cost {selector.max_cost} units, and the API server takes {COST_LIMIT}"
        yield manifest.finding(Severity.ERROR, path, f"{text}; use fewer or shorter loops and texts")
    elif selector.worst > environment.cost_limit:
        text = f"on some devices it may cost more than the {environment.cost_limit} units at which it is stopped"
        yield manifest.finding(Severity.WARNING, path, f"{text}, and then no pod of the claim gets a node")
    if published.drivers:
        for name in sorted(selector.references):
            if not published.values(name):
                yield manifest.finding(Severity.WARNING, path, _unknown(name, published))


def _unknown(name: Reference, published: Published) -> str:
    what = f"no device publishes {'attribute' if name.kind == 'attributes' else 'capacity'} {name}"
    if domains := published.domains_of(name.kind, name.id):
        others = listed((f"{domain}/{name.id}" for domain in domains), SIMILAR_NAMES)
        return f"{what}; {counted(len(domains), 'driver publishes', 'others publish')} {others}"
    known = published.names_of(name.kind, name.domain)
    if similar := get_close_matches(name.id, known, SIMILAR_NAMES):
        return f"{what}; similar: {listed(f'{name.domain}/{one}' for one in similar)}"
    return f"{what}; in {name.domain} they publish {listed(known)}" if known else f"{what}, nor any of {name.domain}"
