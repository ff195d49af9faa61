"""A pod with one field of its spec changed, or with a container that asks for less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dra_api.core import Container, Pod
from dra_api.quantity import Quantity
from msgspec.structs import replace

from .change import Change, Patch


def pod_change(pod: Pod, text: str, effort: int, make: Callable[[Pod], dict[str, Any]], group: str = "") -> Change:
    """The pod with the fields of its spec that ``make`` returns for it."""

    def changed(now: Pod) -> Pod:
        return replace(now, spec=replace(now.spec, **make(now)))

    return Change(text, (Patch(Pod, pod.key, changed),), effort, group)


def containers_of(pod: Pod) -> Iterator[tuple[str, Container]]:
    """Each container with the field of the spec that has it."""
    yield from (("init_containers", one) for one in pod.spec.init_containers or ())
    yield from (("containers", one) for one in pod.spec.containers or ())


def amount_of(container: Container, resource: str) -> Quantity | None:
    """What the container asks for; a limit stands for a request that is left out."""
    amounts = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    return amounts.get(resource)


def less_in(pod: Pod, field: str, container: Container, resource: str, amount: Quantity) -> Change:
    """The pod with a container that asks for this amount."""
    kind = "init container" if field == "init_containers" else "container"
    asked = amount_of(container, resource)
    text = f"ask for at most {amount} {resource} instead of {asked} in {kind} {container.name}"

    def make(now: Pod) -> dict[str, Any]:
        return {field: tuple(_less(it, container.name, resource, amount) for it in getattr(now.spec, field) or ())}

    return pod_change(pod, text, 3, make, f"room {resource}")


def _less(container: Container, name: str, resource: str, amount: Quantity) -> Container:
    if container.name != name:
        return container
    requests = {**(container.resources.requests or {}), resource: amount}
    limits = {key: limit for key, limit in (container.resources.limits or {}).items() if key != resource}
    return replace(container, resources=replace(container.resources, requests=requests, limits=limits))
