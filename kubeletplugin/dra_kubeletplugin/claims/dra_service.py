"""The DRA gRPC service in each version that kubelets speak; the versions differ in names and in ``share_id``.

Spec: plugin-helper.md sections 2.5 and 9.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import grpc
from dra_proto.dra.v1 import api_pb2 as v1_pb2
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1_pb2

from dra_kubeletplugin.driver import ClaimRef, PreparedDevice
from dra_kubeletplugin.driver_code import readable

from .calls import NodeCalls


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
