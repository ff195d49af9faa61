"""A complete DRA driver: its devices are greetings, and a container that gets one finds it in $GREETING.

python examples/hello_driver.py NODE [KUBELET_FOLDER [CDI_FOLDER]]     # KUBECONFIG says where the API server is
"""

import asyncio
import logging
import sys

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


def main(node: str, kubelet: str = "/var/lib/kubelet", cdi: str = "/var/run/cdi") -> None:
    logging.basicConfig(level="INFO")
    settings = dra.PluginSettings(
        driver_name=NAME,
        node_name=node,
        registry_dir=f"{kubelet}/plugins_registry",
        data_dir=f"{kubelet}/plugins/{NAME}",
        cdi_dir=cdi,
    )
    devices = [dra.device(name, attributes={"text": text}) for name, text in GREETINGS.items()]
    asyncio.run(dra.serve(HelloDriver(), settings, {node: dra.Pool.of(devices)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
