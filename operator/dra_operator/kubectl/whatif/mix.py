"""What pods usually ask for, and for how much of that there is room: for one more pod of each kind, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dra_api.core import Container, Pod, PodResourceClaim, PodSpec, ResourceRequirements
from dra_api.meta import ObjectMeta
from dra_api.quantity import parse_quantity
from dra_api.resource import ResourceClaim
from msgspec.structs import replace

from dra_operator.controllers.scheduling.mix import Asked
from dra_operator.wording import listed

from .overlay import Overlay

SHOWN_REQUESTS: Final = 4
"""Requests without room that are named."""


@dataclass(frozen=True, slots=True)
class MixFitting:
    """``weight`` of the requests that have room, of ``total``. ``places``: their nodes; ``lacking``: the others."""

    weight: int
    total: int
    places: Sequence[str]
    lacking: Sequence[str]

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return round(self.weight / self.total, 3)

    @property
    def nodes(self) -> str:
        """Where there is room."""
        return listed(dict.fromkeys(self.places))

    @property
    def text(self) -> str:
        """What has no room."""
        return f"{1 - self.share:.0%} of the requests have no room: {listed(self.lacking, SHOWN_REQUESTS)}"


class MixOfPods:
    """A pod for each kind of request, which asks for the cpu that such pods ask for, and tolerates nothing."""

    def __init__(self, overlay: Overlay, asked: Sequence[Asked], namespace: str) -> None:
        self._pods: list[tuple[Pod, Asked]] = []
        for number, it in enumerate(asked):
            pod, claim = _sample(it, namespace, f"recent-mix-{number}", overlay.cluster.scheduler_name)
            overlay.add([claim])
            self._pods.append((overlay.with_claims(pod)[0], it))
        self._total = sum(it.weight for it in asked)

    def fitting(self, overlay: Overlay) -> MixFitting:
        """For what there is room now."""
        found = [(it, overlay.node_for(pod)) for pod, it in self._pods]
        return MixFitting(
            sum(it.weight for it, node in found if node),
            self._total,
            [node for _, node in found if node],
            [f"{_title(it)} ({it.weight / self._total:.0%})" for it, node in found if not node],
        )


def _sample(asked: Asked, namespace: str, name: str, scheduler: str) -> tuple[Pod, ResourceClaim]:
    uses = (PodResourceClaim(name="request", resource_claim_name=name),)
    requests = ResourceRequirements(requests={"cpu": parse_quantity(f"{asked.milli_cpu}m")})
    container = Container(name="main", resources=requests)
    spec = PodSpec(scheduler_name=scheduler, containers=(container,), resource_claims=uses)
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid {name}")
    return Pod(metadata=meta, spec=spec), replace(asked.claim, metadata=replace(meta, uid=f"uid of claim {name}"))


def _title(asked: Asked) -> str:
    """``3 gpu``."""
    [request] = asked.claim.spec.devices.requests or ()
    exactly = request.exactly
    return f"{exactly.count} {exactly.device_class_name}" if exactly is not None else request.name
