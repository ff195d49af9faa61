"""The pod-resources API: which devices the containers of this node hold, for monitoring (KM-28).

gRPC service ``v1.PodResourcesLister`` on the socket ``<root>/pod-resources/kubelet.sock``. All its clients together may
send 100 requests per second, and 10 at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
from dra_api.references import ClaimReferenceError
from dra_proto.podresources.v1 import api_pb2, api_pb2_grpc

from dra_devcluster.agent.checkpoint import ClaimCache, ClaimInfo
from dra_devcluster.agent.claims import claim_requests
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.settings import AgentSettings, KubeletDefect
from dra_devcluster.agent.spec import RunContainer, RunPod

SOCKET = Path("pod-resources") / "kubelet.sock"
_CALLS_PER_SECOND, _CALLS_AT_ONCE = 100.0, 10.0


class PodResources(api_pb2_grpc.PodResourcesListerServicer):
    """The server of one node; an async context manager. ``pods`` are the active pods."""

    def __init__(
        self, root: Path, pods: Callable[[], Iterable[RunPod]], cache: ClaimCache, settings: AgentSettings
    ) -> None:
        self._socket = root / SOCKET
        self._pods = pods
        self._cache = cache
        self._accumulates = KubeletDefect.ACCUMULATED_CDI_IDS in settings.defects
        self._limit = _Limit(_CALLS_PER_SECOND, _CALLS_AT_ONCE)
        self._server = grpc.aio.server()

    async def __aenter__(self) -> Self:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        api_pb2_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        before = os.umask(0o077)  # others of this machine may not ask which pods have which devices
        try:
            self._server.add_insecure_port(f"unix:{self._socket}")
        finally:
            os.umask(before)
        try:
            await self._server.start()
        except BaseException:  # cancelled, for example: a server that is never stopped complains
            await self._server.stop(None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def List(self, request: Any, context: Any) -> api_pb2.ListPodResourcesResponse:  # noqa: N802  (name of the RPC)
        """All active pods."""
        await self._admit(context)
        return api_pb2.ListPodResourcesResponse(pod_resources=map(self._pod, self._pods()))

    async def Get(self, request: Any, context: Any) -> api_pb2.GetPodResourcesResponse:  # noqa: N802  (name of the RPC)
        """One pod by name and namespace."""
        await self._admit(context)
        key = (request.pod_namespace, request.pod_name)
        for pod in self._pods():
            if (pod.metadata.namespace, pod.metadata.name) == key:
                return api_pb2.GetPodResourcesResponse(pod_resources=self._pod(pod))
        message = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, message)
        raise AssertionError("abort raises")

    async def GetAllocatableResources(  # noqa: N802  (name of the RPC)
        self, request: Any, context: Any
    ) -> api_pb2.AllocatableResourcesResponse:
        """Devices of device plugins, cpus and memory that could be given exclusively: none here."""
        await self._admit(context)
        return api_pb2.AllocatableResourcesResponse()

    async def _admit(self, context: Any) -> None:
        if not self._limit.allows(asyncio.get_running_loop().time()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _pod(self, pod: RunPod) -> api_pb2.PodResources:
        sidecars = (one for one in pod.spec.init_containers or () if one.is_sidecar)
        return api_pb2.PodResources(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            containers=[self._container(pod, one) for one in (*sidecars, *(pod.spec.containers or ()))],
        )

    def _container(self, pod: RunPod, container: RunContainer) -> api_pb2.ContainerResources:
        """A container with a claim that the node does not hold shows none of its claims."""
        resources: list[api_pb2.DynamicResource] = []
        try:
            names = dict.fromkeys(name for name, _ in claim_requests(pod, container))
        except (ClaimError, ClaimReferenceError):
            names = {}
        claims = [self._cache.get(pod.metadata.namespace, name) for name in names]
        if None not in claims:
            resources = [self._claim(claim) for claim in claims if claim is not None]
        return api_pb2.ContainerResources(name=container.name, dynamic_resources=resources)

    def _claim(self, claim: ClaimInfo) -> api_pb2.DynamicResource:
        """The whole claim, even if the container refers to one request of it."""
        return api_pb2.DynamicResource(
            claim_name=claim.name, claim_namespace=claim.namespace, claim_resources=self._devices(claim)
        )

    def _devices(self, claim: ClaimInfo) -> Iterator[api_pb2.ClaimResource]:
        for driver, devices in sorted(claim.drivers.items()):
            ids: list[str] = []
            for device in devices:
                ids = [*ids, *device.cdi_ids] if self._accumulates else list(device.cdi_ids)
                yield api_pb2.ClaimResource(
                    cdi_devices=[api_pb2.CDIDevice(name=name) for name in ids],
                    driver_name=driver,
                    pool_name=device.pool,
                    device_name=device.device,
                    share_id=device.share_id,
                )


class _Limit:
    """Lets ``rate`` calls per second pass, and ``burst`` at once after a pause."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at: float | None = None

    def allows(self, now: float) -> bool:
        """Whether a call at this time passes; it counts if it does."""
        passed = 0.0 if self._at is None else now - self._at
        self._at = now
        self._left = min(self._burst, self._left + passed * self._rate)
        if self._left < 1:
            return False
        self._left -= 1
        return True
