"""The claims of an API server and nothing else of it, and pods that use them."""

from __future__ import annotations

from typing import Any

from dra_api.codec import convert
from dra_api.core import Pod
from dra_kube import NotFound
from objects import owner, user

DRIVER = "gpu.example.com"
OTHER = "nic.example.com"


class Claims:
    """The claims of the API server, and nothing else of it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> dict[str, Any]:
        if name not in self.objects:
            raise NotFound(404, "NotFound", f'resourceclaims.resource.k8s.io "{name}" not found')
        return self.objects[name]

    def add(
        self,
        name: str,
        *pods: str,
        drivers: tuple[str, ...] = (DRIVER,),
        device: str = "device",
        skips: tuple[str, ...] = (),
        **changes: Any,
    ) -> None:
        results = [
            {"request": "req", "driver": driver, "pool": "pool", "device": f"{device}-{index}"}
            | ({"skipNodeOperations": skips} if skips else {})
            for index, driver in enumerate(drivers)
        ]
        status = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [user(pod) for pod in pods],
        }
        metadata = {"name": name, "namespace": "default", "uid": changes.pop("uid", f"uid-of-{name}")}
        owned_by = changes.pop("owner", None)
        if owned_by:
            metadata["ownerReferences"] = [owner(owned_by)]
        self.objects[name] = {"metadata": metadata, "status": status | changes}


def pod_with(name: str, *claims: str, **status: Any) -> Pod:
    entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    return convert(
        Pod,
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "resourceClaims": entries,
                "containers": [{"name": "c", "resources": {"claims": [{"name": claim} for claim in claims]}}],
            },
            "status": status,
        },
    )
