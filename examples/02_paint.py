"""Configuration: claims and classes say how a device is to be set up, and the driver checks it against a type.

python examples/02_paint.py --node-name NODE

A claim asks for green paint with this beside its requests (a DeviceClass has the same in its ``spec.config``):

    config:
      - opaque: {driver: paint.example.com, parameters: {color: green}}
"""

from dataclasses import dataclass
from typing import Literal

import dra_kubeletplugin as dra
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim

NAME = "paint.example.com"


@dataclass
class Paint:
    color: Literal["red", "green", "blue"] = "red"
    coats: int = 1


class PaintDriver(dra.Driver):
    async def prepare(self, claim: ResourceClaim) -> dra.Prepared:
        return [self.painted(claim, result) for result in dra.results_for(NAME, claim)]

    def painted(self, claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dra.PreparedDevice:
        paint = Paint()
        for config in dra.configs_for(NAME, claim, result, Paint):  # of the class first, then of the claim
            paint = config.parameters
        if paint.coats > 3:
            # The kubelet shows this in an event of the pod.
            raise dra.ClaimError(f"request {result.request}: {paint.coats} coats do not dry in time; use 3 at most")
        edits = dra.ContainerEdits(env=(f"PAINT={paint.color}", f"COATS={paint.coats}"))
        return dra.PreparedDevice.of(result, edits=edits)


if __name__ == "__main__":
    dra.run(PaintDriver(), NAME, [dra.device(f"brush-{number}") for number in range(4)])
