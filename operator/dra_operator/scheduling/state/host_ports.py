"""Host ports: which ports of its node a pod holds, and which of them conflict.

The ports that a pod holds are amounts like cpu, so they come and go with what the pod asks of its node, from the moment
that the node is decided. Each counts twice: under its address, and under all addresses together. So a port on every
address (0.0.0.0, also if no address is given) conflicts with that port on any one, and a port on one address only with
the same and with every address. A pod in the network of its node holds every port that it names: the API server writes
that into the pod, and objects that it has not seen yet are read so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.values.quantity import NANO

_EVERY_ADDRESS = "0.0.0.0"


class HostPort(NamedTuple):
    """One port of one address of the node."""

    protocol: str
    number: int
    address: str

    @property
    def name(self) -> str:
        """As people write it; on all addresses together, it is the name of an amount as well."""
        return f"host port {self.number}/{self.protocol}"

    @property
    def on_address(self) -> str:
        """The name of its amount on its address alone."""
        return f"{self.name} of {self.address}"

    def is_taken(self, used: Mapping[str, int]) -> bool:
        """Whether a pod on the node holds it."""
        if self.address == _EVERY_ADDRESS:
            return self.name in used
        return self.on_address in used or self._replace(address=_EVERY_ADDRESS).on_address in used


def host_ports(pod: Pod) -> Iterator[HostPort]:
    """What containers and sidecars hold; an ordinary init container is gone when others run."""
    sidecars = (it for it in pod.spec.init_containers or () if it.restart_policy == "Always")
    for container in (*sidecars, *(pod.spec.containers or ())):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if pod.spec.host_network else 0)
            if number > 0:
                yield HostPort(port.protocol or "TCP", number, port.host_ip or _EVERY_ADDRESS)


def port_amounts(pod: Pod) -> dict[str, int]:
    """What the pod takes of the ports of its node."""
    total: dict[str, int] = {}
    for port in host_ports(pod):
        for name in (port.name, port.on_address):
            total[name] = total.get(name, 0) + NANO
    return total
