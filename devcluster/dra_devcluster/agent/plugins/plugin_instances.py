"""Which DRA plugins are registered, in which order, and which of them to call (KM-06 to KM-09).

A driver may have several instances at the same time: during a rolling update the new one registers
before the old one goes. No I/O here: the connection of an instance is whatever object is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from dra_api.releases.release import Release

from dra_devcluster.agent.errors import ClaimError, RegistrationError

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
_NO_SERVICES = "empty list of supported gRPC services (aka supported versions)"
LEGACY_SERVICE = "v1alpha3.NodeService"
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


def choose_service(offered: Sequence[str]) -> str:
    """The first service in the plugin's order that we speak (KM-06). Raises RegistrationError."""
    if not offered:
        raise RegistrationError(_NO_SERVICES)
    for service in offered:
        if service in SERVICES:
            return service
    raise RegistrationError(
        f"none of the supported gRPC services of the plugin ({', '.join(offered)}) "
        f"is supported by the node ({', '.join(SERVICES)})"
    )


def choose_legacy_service(offered: Sequence[str]) -> str:
    """What a kubelet of Kubernetes 1.32 chooses: its own newest, and the legacy service of plugins that offer none.

    Old plugins gave version numbers instead of services. Raises RegistrationError.
    """
    if not offered:
        raise RegistrationError(_NO_SERVICES)
    return "v1beta1.DRAPlugin" if "v1beta1.DRAPlugin" in offered else LEGACY_SERVICE


def choose_health_service(offered: Sequence[str], release: Release) -> str:
    """The newest health service that the plugin offers and a kubelet of the release knows; empty if there is none.

    Kubelets before 1.37 know the alpha version only (KM-22, K37-HEALTH-08).
    """
    known = HEALTH_SERVICES if release >= Release.V1_37 else HEALTH_SERVICES[-1:]
    return next((service for service in known if service in offered), "")


class Instance(Protocol):
    """One running copy of a driver's plugin."""

    @property
    def driver(self) -> str: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def connected(self) -> bool: ...


InstanceT = TypeVar("InstanceT", bound=Instance)


class PluginInstances(Generic[InstanceT]):
    """The registered instances of all drivers, each driver's in the order of registration."""

    def __init__(self) -> None:
        self._instances: dict[str, list[InstanceT]] = {}

    def check_free(self, driver: str, endpoint: str) -> None:
        """Raises RegistrationError when the driver has an instance at this endpoint already (KM-07)."""
        if any(instance.endpoint == endpoint for instance in self._instances.get(driver, ())):
            raise RegistrationError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")

    def add(self, instance: InstanceT) -> None:
        """Register. Raises RegistrationError for a taken endpoint."""
        self.check_free(instance.driver, instance.endpoint)
        self._instances.setdefault(instance.driver, []).append(instance)

    def remove(self, driver: str, endpoint: str) -> InstanceT | None:
        """Take out exactly that instance (KM-08); None when there is none."""
        instances = self._instances.get(driver, [])
        for instance in instances:
            if instance.endpoint == endpoint:
                instances.remove(instance)
                if not instances:
                    del self._instances[driver]
                return instance
        return None

    def get(self, driver: str) -> InstanceT:
        """The latest instance that is connected, else the latest (KM-09). Raises ClaimError for no instance."""
        instances = self._instances.get(driver)
        if not instances:
            raise ClaimError(f"DRA driver {driver} is not registered")
        return next((instance for instance in reversed(instances) if instance.connected), instances[-1])

    def is_usable(self, driver: str) -> bool:
        """Whether at least one instance of the driver is connected."""
        return any(instance.connected for instance in self._instances.get(driver, ()))

    def instances(self) -> list[InstanceT]:
        """All instances of all drivers."""
        return [instance for instances in self._instances.values() for instance in instances]
