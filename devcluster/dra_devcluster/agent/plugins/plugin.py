"""One plugin instance: its state, the calls of the DRA service with arguments and answers, and their metrics.

One channel per instance is used for everything, connects at once and again after every loss (KM-07). The messages of
v1 and v1beta1 differ only in ``share_id``. The two versions of the health service have the same messages. So one code
path serves both versions of each.

A driver may have several instances at the same time: during a rolling update the new one registers before the old one
goes (KM-06 to KM-09).

The metrics have the names that a kubelet has for them (kubelet-manager.md section 11, KM-05).
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import grpc
from dra_api.releases import Release
from dra_api.validation.published import PREPARE, UNPREPARE
from dra_proto.dra.v1 import api_pb2 as v1
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1
from dra_proto.health.v1 import api_pb2 as health
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_devcluster.agent.errors import ClaimError, HealthNotServed, HealthStreamEnded, RegistrationError
from dra_devcluster.agent.plugins.watcher import PluginSockets
from dra_devcluster.background import cancelled

_SHORTEST_SECONDS, _LONGEST_SECONDS, _BUCKET_COUNT = 0.1, 40.0, 15
BUCKETS = tuple(
    _SHORTEST_SECONDS * (_LONGEST_SECONDS / _SHORTEST_SECONDS) ** (index / (_BUCKET_COUNT - 1))
    for index in range(_BUCKET_COUNT)
)


class NodeMetrics:
    """The histograms of one node; ``registry`` holds what is exposed."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._operations = Histogram(
            "dra_operations_duration_seconds",
            "How long the claims of a pod took to be prepared or unprepared.",
            ["operation_name", "is_error"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._calls = Histogram(
            "dra_grpc_operations_duration_seconds",
            "How long the calls of drivers took.",
            ["driver_name", "method_name", "grpc_status_code"],
            buckets=BUCKETS,
            registry=self.registry,
        )

        self._skips = {
            operation: Counter(
                f"dra_node_{word}_skips_total",
                f"Claims that a driver did not have to {word}.",
                ["driver_name"],
                registry=self.registry,
            )
            for operation, word in ((PREPARE, "prepare"), (UNPREPARE, "unprepare"))
        }

    def skipped(self, operation: str, driver: str) -> None:
        """A driver does without this call for one claim."""
        self._skips[operation].labels(driver).inc()

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Time the claims of one pod; every exception counts as an error."""
        start, failed = time.monotonic(), "true"
        try:
            yield
            failed = "false"
        finally:
            self._operations.labels(name, failed).observe(time.monotonic() - start)

    def called(self, driver: str, method: str, code: grpc.StatusCode, seconds: float) -> None:
        """A call of a driver has ended; ``method`` is its full name."""
        self._calls.labels(driver, method, code_name(code)).observe(seconds)


class PluginSocketCount(Collector):
    """Shows at each scrape which plugin sockets there are, and which are registered."""

    def __init__(self, sockets: PluginSockets) -> None:
        self._sockets = sockets

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "plugin_manager_total_plugins", "Plugin sockets by state.", labels=["socket_path", "state"]
        )
        states: dict[str, Iterable[str]] = {
            "actual_state_of_world": self._sockets.actual,
            "desired_state_of_world": self._sockets.desired,
        }
        for state, paths in states.items():
            for path in sorted(paths):
                gauge.add_metric([path, state], 1)
        yield gauge


def code_name(code: grpc.StatusCode) -> str:
    """A status code as Go writes it: ``OK``, ``Canceled``, ``DeadlineExceeded``."""
    if code is grpc.StatusCode.OK:
        return "OK"
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return "".join(word.capitalize() for word in code.name.split("_"))


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
        return [instance for instances in self._instances.values() for instance in instances]


class ClaimRef(NamedTuple):
    namespace: str
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device as its driver reported it; no request names mean that it serves every request."""

    pool: str
    device: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()


_LONGEST_ADDRESS_BYTES = 107
_OPEN_FILES = "/proc/self/fd"
_OPTIONS = [
    # Some servers reject the percent-encoded path that would be the authority of a unix socket (plugin-helper.md 9.5).
    ("grpc.default_authority", "localhost"),
    # Otherwise channels to a path share one connection, and its back-off outlives the plugin that caused it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
]


def open_channel(path: str) -> grpc.aio.Channel:
    """A channel to a unix socket, also at a path that is longer than the address of a socket may be.

    A plugin in a container has a shorter path to the same socket, so it could listen there. The folder stays open as
    long as the channel exists, because it has a short name among the open files of this process.
    """
    folder, name = os.path.split(path)
    if len(os.fsencode(path)) > _LONGEST_ADDRESS_BYTES and os.path.isdir(_OPEN_FILES) and os.path.isdir(folder):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        channel = grpc.aio.insecure_channel(f"unix:{_OPEN_FILES}/{opened}/{name}", options=_OPTIONS)
        weakref.finalize(channel, os.close, opened)
        return channel
    return grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS)


