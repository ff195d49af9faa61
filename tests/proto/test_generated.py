"""The generated gRPC code: is it what the protos say, and does it speak the wire of the kubelet?"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

PROTO = Path(__file__).resolve().parents[2] / "proto"
SERVICES = ["registration.v1", "dra.v1", "dra.v1beta1", "health.v1", "health.v1alpha1", "podresources.v1"]


def test_generating_again_changes_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, PROTO / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    if "NOT CHECKED" in ended.stderr:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr


def test_all_contracts_load_together_without_warnings() -> None:
    imports = "".join(f"from dra_proto.{name} import api_pb2, api_pb2_grpc\n" for name in SERVICES)
    subprocess.run([sys.executable, "-W", "error", "-c", imports], check=True)


METHODS = [
    ("registration.v1", "/pluginregistration.Registration/GetInfo"),
    ("registration.v1", "/pluginregistration.Registration/NotifyRegistrationStatus"),
    ("dra.v1", "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"),
    ("dra.v1", "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"),
    ("dra.v1beta1", "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"),
    ("dra.v1beta1", "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"),
    ("health.v1", "/v1.DRAResourceHealth/NodeWatchResources"),
    ("health.v1alpha1", "/v1alpha1.DRAResourceHealth/NodeWatchResources"),
    ("podresources.v1", "/v1.PodResourcesLister/List"),
    ("podresources.v1", "/v1.PodResourcesLister/GetAllocatableResources"),
    ("podresources.v1", "/v1.PodResourcesLister/Get"),
]


@pytest.mark.parametrize(("contract", "path"), METHODS)
def test_method_path_is_the_one_of_the_kubelet(contract: str, path: str) -> None:
    descriptor = importlib.import_module(f"dra_proto.{contract}.api_pb2").DESCRIPTOR
    methods = {
        f"/{service.full_name}/{method.name}"
        for service in descriptor.services_by_name.values()
        for method in service.methods
    }
    assert path in methods


# Bytes worked out by hand from the field numbers: (number << 3 | 2), length, text.
WIRE = [
    ("claim: namespace, then uid, then name", "dra.v1", "Claim", {"namespace": "n", "uid": "u", "name": "c"},
     b"\x0a\x01n\x12\x01u\x1a\x01c"),
    ("device with a share", "dra.v1", "Device",
     {"request_names": ["r"], "pool_name": "p", "device_name": "d", "cdi_device_ids": ["i"], "share_id": "s"},
     b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01i\x2a\x01s"),
    ("an empty share differs from none", "dra.v1", "Device", {"share_id": ""}, b"\x2a\x00"),
    ("plugin info", "registration.v1", "PluginInfo",
     {"type": "t", "name": "n", "endpoint": "e", "supported_versions": ["v", "w"]},
     b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v\x22\x01w"),
    ("registration status", "registration.v1", "RegistrationStatus", {"plugin_registered": True, "error": "e"},
     b"\x08\x01\x12\x01e"),
    ("device health", "health.v1alpha1", "DeviceHealth",
     {"health": 2, "last_updated_time": 1, "health_check_timeout_seconds": 3, "message": "m"},
     b"\x10\x02\x18\x01\x20\x03\x2a\x01m"),
    ("dynamic resource starts at number 2", "podresources.v1", "DynamicResource",
     {"claim_name": "c", "claim_namespace": "n"}, b"\x12\x01c\x1a\x01n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("contract", "message", "fields", "wire"), [case[1:] for case in WIRE], ids=[c[0] for c in WIRE]
)
def test_bytes_on_the_wire(contract: str, message: str, fields: dict[str, object], wire: bytes) -> None:
    kind = getattr(importlib.import_module(f"dra_proto.{contract}.api_pb2"), message)
    assert kind(**fields).SerializeToString(deterministic=True) == wire
    assert kind.FromString(wire) == kind(**fields)


def test_both_versions_of_health_have_the_same_messages() -> None:
    """Library, agent and kit read and write those of v1 for both."""

    def fields(version: str) -> dict[str, object]:
        file = descriptor_pb2.FileDescriptorProto()
        importlib.import_module(f"dra_proto.health.{version}.api_pb2").DESCRIPTOR.CopyToProto(file)
        return {
            message.name: [(field.number, field.name, field.type, field.label) for field in message.field]
            for message in file.message_type
        }

    assert fields("v1") == fields("v1alpha1")


def test_v1beta1_devices_have_no_share() -> None:
    from dra_proto.dra.v1beta1 import api_pb2

    assert "share_id" not in api_pb2.Device.DESCRIPTOR.fields_by_name
