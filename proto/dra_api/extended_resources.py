"""Extended resources that devices stand behind: which class serves a resource, and what a pod asks for.

A class may name an extended resource, and always serves the implicit
``deviceclass.resource.kubernetes.io/<class>``. Everything is computed from the classes as they are
now, so that no order of events matters. Spec: scheduling.md section 7.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .core import Container, Pod
from .quantity import Quantity
from .resource import EXTENDED_RESOURCE_PREFIX, DeviceClass

Amounts = dict[str, Quantity]


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """The class behind each extended resource; of several classes the youngest, then the smaller name."""
    winners: dict[str, DeviceClass] = {}
    for device_class in classes:
        resource = device_class.spec.extended_resource_name
        if resource and (resource not in winners or _prevails(device_class, winners[resource])):
            winners[resource] = device_class
        winners[EXTENDED_RESOURCE_PREFIX + device_class.metadata.name] = device_class
    return {resource: device_class.metadata.name for resource, device_class in winners.items()}


def extended_resources_of(pod: Pod, classes: Mapping[str, str]) -> dict[str, str]:
    """The resources that the pod asks for and that a class serves, with that class; zero amounts do not count."""
    amounts = pod_requests(pod)
    return {name: classes[name] for name in sorted(amounts) if name in classes and amounts[name].nanos}


def pod_requests(pod: Pod) -> Amounts:
    """What the pod needs of each resource at its worst moment.

    Init containers run one after the other, beside the sidecars that were started before them; the
    regular containers run beside all sidecars. The overhead of the pod comes on top.
    """
    sidecars: Amounts = {}
    worst: Amounts = {}
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            sidecars = _sum(sidecars, _requests(container))
            worst = _maximum(worst, sidecars)
        else:
            worst = _maximum(worst, _sum(sidecars, _requests(container)))
    running = sidecars
    for container in pod.spec.containers or ():
        running = _sum(running, _requests(container))
    return _sum(_maximum(worst, running), pod.spec.overhead or {})


def _prevails(one: DeviceClass, other: DeviceClass) -> bool:
    created, other_created = one.metadata.creation_timestamp or "", other.metadata.creation_timestamp or ""
    return created > other_created or (created == other_created and one.metadata.name < other.metadata.name)


def _requests(container: Container) -> Mapping[str, Quantity]:
    """Limits stand in for requests that are missing, as the API server has it."""
    return {**(container.resources.limits or {}), **(container.resources.requests or {})}


def _sum(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> Amounts:
    total = dict(one)
    for name, amount in other.items():
        total[name] = total[name] + amount if name in total else amount
    return total


def _maximum(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> Amounts:
    highest = dict(one)
    for name, amount in other.items():
        highest[name] = max(highest[name], amount) if name in highest else amount
    return highest
