"""A complete DRA driver: its devices are greetings, and a container that gets one finds it in $GREETING.

python examples/01_hello.py --node-name NODE        # --help lists all flags
"""

import dra_kubeletplugin as dra
from dra_api.resource import ResourceClaim

NAME = "hello.example.com"
GREETINGS = {"hello-0": "good morning", "hello-1": "good day", "hello-2": "good night"}


class HelloDriver(dra.Driver):
    async def prepare(self, claim: ResourceClaim) -> dra.Prepared:
        prepared = []
        for result in dra.results_for(NAME, claim):
            edits = dra.ContainerEdits(env=(f"GREETING={GREETINGS[result.device]}",))
            prepared.append(dra.PreparedDevice.of(result, edits=edits))
        return prepared


if __name__ == "__main__":
    devices = [dra.device(name, attributes={"text": text}) for name, text in GREETINGS.items()]
    dra.run(HelloDriver(), NAME, devices)
