"""Sound drivers of five kinds, made with the plugin library.

    python tests/support/sound_driver.py plain --node-name node-1

The test kit must accuse none of them. Each gives a container the name of its device, and takes a colour as parameter.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import dra_kubeletplugin as dra
from dra_api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceCapacity, ResourceClaim
from dra_api.values import Quantity
from dra_kube import Api, connection

PLAIN, SHARED_ONLY, PARTITIONS, NETWORK, TWO_POOLS = (
    "plain",
    "shared-only",
    "partitions",
    "network-attached",
    "two-pools",
)
KINDS = (PLAIN, SHARED_ONLY, PARTITIONS, NETWORK, TWO_POOLS)
FABRIC = "fabric"
"""The pool of the devices that are attached by network."""


@dataclass
class Paint:
    """The parameters."""

    color: Literal["red", "green", "blue"] = "red"


class SoundDriver(dra.Driver):
    """Gives each device a variable with its name, and one with its colour."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def prepare(self, claim: ResourceClaim) -> dra.Prepared:
        prepared = []
        for number, result in enumerate(dra.results_for(self._name, claim)):
            paint = Paint()
            for config in dra.configs_for(self._name, claim, result, Paint):
                paint = config.parameters
            variables = {f"DEVICE_{number}": f"{result.pool}/{result.device}", f"COLOR_{number}": paint.color}
            edits = dra.ContainerEdits(env=tuple(f"{key}={value}" for key, value in variables.items()))
            prepared.append(dra.PreparedDevice.of(result, edits=edits))
        return prepared


def _plain(count: int) -> list[Device]:
    return [dra.device(f"gpu-{number}", attributes={"serial": f"SN-{number}"}) for number in range(count)]


def _shared(number: int) -> Device:
    range_ = CapacityRequestPolicyRange(min=Quantity("1Gi"), step=Quantity("1Gi"))
    policy = CapacityRequestPolicy(default=Quantity("1Gi"), valid_range=range_)
    memory = DeviceCapacity(value=Quantity("8Gi"), request_policy=policy)
    return dra.device(f"gpu-{number}", capacity={"memory": memory}, allow_multiple_allocations=True)


def _partitions() -> dra.Pool:
    """Two boards, each a whole, two halves and four quarters of its memory."""
    devices = []
    for board in range(2):
        sizes = {f"gpu-{board}": 40, **{f"gpu-{board}-half-{part}": 20 for part in range(2)}}
        sizes |= {f"gpu-{board}-quarter-{part}": 10 for part in range(4)}
        devices += [
            dra.device(name, attributes={"gib": size}, consumes={f"board-{board}": {"memory": f"{size}Gi"}})
            for name, size in sizes.items()
        ]
    boards = [dra.counter_set(f"board-{board}", {"memory": "40Gi"}) for board in range(2)]
    return dra.Pool.of(devices, shared_counters=boards)


@asynccontextmanager
async def _controller(plugin: dra.KubeletPlugin) -> AsyncIterator[None]:
    """Publish the devices that all nodes reach, as a control plane does."""
    async with (
        Api(connection(os.environ["KUBECONFIG"])) as api,
        dra.SlicePublisher(api, f"{NETWORK}.example.com") as it,
    ):
        it.publish({FABRIC: dra.Pool.of(_plain(4), all_nodes=True)})
        yield


def main(kind: str, *flags: str) -> None:
    """Run until SIGTERM."""
    name = f"{kind}.example.com"
    offers: dict[str, list[Device] | dra.Pool | dict[str, dra.Pool] | None] = {
        PLAIN: _plain(4),
        SHARED_ONLY: [_shared(number) for number in range(4)],
        PARTITIONS: _partitions(),
        NETWORK: None,
        TWO_POOLS: {"{nodeName}": dra.Pool.of(_plain(2)), "second-{nodeName}": dra.Pool.of(_plain(2))},
    }
    beside = _controller if kind == NETWORK else nullcontext
    dra.run(SoundDriver(name), name, offers[kind], flags, beside=beside)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="of a driver of the plugin library")
    given = parser.parse_args()
    main(given.kind, *given.flags)
