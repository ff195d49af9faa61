"""The claim that serves a pod's extended resources on one node (scheduling.md 7.2).

Containers are counted over init containers and regular ones. *Long-lived* containers (regular ones and
sidecars) each get their own request per resource. The others run one after the other before them, so they re-use the
requests of long-lived containers that start later. What they need beyond that becomes an additional request. Of all
additional requests for one resource only the largest is kept; all of them use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_api.core import Container, ContainerExtendedResourceRequest, Pod
from dra_api.quantity import Quantity
from dra_api.resource import DeviceRequest, ExactDeviceRequest


@dataclass(frozen=True, slots=True)
class ExtendedRequests:
    """Requests of the claim sorted by name, and which container uses which for what."""

    requests: tuple[DeviceRequest, ...]
    mappings: tuple[ContainerExtendedResourceRequest, ...]


def extended_requests(pod: Pod, classes: Mapping[str, str]) -> ExtendedRequests:
    """What to allocate for a pod. ``classes``: the class of each resource that devices serve on the node."""
    init, regular = pod.spec.init_containers or (), pod.spec.containers or ()
    containers = [
        _PositionedContainer(position, container, position >= len(init) or container.restart_policy == "Always")
        for position, container in enumerate((*init, *regular))
    ]
    built = [_Resource(resource, class_, containers) for resource, class_ in sorted(classes.items())]
    requests = [request for resource in built for request in resource.requests()]
    order = {one.container.name: one.position for one in containers}
    mappings = [mapping for resource in built for mapping in resource.mappings()]
    return ExtendedRequests(
        tuple(sorted(requests, key=lambda request: request.name)),
        tuple(sorted(mappings, key=lambda m: (order[m.container_name], m.resource_name, m.request_name))),
    )


class _PositionedContainer(NamedTuple):
    """A container with its position."""

    position: int
    container: Container
    long_lived: bool

    @property
    def requests(self) -> dict[str, Quantity]:
        """Limits replace missing requests, as in the API server."""
        resources = self.container.resources
        return {**(resources.limits or {}), **(resources.requests or {})}

    def amount(self, resource: str) -> int:
        requested = self.requests.get(resource)
        return requested.rounded_up() if requested is not None else 0

    def request_name(self, resource: str) -> str:
        return f"container-{self.position}-request-{sorted(self.requests).index(resource)}"


@dataclass(slots=True)
class _Resource:
    """One resource over all containers."""

    name: str
    class_: str
    containers: list[_PositionedContainer]
    counts: dict[str, int] = field(default_factory=dict)
    """Devices per request."""
    users: list[tuple[str, str]] = field(default_factory=list)
    """(container, request)"""

    def __post_init__(self) -> None:
        owned = [(one, one.amount(self.name)) for one in self.containers if one.amount(self.name) > 0]
        for one, amount in owned:
            if one.long_lived:
                self.counts[one.request_name(self.name)] = amount
                self.users.append((one.container.name, one.request_name(self.name)))
        rests = [(one, rest) for one, amount in owned if not one.long_lived and (rest := self._reuse(one, amount))]
        if rests:
            largest, amount = max(rests, key=lambda item: item[1])
            self.counts[largest.request_name(self.name)] = amount
            self.users += [(one.container.name, largest.request_name(self.name)) for one, _ in rests]

    def requests(self) -> list[DeviceRequest]:
        return [
            DeviceRequest(
                name=name,
                exactly=ExactDeviceRequest(device_class_name=self.class_, allocation_mode="ExactCount", count=count),
            )
            for name, count in self.counts.items()
        ]

    def mappings(self) -> list[ContainerExtendedResourceRequest]:
        return [
            ContainerExtendedResourceRequest(container_name=container, resource_name=self.name, request_name=request)
            for container, request in self.users
        ]

    def _reuse(self, one: _PositionedContainer, amount: int) -> int:
        """Uses requests of long-lived containers that start later; returns what is still missing."""
        for later in self.containers[one.position + 1 :]:
            if amount > 0 and later.long_lived and later.amount(self.name) > 0:
                self.users.append((one.container.name, later.request_name(self.name)))
                amount -= later.amount(self.name)
        return max(0, amount)
