"""What a pod requests of a node apart from devices: cpu, memory, and all else that nodes count.

The rules of Kubernetes: containers and sidecars (restartable init containers) run at the same time, so they
add up; an ordinary init container runs alone beside the sidecars started before it, so it counts only if it
alone is larger. What the pod itself requests (``spec.resources``) replaces that sum, name by name; the runtime's
overhead comes on top. A limit without a request is the request.
Amounts are billionths, as in ``Quantity.nanos``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dra_api.core import Container, Pod, ResourceRequirements
from dra_api.relations.extended_resources import may_be_devices
from dra_api.values.quantity import NANO

from .attachments import volume_amounts
from .host_ports import port_amounts

Amounts = Mapping[str, int]
POD_SLOTS = "pods"
_POD_LEVEL = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"


def pod_requests(pod: Pod) -> dict[str, int]:
    """Amount per resource name, the pod's own slot (``pods: 1``) included."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers or ():
        wanted = _container_requests(container)
        if container.restart_policy == "Always":
            running = add(running, wanted)
            peak = _largest(peak, running)
        else:
            peak = _largest(peak, add(running, wanted))
    for container in pod.spec.containers or ():
        running = add(running, _container_requests(container))
    wanted = _with_pod_level(_largest(peak, running), pod.spec.resources)
    overhead = {name: quantity.nanos for name, quantity in (pod.spec.overhead or {}).items()}
    return {**add(wanted, overhead), POD_SLOTS: NANO}


def extended_resources(pod: Pod) -> list[str]:
    """The resources that the pod asks for and that devices might serve."""
    return [name for name, amount in pod_requests(pod).items() if amount > 0 and may_be_devices(name)]


def node_requests(pod: Pod, served: Collection[str]) -> dict[str, int]:
    """What the pod takes of its node: also ports and volumes; no resources that devices serve (scheduling.md 7.3)."""
    wanted = {name: amount for name, amount in pod_requests(pod).items() if name not in served}
    return {**wanted, **port_amounts(pod), **volume_amounts(pod)}


def served_resources(pod: Pod) -> frozenset[str]:
    """The resources that devices serve to a pod that has its node, as its status records."""
    extended = pod.status.extended_resource_claim_status
    return frozenset(mapping.resource_name for mapping in (extended.request_mappings if extended else None) or ())


def add(one: Amounts, other: Amounts) -> dict[str, int]:
    """The sum, name by name."""
    total = dict(one)
    for name, amount in other.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract(one: Amounts, other: Amounts) -> dict[str, int]:
    """The exact inverse of ``add``; names that come to nothing are dropped."""
    rest = dict(one)
    for name, amount in other.items():
        rest[name] = rest.get(name, 0) - amount
        if not rest[name]:
            del rest[name]
    return rest


def _container_requests(container: Container) -> dict[str, int]:
    resources = container.resources
    wanted = {**(resources.limits or {}), **(resources.requests or {})}
    return {name: quantity.nanos for name, quantity in wanted.items() if quantity.nanos}


def _with_pod_level(containers: Amounts, resources: ResourceRequirements | None) -> dict[str, int]:
    """The requests of the containers, replaced by those of the pod where it has its own.

    A limit of the pod replaces only what no container requests, and huge pages, which cannot be overcommitted. The API
    server completes pods in this way, and objects from files are read so as well.
    """
    wanted = dict(containers)
    if resources is None:
        return wanted
    for name, quantity in (resources.limits or {}).items():
        if name.startswith(_HUGE_PAGES) or (name in _POD_LEVEL and name not in wanted):
            wanted[name] = quantity.nanos
    for name, quantity in (resources.requests or {}).items():
        if name.startswith(_HUGE_PAGES) or name in _POD_LEVEL:
            wanted[name] = quantity.nanos
    return wanted


def _largest(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
