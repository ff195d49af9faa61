"""Every decoder of foreign input: its name, what runs it, and the errors that it documents.

Files are those that a user, an administrator or an earlier process wrote. Objects, and the expressions in them, are
decoded, validated, taken into the operator's view and decided on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import signal
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest import mock

import dra_cdi
import msgspec
from dra_api import conversion, validation
from dra_api.codec import DecodeError, convert, encode
from dra_api.conversion import ConversionError, set_defaults
from dra_api.core import Pod
from dra_api.gates import FeatureGates
from dra_api.meta import LabelSelector as LabelSelectorField
from dra_api.meta import Object
from dra_api.resource import (
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.selectors import Selector as LabelSelector
from dra_api.values import Version, parse_quantity
from dra_cdi import CdiError
from dra_cel import CelError, admission_policies, compile, prepare, selector_check
from dra_cel.selector import Program
from dra_devcluster.agent import checkpoint as node_checkpoint
from dra_devcluster.agent.errors import CheckpointCorrupted as KubeletCheckpointCorrupted
from dra_devcluster.agent.port_forward import SpdyError
from dra_devcluster.apiserver import server as snapshots
from dra_devcluster.apiserver.errors import SnapshotError
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.verbs.patch import PatchRefused
from dra_devcluster.apiserver.wire import MalformedProtobuf
from dra_kube import RESOURCE_CLAIMS, ConnectionSettingsError, KubeError, connection, contexts, namespace_of
from dra_kubeletplugin import ClaimError, MetadataError, SettingsError
from dra_kubeletplugin.drivers import read_file
from dra_kubeletplugin.drivers.hostdev.config import read_config
from dra_kubeletplugin.drivers.simulated import SimulatedConfig, resources_of
from dra_kubeletplugin.errors import CheckpointCorrupted
from dra_kubeletplugin.files.checkpoint import ClaimRecords
from dra_kubeletplugin.files.claim_files import decode_metadata
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.app.settings import CommandLine
from dra_operator.cache import Cluster
from dra_operator.commands import cel_command
from dra_operator.sources.kinds import WATCHED
from dra_operator.sources.malformed import MalformedObjects
from dra_simulator import command as simulate_command
from fuzz import peers
from google.protobuf.message import DecodeError as NotAMessage
from objects import decode_list

_UID = "claim-uid"


@cache
def _folder() -> Path:
    """In memory where there is such a place."""
    shared = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared if shared.is_dir() else None)
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _file(data: bytes, name: str) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


class ExitCodeWrong(Exception):
    """A command ended with a code that says nothing of its input."""


def cdi(data: bytes) -> None:
    """A CDI file; what is accepted is written again as it was read."""
    spec = dra_cdi.decode(data)
    assert dra_cdi.decode(dra_cdi.encode(spec)) == spec


def plugin_checkpoint(data: bytes) -> None:
    """The record of a claim, also with the checksum of what was changed."""
    records = ClaimRecords(_folder())
    for content in (data, _with_checksum(data)):
        _file(content, f"{_UID}.json")
        records.read(_UID)


def _with_checksum(data: bytes) -> bytes:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(found, dict) or "record" not in found:
        return data
    record = json.dumps(found["record"])
    return (
        json.dumps(found | {"checksum": zlib.crc32(record.encode()), "record": 0})
        .replace('"record": 0', f'"record": {record}')
        .encode()
    )


def kubelet_checkpoint(data: bytes) -> None:
    """What the node agent remembers; what is accepted can be written."""
    node_checkpoint.encode(node_checkpoint.decode(data))


def snapshot(data: bytes) -> None:
    """What the development cluster remembers."""
    snapshots.load(Registry(FeatureGates.of({}), {}, "always-allow"), _file(data, "snapshot"))


def kubeconfig(data: bytes) -> None:
    """A kubeconfig. It may name programs; here none is started."""
    path = str(_file(data, "kubeconfig"))
    with mock.patch("subprocess.Popen", side_effect=OSError("not here")), mock.patch.dict(os.environ, KUBECONFIG=path):
        connection(path).authorization()
        contexts(path)
        namespace_of(path)


def hostdev(data: bytes) -> None:
    """The file of the driver for host devices."""
    read_config(_file(data, "hostdev.yaml"))


def simulated(data: bytes) -> None:
    """The file of the simulated driver."""
    config = read_file(_file(data, "simulated.yaml"), SimulatedConfig)
    resources_of(msgspec.structs.replace(config, node_name=config.node_name or "node-1"))  # which a flag says


def settings(data: bytes) -> None:
    """The operator's settings file. A wrong one ends the process with code 2."""
    with _silence():
        try:
            CommandLine().settings(["--config", str(_file(data, "settings.yaml"))])
        except SystemExit as end:
            if end.code != 2:
                raise ExitCodeWrong(end.code) from end


