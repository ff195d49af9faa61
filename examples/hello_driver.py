"""A complete DRA driver: its devices are greetings, and a container that gets one finds it in $GREETING.

python examples/hello_driver.py NODE [KUBELET_FOLDER [CDI_FOLDER]]     # KUBECONFIG says where the API server is
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import dra_kubeletplugin as dra
from dra_api.resource import ResourceClaim

NAME = "hello.example.com"
GREETINGS = {"hello-0": "good morning", "hello-1": "good day", "hello-2": "good night"}


class HelloDriver(dra.Driver):
    def __init__(self, cdi: dra.CdiFolder) -> None:
        self.cdi = cdi  # files that tell the container runtime what a device means for a container

    async def prepare(self, claims: Sequence[ResourceClaim]) -> dra.PrepareResults:
        # By claim uid, the prepared devices or an error. What prepare_one raises fails just that claim.
        return await dra.each_claim(claims, self.prepare_one)

    async def unprepare(self, claims: Sequence[dra.ClaimRef]) -> dra.UnprepareResults:
        return await dra.each_claim(claims, self.unprepare_one)

    async def prepare_one(self, claim: ResourceClaim) -> list[dra.PreparedDevice]:
        prepared = []
        for result in dra.results_for(NAME, claim):
            edits = dra.ContainerEdits(env=(f"GREETING={GREETINGS[result.device]}",))
            # The kubelet may ask again, so preparing twice must do no harm: the same file is written.
            cdi_id = self.cdi.write(claim.metadata.uid, result.device, edits)
            prepared.append(dra.PreparedDevice.of(result, cdi_id))
        return prepared

    async def unprepare_one(self, claim: dra.ClaimRef) -> None:
        # Only names are known here, since the claim may be gone; never prepared is fine, too.
        self.cdi.remove(claim.uid)


def main(node: str, kubelet: str = "/var/lib/kubelet", cdi: str = "/var/run/cdi") -> None:
    logging.basicConfig(level="INFO")
    folder = Path(kubelet, "plugins", NAME)  # for the plugin's own socket
    folder.mkdir(parents=True, exist_ok=True)
    files = dra.CdiFolder(Path(cdi), NAME)
    files.create()
    settings = dra.PluginSettings(
        driver_name=NAME, node_name=node, registry_dir=Path(kubelet, "plugins_registry"), data_dir=folder
    )
    devices = [dra.device(name, attributes={"text": text}) for name, text in GREETINGS.items()]
    asyncio.run(dra.serve(HelloDriver(files), settings, {node: dra.Pool.of(devices)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
