"""Pods of a PodGroup share its claim in a whole cluster; a kube-controller-manager makes the claim if there is one."""

from __future__ import annotations

from pathlib import Path

from dra_kube import POD_GROUPS, RESOURCE_CLAIMS, Object
from proving_ground import NAMESPACE, proving_ground

GATES = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "template"}
GROUP: Object = {
    "apiVersion": POD_GROUPS.api_version(),
    "kind": "PodGroup",
    "metadata": {"name": "group", "namespace": NAMESPACE},
    "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": [CLAIM]},
}


async def test_pods_of_a_group_share_its_claim_until_the_last_one_ends(tmp_path: Path) -> None:
    async with proving_ground(tmp_path, gates=GATES) as ground:
        await ground.furnish(nodes=2, devices=1)
        async with ground.operator("--feature-gates", ",".join(f"{gate}=true" for gate in GATES)) as operator:
            await operator.becomes_ready()
            await ground.api.create(POD_GROUPS, GROUP)
            for number in range(3):
                await ground.add_pod(f"pod-{number}", schedulingGroup={"podGroupName": "group"})
            await ground.bound(3)
            (claim,) = (await ground.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]
            (consumer,) = claim["status"]["reservedFor"]
            assert (consumer["resource"], consumer["name"]) == ("podgroups", "group")
            await ground.delete_pods(f"pod-{number}" for number in range(3))
            await ground.api.delete(POD_GROUPS, "group", NAMESPACE)

            async def is_gone() -> bool:
                return not (await ground.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]

            await ground.until("the claim is gone", is_gone)
        await ground.sound()