def metadata(data: bytes) -> None:
    """What a container reads of its devices."""
    decode_metadata(data)


def simulate(data: bytes) -> None:
    """Objects in a file: read, taken into the view, and every pod decided on."""
    _command(simulate_command, ["-f", str(_file(data, "objects.yaml")), "--sequential"])


def simulate_cases(data: bytes) -> None:
    """Allocation problems in a file."""
    _command(simulate_command, [str(_file(data, "cases.json"))])


def cel_cases(data: bytes) -> None:
    """Selectors and devices in a file."""
    _command(cel_command, [str(_file(data, "cases.jsonl")), "--repeat", "0"])


def _command(command: object, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)  # type: ignore[attr-defined]  # a module
    with _silence():
        code = command.run(parser.parse_args(words))  # type: ignore[attr-defined]
    if code not in (0, 1, 2):
        raise ExitCodeWrong(code)


def _silence() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
    stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
    return stack


NOW: Final = "2026-01-01T00:00:00Z"
_KINDS: Final = {resource.kind: (resource, kind) for resource, kind in WATCHED.items()}
_VERSIONS: Final = ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1")
_CHECKS: Final[dict[type[Object], Callable[..., Any]]] = {
    ResourceClaim: lambda claim: (
        validation.validate_resource_claim(claim, gates=FeatureGates.of({}), check_selector=selector_check()),
        validation.validate_resource_claim_status(claim, claim),
    ),
    ResourceClaimTemplate: lambda template: validation.validate_resource_claim_template(
        template, gates=FeatureGates.of({}), check_selector=selector_check()
    ),
    DeviceClass: lambda it: validation.validate_device_class(it, check_selector=selector_check()),
    ResourceSlice: validation.validate_resource_slice,
    DeviceTaintRule: validation.validate_device_taint_rule,
    ResourcePoolStatusRequest: validation.validate_resource_pool_status_request,
    Pod: lambda pod: (validation.validate_pod_claims(pod), validation.validate_pod_claim_status(pod)),
}


def take_in(data: bytes) -> None:
    """A list of objects as an operator reads them: the good ones enter its view, the others its quarantine."""
    document = _json(data)
    inventory = Inventory(Features(), language=CelSelectors(Features()))
    cluster = Cluster(inventory)
    quarantine = MalformedObjects(cluster.allocated_devices.stored)
    for item in document if isinstance(document, list) else [document]:
        said = item.get("kind") if isinstance(item, dict) else None
        resource, kind = _KINDS.get(str(said), (RESOURCE_CLAIMS, ResourceClaim))
        try:
            cluster.apply(convert(kind, item))
        except (DecodeError, UnicodeEncodeError) as error:
            quarantine.take(resource, item, error)


def validate(data: bytes) -> None:
    """An object as the API server reads it: defaults, every version, validation."""
    document = _json(data)
    if not isinstance(document, dict) or str(document.get("kind")) not in _KINDS:
        return
    set_defaults(document, now=NOW)
    for version in _VERSIONS:
        with suppress(conversion.ConversionError):  # some kinds have fewer versions
            conversion.convert(document, version)
    _, kind = _KINDS[document["kind"]]
    obj = convert(kind, document)
    encode(obj)
    if kind in _CHECKS:
        _CHECKS[kind](obj)


