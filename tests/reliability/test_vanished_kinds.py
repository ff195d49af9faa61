"""The API server stops to serve resource.k8s.io, as when a feature is switched off for a while, and serves it again."""

from __future__ import annotations

import pytest
from faults import Target, Unserved
from proving_ground import ProvingGround

pytestmark = pytest.mark.timeout(300)

GROUP = Target(group="resource.k8s.io", client="operator")


async def test_pods_come_and_go_while_their_claims_cannot_be_seen(ground: ProvingGround) -> None:
    """No device of a pod that runs is given away meanwhile, and afterwards all pods run."""
    await ground.furnish(nodes=2, devices=3)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        names = await ground.add_pods(4)
        await ground.bound(4)
        with ground.proxy.suffering(Unserved(GROUP)):
            ground.proxy.break_streams()
            await ground.delete_pods(names[:2])
            await ground.add_pods(4, prefix="later")

            async def missed() -> bool:
                """The operator knows of the pods, and of no claim of theirs, be it its own or another one's."""
                return await operator.metric("dra_operator_waiting_pods", reason="claim-unmade") == 4

            await ground.until("the operator misses the claims", missed)
        await ground.bound(6)
        await ground.emptied()
        assert await operator.stop() == 0
        assert operator.unexplained() == []
    await ground.sound()
