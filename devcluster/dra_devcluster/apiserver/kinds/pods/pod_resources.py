"""What the pod as a whole requests (``spec.resources``), and the quality of service that follows.

The processor and memory that a pod's spec asks for decide its quality. What its devices bring of them, or cost, is
recorded in its status and does not count (K37-NA-22).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dra_api.releases.release import Release
from dra_api.values.quantity import Quantity

from dra_devcluster.apiserver.errors import Json

from .container_resources import quantity

POD_LEVEL_SINCE: Final = Release.V1_34
"""PodLevelResources is on by default; earlier releases drop ``spec.resources``."""
_QUALITY: Final = ("cpu", "memory")
Amounts = dict[str, Quantity]


def default_pod_requests(spec: Json) -> None:
    """The pod requests what its containers request together; its own limit, if none of them requests any."""
    resources = spec.get("resources")
    if not resources:
        return
    requests = dict(resources.get("requests") or {})
    for name, amount in _of_containers(spec).items():
        if name in _QUALITY or name.startswith("hugepages-"):
            requests.setdefault(name, str(amount))
    for name, text in (resources.get("limits") or {}).items():
        requests.setdefault(name, text)
    if requests:
        resources["requests"] = requests


def quality_of_service(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort. What the pod as a whole asks for counts instead of its containers."""
    asks, equal = False, True
    for resources in [spec["resources"]] if spec.get("resources") else map(_resources, _long_lived(spec)):
        limits, requests = _amounts(resources, "limits"), _amounts(resources, "requests")
        for name in _QUALITY:
            asks |= name in limits or name in requests
            equal &= name in limits and limits[name] == requests.get(name)
    if not asks:
        return "BestEffort"
    return "Guaranteed" if equal else "Burstable"


def _long_lived(spec: Json) -> Iterator[Json]:
    """All containers that may ask for resources: ephemeral ones may not."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _of_containers(spec: Json) -> Amounts:
    """What the containers request at most at the same time: init containers run alone, beside earlier sidecars."""
    running: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        together = _sum(running, _amounts(_resources(container), "requests"))
        peak = _larger(peak, together)
        if container.get("restartPolicy") == "Always":
            running = together
    for container in spec.get("containers") or ():
        running = _sum(running, _amounts(_resources(container), "requests"))
    return _larger(peak, running)


def _resources(container: Json) -> Json:
    resources: Json = container.get("resources") or {}
    return resources


def _amounts(resources: Json, kind: str) -> Amounts:
    """The limits or requests above zero."""
    read = {name: quantity(text) for name, text in (resources.get(kind) or {}).items()}
    return {name: amount for name, amount in read.items() if amount is not None and amount.nanos > 0}


def _sum(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> Amounts:
    return {**one, **{name: one[name] + amount if name in one else amount for name, amount in other.items()}}


def _larger(one: Mapping[str, Quantity], other: Mapping[str, Quantity]) -> Amounts:
    return {**one, **{name: max(one[name], amount) if name in one else amount for name, amount in other.items()}}
