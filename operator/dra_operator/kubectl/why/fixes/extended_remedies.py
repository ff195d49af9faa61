"""Remedies in what a pod asks of an extended resource that devices serve: fewer of them, or the one that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dra_api.core import Container, Pod
from dra_api.quantity import Quantity
from msgspec.structs import replace

from dra_operator.allocator import Refusal
from dra_operator.kubectl.why.published import likely_meant

from .change import Change
from .fewer import fewer
from .pod_changes import amount_of, containers_of, less_in, pod_change


def extended_remedies(pod: Pod, refusal: Refusal) -> Iterator[Change]:
    """What may make the devices of the node do for the resource that the refusal names, if it names one."""
    resource = refusal.claim.resource
    for field, container in containers_of(pod) if resource else ():
        asked = amount_of(container, resource)
        for count in fewer(asked.rounded_up(), refusal) if asked is not None else ():
            yield less_in(pod, field, container, resource, Quantity.from_nanos(count * 10**9))


def name_remedies(pod: Pod, resource: str, known: Iterable[str]) -> Iterator[Change]:
    """The extended resource that was meant, where nothing offers the one that the pod asks for."""
    for meant in likely_meant(resource, known):

        def make(now: Pod, new: str = meant) -> dict[str, Any]:
            return {
                field: tuple(_renamed(it, resource, new) for it in getattr(now.spec, field) or ()) or None
                for field in ("containers", "init_containers")
            }

        yield pod_change(pod, f"ask for {meant} instead of {resource} in the pod", 1, make, f"resource {resource}")


def _renamed(container: Container, old: str, new: str) -> Container:
    def of(amounts: dict[str, Quantity] | None) -> dict[str, Quantity] | None:
        return {new if name == old else name: it for name, it in amounts.items()} if amounts is not None else None

    its = container.resources
    return replace(container, resources=replace(its, requests=of(its.requests), limits=of(its.limits)))
