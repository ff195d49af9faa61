"""Beside the stock kube-controller-manager, which runs the claim controller that the operator has as well."""

from __future__ import annotations

import asyncio
from typing import Any

from dra_kube import RESOURCE_CLAIMS, Object
from envtest import needs_stock_control_plane
from proving_ground import NAMESPACE, PATIENCE, ProvingGround
from waiting import until

OURS: dict[str, Any] = {"schedulerName": "dra-scheduler"}
THEIRS: dict[str, Any] = {"schedulerName": "default-scheduler", "template": "their-template"}


def recorded(pod: Object) -> dict[str, str]:
    """The claims of the pod's entries by its status."""
    statuses = pod.get("status", {}).get("resourceClaimStatuses") or []
    return {entry["name"]: entry["resourceClaimName"] for entry in statuses}


async def unusable(ground: ProvingGround) -> list[str]:
    """Pods that a kubelet would not start: not bound, or with a recorded claim that is not reserved for them."""
    claims = {claim["metadata"]["name"]: claim for claim in (await ground.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]}
    found = []
    for pod in await ground.pods():
        status = claims.get(recorded(pod).get("gpu", ""), {}).get("status") or {}
        consumers = [consumer["uid"] for consumer in status.get("reservedFor") or []]
        if not (pod["spec"].get("nodeName") and status.get("allocation") and pod["metadata"]["uid"] in consumers):
            found.append(pod["metadata"]["name"])
    return found


@needs_stock_control_plane
async def test_each_of_200_pods_gets_one_claim_and_its_recorded_claim_is_reserved_for_it(ground: ProvingGround) -> None:
    """Half of the pods are ours, half are kube-scheduler's, with a driver of their own."""
    await ground.furnish(nodes=4, devices=25)
    await ground.add_driver("other.example.com", devices=25, kind="other", template="their-template")
    async with ground.operator() as operator:
        await operator.becomes_ready()
        ours = [ground.add_pod(f"ours-{number}", **OURS) for number in range(100)]
        theirs = [ground.add_pod(f"theirs-{number}", **THEIRS) for number in range(100)]
        await asyncio.gather(*(pod for pair in zip(ours, theirs, strict=True) for pod in pair))

        async def all_usable() -> bool:
            assert await unusable(ground) == []
            return True

        await until("every pod is bound with a claim that is reserved for it", all_usable, PATIENCE)
        assert len((await ground.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]) == 200
        await ground.emptied()
    await ground.sound()