def describe(error: grpc.aio.AioRpcError) -> str:
    """A failed call as kubelet users know it: ``rpc error: code = Unavailable desc = ...``."""
    return f"rpc error: code = {code_name(error.code())} desc = {error.details()}"


class _Service(NamedTuple):
    """A service on the wire; that of Kubernetes before 1.32 has the messages of its successor."""

    name: str
    messages: Any


_SERVICES = {
    "v1.DRAPlugin": _Service("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", v1),
    "v1beta1.DRAPlugin": _Service("k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", v1beta1),
    LEGACY_SERVICE: _Service("v1alpha3.Node", v1beta1),
}


class DraPlugin:
    """One registered instance of a driver's plugin.

    ``changed`` is called after every gain or loss of the connection. ``health_service`` is empty for an instance that
    reports no health.
    """

    def __init__(
        self,
        driver: str,
        endpoint: str,
        service: str,
        changed: Callable[[DraPlugin], None],
        metrics: NodeMetrics | None = None,
        *,
        health_service: str = "",
    ) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.service = service
        self.health_service = health_service
        self.connected = False
        self._changed = changed
        self._service = _SERVICES[service]
        self._metrics = metrics
        self._channel = open_channel(endpoint)
        self._watch = asyncio.create_task(self._watch_connection(), name=f"connection of {driver}")

    async def close(self) -> None:
        """End the connection; calls in progress fail."""
        await cancelled(self._watch)
        self.connected = False
        await self._channel.close(None)

    async def _watch_connection(self) -> None:
        while True:
            state = self._channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected != self.connected:
                self.connected = connected
                self._changed(self)
            await self._channel.wait_for_state_change(state)

    async def prepare(self, claims: Iterable[ClaimRef], timeout: float) -> dict[str, tuple[PreparedDevice, ...]]:
        """Devices per claim UID (KM-14). Raises ClaimError for the first fault of the answer."""
        results = await self._call("NodePrepareResources", list(claims), timeout)
        return {uid: tuple(_device(device) for device in result.devices) for uid, result in results.items()}

    async def unprepare(self, claims: Iterable[ClaimRef], timeout: float) -> None:
        """Unprepare the devices of these claims (KM-19). Raises ClaimError."""
        await self._call("NodeUnprepareResources", list(claims), timeout)

    async def watch_health(self) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        """The health reports of the instance, each a full list (KM-22). Raises HealthStreamEnded in the end."""
        watch = self._channel.unary_stream(
            f"/{self.health_service}/NodeWatchResources",
            request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )
        try:
            async for message in watch(health.NodeWatchResourcesRequest()):
                yield message
        except grpc.aio.AioRpcError as error:
            is_missing = error.code() is grpc.StatusCode.UNIMPLEMENTED
            raise (HealthNotServed if is_missing else HealthStreamEnded)(describe(error)) from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise HealthStreamEnded("the connection was closed") from None
        raise HealthStreamEnded("the plugin ended the stream")

    async def _call(self, method: str, claims: list[ClaimRef], timeout: float) -> dict[str, Any]:
        """The results by claim UID, after the checks that both calls share."""
        messages = self._service.messages
        request = getattr(messages, f"{method}Request")(
            claims=[messages.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name) for ref in claims]
        )
        try:
            response = await self._timed(method, request, timeout)
        except grpc.aio.AioRpcError as error:
            raise ClaimError(f"{method}: {describe(error)}") from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise ClaimError(f"{method}: DRA driver {self.driver} was unregistered meanwhile") from None
        names = {ref.uid: ref.name for ref in claims}
        for uid, result in response.claims.items():
            if uid not in names:
                raise ClaimError(f"{method} returned result for unknown claim UID {uid}")
            if result.error:
                raise ClaimError(f"{method} failed for ResourceClaim {names[uid]}: {result.error}")
        if len(response.claims) < len(claims):
            raise ClaimError(f"{method} skipped {len(claims) - len(response.claims)} ResourceClaims")
        return dict(response.claims)

    async def _timed(self, method: str, request: Any, timeout: float) -> Any:
        path = f"/{self._service.name}/{method}"
        call = self._channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(self._service.messages, f"{method}Response").FromString,
        )
        start, code = time.monotonic(), grpc.StatusCode.CANCELLED
        try:
            response = await call(request, timeout=timeout)
            code = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            code = error.code()
            raise
        finally:
            if self._metrics is not None:
                self._metrics.called(self.driver, path, code, time.monotonic() - start)
        return response


def _is_cancelled() -> bool:
    """Whether the task itself is cancelled. Closing a channel cancels its calls, which must end as failed calls."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _device(message: Any) -> PreparedDevice:
    return PreparedDevice(
        pool=message.pool_name,
        device=message.device_name,
        share_id=getattr(message, "share_id", "") or None,
        requests=tuple(message.request_names),
        cdi_ids=tuple(message.cdi_device_ids),
    )