def read_list(data: bytes) -> None:
    """The answer to a LIST of the newest version, and of an earlier one."""
    decode_list(ResourceSlice, data)
    earlier = {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1beta1"}
    decode_list(ResourceSlice, data, lambda item: conversion.convert({**item, **earlier}, "resource.k8s.io/v1"))


def quantity(data: bytes) -> None:
    """A quantity, what is made of it, and that its own text means the same."""
    found = parse_quantity(data.decode())
    assert parse_quantity(str(found)) == found, str(found)
    assert found + found - found == found
    found.rounded_up()


def version(data: bytes) -> None:
    Version(data.decode())


_DEVICE: Final = prepare(
    "gpu.example.com",
    convert(
        Device,
        {
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "A100"},
                "index": {"int": 3},
                "ecc": {"bool": True},
                "driverVersion": {"version": "1.2.3"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            "capacity": {"memory": {"value": "40Gi"}},
        },
    ),
)
_OBJECT: Final = {"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"nodeName": "n", "list": [1, 2.5, None]}}


def selector(data: bytes) -> None:
    """A device selector. The fast form and the exact machine agree."""
    made = compile(data.decode())
    value, _ = made.explain(_DEVICE)
    matched = made.matches(_DEVICE)
    assert matched is value, (matched, value)


def policy(data: bytes) -> None:
    """An expression of an admission policy."""
    program = Program(data.decode(), admission_policies(result=None))
    assert program.max_cost >= 0
    bindings = {"object": _OBJECT, "oldObject": None, "params": _OBJECT, "namespaceObject": None, "variables": {}}
    program.evaluate({**bindings, "request": {"operation": "CREATE", "userInfo": {"username": "u"}}})


def labels(data: bytes) -> None:
    """A label selector of an object."""
    LabelSelector.of(convert(LabelSelectorField, _json(data)))


def _json(data: bytes) -> Any:
    """What the decoders get, which see parsed JSON; None for what is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


SECONDS = 10.0
"""Processor time for one input: what is linear takes milliseconds, and a busy machine does not count."""
MEMORY = 1 << 30
"""Address space that one input may add."""


class Hangs(BaseException):
    """The time for one input is over. No ``except Exception`` of the code under test stops it."""


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` decodes an input; ``refusals`` are the errors that it may raise. ``rounds`` is its share of the suite."""

    run: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    about: str
    rounds: int = 100

    def finding(self, data: bytes) -> str | None:
        """What is wrong with the treatment of an input; None if it is accepted or refused as documented."""
        try:
            with _limits():
                self.run(data)
        except self.refusals:
            return None
        except Hangs:
            return f"takes more than {SECONDS:.0f} s of processor time"
        except MemoryError:
            return f"takes more than {MEMORY >> 20} MB"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return "".join(traceback.format_exception(error, limit=-6))
        return None


@contextmanager
def _limits() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (_used() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _stop(_: int, __: FrameType | None) -> None:
    raise Hangs


def _used() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


TARGETS: Final = {
    "api-answer": Target(peers.api_answer, (KubeError,), "answers of an API server to the client of dra_kube", 10),
    "api-request": Target(peers.api_request, (), "requests to the development cluster's API server", 60),
    "cdi": Target(cdi, (CdiError,), "CDI files"),
    "cel-cases": Target(cel_cases, (), "files of cases of dra-operator cel", 50),
    "cel-policy": Target(policy, (CelError, UnicodeDecodeError), "expressions of admission policies"),
    "cel-selector": Target(selector, (CelError, UnicodeDecodeError), "device selectors"),
    "hostdev": Target(hostdev, (SettingsError,), "the configuration file of hostdev", 60),
    "kubeconfig": Target(kubeconfig, (ConnectionSettingsError,), "kubeconfig files", 25),
    "kubelet-call": Target(peers.kubelet_call, (NotAMessage, ClaimError, KubeError), "gRPC calls of the kubelet", 25),
    "kubelet-checkpoint": Target(kubelet_checkpoint, (KubeletCheckpointCorrupted,), "the node agent's checkpoint"),
    "labels": Target(labels, (DecodeError, ValueError), "label selectors in objects"),
    "list": Target(read_list, (DecodeError,), "lists of objects"),
    "metadata": Target(metadata, (MetadataError,), "files that tell a container of its devices"),
    "object": Target(take_in, (), "objects that the operator watches"),
    "patch": Target(peers.patches, (PatchRefused, ValueError), "patches"),
    "plugin-checkpoint": Target(plugin_checkpoint, (CheckpointCorrupted,), "the plugin's record of a claim"),
    "port-forward": Target(peers.port_forward, (SpdyError,), "frames of kubectl port-forward"),
    "prepare": Target(peers.prepare, (ValueError, ClaimError), "allocated claims, as a plugin reads them", 25),
    "probe-request": Target(peers.probe_request, (), "requests to the port for probes and metrics", 8),
    "protobuf": Target(peers.protobuf, (MalformedProtobuf,), "request bodies in protobuf"),
    "quantity": Target(quantity, (ValueError,), "quantities"),
    "settings": Target(settings, (), "the operator's settings file", 15),
    "simulate": Target(simulate, (), "files of objects of dra-operator simulate, and the decision on them", 15),
    "simulate-cases": Target(simulate_cases, (), "files of cases of dra-operator simulate", 25),
    "simulated": Target(simulated, (SettingsError,), "the configuration file of the simulated driver", 40),
    "snapshot": Target(snapshot, (SnapshotError,), "snapshots of the development cluster", 4),
    "validation": Target(validate, (DecodeError, ConversionError, ValueError), "objects, as validation sees them"),
    "version": Target(version, (ValueError,), "semantic versions"),
}
