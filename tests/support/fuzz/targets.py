"""Every decoder of foreign input: its name, what runs it, and the errors that it documents."""

from __future__ import annotations

from typing import Final

from dra_api.codec import DecodeError
from dra_api.conversion import ConversionError
from dra_cdi import CdiError
from dra_cel import CelError
from dra_devcluster.agent.errors import CheckpointCorrupted as KubeletCheckpointCorrupted
from dra_devcluster.agent.network.port_forward import SpdyError
from dra_devcluster.apiserver.errors import SnapshotError
from dra_devcluster.apiserver.patching import PatchRefused
from dra_devcluster.apiserver.wire.protobuf import MalformedProtobuf
from dra_kube import ConnectionSettingsError, KubeError
from dra_kubeletplugin import ClaimError, MetadataError, SettingsError
from dra_kubeletplugin.errors import CheckpointCorrupted
from google.protobuf.message import DecodeError as NotAMessage

from . import files, objects, peers
from .target import Target

TARGETS: Final = {
    "api-answer": Target(peers.api_answer, (KubeError,), "answers of an API server to the client of dra_kube", 10),
    "api-request": Target(peers.api_request, (), "requests to the development cluster's API server", 60),
    "cdi": Target(files.cdi, (CdiError,), "CDI files"),
    "cel-cases": Target(files.cel_cases, (), "files of cases of dra-operator cel", 50),
    "cel-policy": Target(objects.policy, (CelError, UnicodeDecodeError), "expressions of admission policies"),
    "cel-selector": Target(objects.selector, (CelError, UnicodeDecodeError), "device selectors"),
    "hostdev": Target(files.hostdev, (SettingsError,), "the configuration file of hostdev", 60),
    "kubeconfig": Target(files.kubeconfig, (ConnectionSettingsError,), "kubeconfig files", 25),
    "kubelet-call": Target(peers.kubelet_call, (NotAMessage, ClaimError, KubeError), "gRPC calls of the kubelet", 25),
    "kubelet-checkpoint": Target(
        files.kubelet_checkpoint, (KubeletCheckpointCorrupted,), "the node agent's checkpoint"
    ),
    "labels": Target(objects.labels, (DecodeError, ValueError), "label selectors in objects"),
    "list": Target(objects.read_list, (DecodeError,), "lists of objects"),
    "metadata": Target(files.metadata, (MetadataError,), "files that tell a container of its devices"),
    "object": Target(objects.take_in, (), "objects that the operator watches"),
    "patch": Target(peers.patches, (PatchRefused, ValueError), "patches"),
    "plugin-checkpoint": Target(files.plugin_checkpoint, (CheckpointCorrupted,), "the plugin's record of a claim"),
    "port-forward": Target(peers.port_forward, (SpdyError,), "frames of kubectl port-forward"),
    "prepare": Target(peers.prepare, (ValueError, ClaimError), "allocated claims, as a plugin reads them", 25),
    "probe-request": Target(peers.probe_request, (), "requests to the port for probes and metrics", 8),
    "protobuf": Target(peers.protobuf, (MalformedProtobuf,), "request bodies in protobuf"),
    "quantity": Target(objects.quantity, (ValueError,), "quantities"),
    "settings": Target(files.settings, (), "the operator's settings file", 15),
    "simulate": Target(files.simulate, (), "files of objects of dra-operator simulate, and the decision on them", 15),
    "simulate-cases": Target(files.simulate_cases, (), "files of cases of dra-operator simulate", 25),
    "simulated": Target(files.simulated, (SettingsError,), "the configuration file of the simulated driver", 40),
    "snapshot": Target(files.snapshot, (SnapshotError,), "snapshots of the development cluster", 4),
    "validation": Target(
        objects.validate, (DecodeError, ConversionError, ValueError), "objects, as validation sees them"
    ),
    "version": Target(objects.version, (ValueError,), "semantic versions"),
}
