"""A pod with one field of its spec changed, or with a container that asks for less."""

from __future__ import annotations

from dra_api.core import Container, Pod, PodSpec
from dra_api.values.quantity import Quantity
from msgspec.structs import replace

from .change import Change, Edit


def spec_change(pod: Pod, text: str, effort: int, group: str = "", **fields: object) -> Change:
    """The pod with these fields of its spec."""
    spec: PodSpec = replace(pod.spec, **fields)
    return Change(text, (Edit(Pod, pod.key, replace(pod, spec=spec)),), effort, group)


def amount_of(container: Container, resource: str) -> Quantity | None:
    """What the container asks for; a limit stands for a request that is left out."""
    amounts = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    return amounts.get(resource)


def less_in(pod: Pod, container: Container, resource: str, amount: Quantity) -> Change:
    """The pod with a container that asks for this amount."""
    asked = amount_of(container, resource)
    requests = {**(container.resources.requests or {}), resource: amount}
    limits = {name: limit for name, limit in (container.resources.limits or {}).items() if name != resource}
    less = replace(container, resources=replace(container.resources, requests=requests, limits=limits))
    text = f"ask for at most {amount} {resource} instead of {asked} in container {container.name}"
    containers = tuple(less if each is container else each for each in pod.spec.containers or ())
    return spec_change(pod, text, 3, f"room {resource}", containers=containers)
