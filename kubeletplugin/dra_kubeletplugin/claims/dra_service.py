"""The kubelet's calls about claims, in gRPC and without it.

The kubelet's calls without gRPC: fetch the claims, wait for a turn, prepare or unprepare each.

Spec: PH-08, PH-09. A claim that cannot be fetched fails the whole call, which the kubelet repeats; a claim that the
driver cannot handle fails alone.

The DRA gRPC service in each version that kubelets speak; the versions differ in names and in ``share_id``.

Spec: plugin-helper.md sections 2.5 and 9.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import grpc
from dra_kube import Api
from dra_proto.dra.v1 import api_pb2 as v1_pb2
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1_pb2

from dra_kubeletplugin.claims.device_status import fetch_claim
from dra_kubeletplugin.claims.lock import Turns
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.driver import ClaimRef, PreparedDevice, PrepareResults, UnprepareResults, readable

Result = TypeVar("Result")


class NodeCalls:
    """What all versions of the gRPC service do."""

    def __init__(self, prepared: PreparedClaims, api: Api, turns: Turns) -> None:
        self._prepared = prepared
        self._api = api
        self._turns = turns

    async def prepare(self, refs: Sequence[ClaimRef]) -> PrepareResults:
        """The devices of each claim, or its error. Raises ClaimError or KubeError when the whole call fails."""
        claims = await asyncio.gather(*(fetch_claim(self._api, ref) for ref in refs))
        if self._prepared.together and claims:
            what = f"prepare of claim {', '.join(map(str, refs))}"
            return await self._turns.run(
                what, [ref.uid for ref in refs], partial(self._prepared.prepare_all, list(claims))
            )
        return await self._each("prepare", refs, [partial(self._prepared.prepare, claim) for claim in claims])

    async def unprepare(self, refs: Sequence[ClaimRef]) -> UnprepareResults:
        """None or the error for each claim."""
        return await self._each("unprepare", refs, [partial(self._prepared.unprepare, ref) for ref in refs])

    async def _each(
        self, call: str, refs: Sequence[ClaimRef], steps: Sequence[Callable[[], Awaitable[Result]]]
    ) -> dict[str, Result]:
        async def work() -> dict[str, Result]:
            return {ref.uid: await step() for ref, step in zip(refs, steps, strict=True)}

        what = f"{call} of claim {', '.join(map(str, refs))}"
        return await self._turns.run(what, [ref.uid for ref in refs], work)


@dataclass(frozen=True)
class WireVersion:
    """One version of the service: its name in registrations and on the wire, and its messages."""

    name: str
    service: str
    messages: ModuleType
    has_shares: bool = False


_PACKAGE = "k8s.io.kubelet.pkg.apis.dra"
V1 = WireVersion("v1.DRAPlugin", f"{_PACKAGE}.v1.DRAPlugin", v1_pb2, has_shares=True)
V1BETA1 = WireVersion("v1beta1.DRAPlugin", f"{_PACKAGE}.v1beta1.DRAPlugin", v1beta1_pb2)
LEGACY = WireVersion("v1alpha3.NodeService", "v1alpha3.Node", v1beta1_pb2)
"""Of Kubernetes 1.31 and before, with names of its own and the messages of v1beta1 (9.6)."""


class DRAService:
    """Translates between the messages of one version and ``NodeCalls``."""

    def __init__(self, version: WireVersion, calls: NodeCalls) -> None:
        self._version = version
        self._calls = calls

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve this version."""
        methods = {method.__name__: method for method in (self.NodePrepareResources, self.NodeUnprepareResources)}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=getattr(self._version.messages, f"{name}Request").FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._version.service, handlers),))

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  # grpc's name
        """Prepare the claims of the request."""
        messages = self._version.messages
        answer = messages.NodePrepareResourcesResponse()
        for uid, result in (await self._calls.prepare(_refs(request))).items():
            if isinstance(result, Exception):
                answer.claims[uid].error = _text(result)
            else:
                answer.claims[uid].devices.extend(self._device(device) for device in result)
                answer.claims[uid].SetInParent()
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  # grpc's name
        """Unprepare the claims of the request."""
        answer = self._version.messages.NodeUnprepareResourcesResponse()
        for uid, error in (await self._calls.unprepare(_refs(request))).items():
            answer.claims[uid].error = "" if error is None else _text(error)
        return answer

    def _device(self, device: PreparedDevice) -> Any:
        message = self._version.messages.Device(
            request_names=[name.partition("/")[0] for name in device.requests],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_ids,
        )
        if self._version.has_shares and device.share_id is not None:
            message.share_id = device.share_id
        return message


def _refs(request: Any) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in request.claims]


def _text(error: Exception) -> str:
    return readable(str(error)) or type(error).__name__  # an empty text would mean success
