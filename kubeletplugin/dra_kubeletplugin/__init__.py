"""The node side of a DRA driver, for driver authors.

A driver is one class; ``run`` makes a command of it (docs/driver-author.md is the tutorial)::

    class Hello(Driver):
        async def prepare(self, claim):
            return [PreparedDevice.of(result) for result in results_for("hello.example.com", claim)]

    run(Hello(), "hello.example.com", [device("hello-0")])

``serve`` is for a main program of your own, and ``KubeletPlugin`` for a plugin inside of another one.

Its names are loaded when they are first used, so that a command can show its help without gRPC.
"""

from typing import TYPE_CHECKING

from dra_api.lazy_face import lazy
from dra_cdi import CdiDevice, CdiError, CdiSpec, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice

if TYPE_CHECKING:
    from .attributes import (
        NUMA_NODE,
        PCI_BUS_ID,
        PCIE_ROOT,
        near_numa_nodes,
        numa_node,
        numa_node_of_cpu,
        pci_attributes,
        pci_bus_id,
        pcie_root,
    )
    from .claims.device_status import DeviceStatus, report_devices
    from .commands.command import run, run_controller
    from .controller import Controller, control
    from .driver import ClaimRef, DeviceHealth, Driver, Prepared, PreparedDevice, results_for
    from .errors import (
        AttributeUnknown,
        CheckpointCorrupted,
        CheckpointNewer,
        ClaimError,
        ClaimNotAllocated,
        ClaimReplaced,
        ContestedPool,
        CountersInUse,
        DeviceInUse,
        DeviceNotPublished,
        DevicesFailed,
        DroppedFields,
        Fatal,
        HealthFailed,
        HostPartElsewhere,
        HostPartInUse,
        MetadataError,
        PluginError,
        PoolInvalid,
        PoolRefused,
        Recoverable,
        RegistrationRefused,
        ServerDied,
        SettingsError,
        StartError,
        SyncFailed,
        WatchFailed,
    )
    from .files.claim_files import CDI_DIR, CdiFolder, DeviceMetadata, decode_metadata, metadata_faults, read_metadata
    from .kubelet import Interceptor, RegistrationStatus, request_id
    from .parameters import DeviceConfig, configs_for, decode_parameters
    from .plugin import KubeletPlugin
    from .process import serve
    from .settings import PluginSettings
    from .slices import (
        Owner,
        Pool,
        Resources,
        Slice,
        SlicePublisher,
        Statistics,
        attribute,
        check_resources,
        counter_set,
        device,
        marked_for,
    )
    from .webhook import ParametersWebhook, run_webhook, serve_webhook
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "CDI_DIR",
    "NUMA_NODE",
    "PCIE_ROOT",
    "PCI_BUS_ID",
    "AttributeUnknown",
    "CdiDevice",
    "CdiError",
    "CdiFolder",
    "CdiSpec",
    "CheckpointCorrupted",
    "CheckpointNewer",
    "ClaimError",
    "ClaimNotAllocated",
    "ClaimRef",
    "ClaimReplaced",
    "ContainerEdits",
    "ContestedPool",
    "Controller",
    "CountersInUse",
    "DeviceConfig",
    "DeviceHealth",
    "DeviceInUse",
    "DeviceMetadata",
    "DeviceNode",
    "DeviceNotPublished",
    "DeviceStatus",
    "DevicesFailed",
    "Driver",
    "DroppedFields",
    "Fatal",
    "HealthFailed",
    "Hook",
    "HostPartElsewhere",
    "HostPartInUse",
    "IntelRdt",
    "Interceptor",
    "KubeletPlugin",
    "MetadataError",
    "Mount",
    "NetDevice",
    "Owner",
    "ParametersWebhook",
    "PluginError",
    "PluginSettings",
    "Pool",
    "PoolInvalid",
    "PoolRefused",
    "Prepared",
    "PreparedDevice",
    "Recoverable",
    "RegistrationRefused",
    "RegistrationStatus",
    "Resources",
    "ServerDied",
    "SettingsError",
    "Slice",
    "SlicePublisher",
    "StartError",
    "Statistics",
    "SyncFailed",
    "WatchFailed",
    "attribute",
    "check_resources",
    "configs_for",
    "control",
    "counter_set",
    "decode_metadata",
    "decode_parameters",
    "device",
    "marked_for",
    "metadata_faults",
    "near_numa_nodes",
    "numa_node",
    "numa_node_of_cpu",
    "pci_attributes",
    "pci_bus_id",
    "pcie_root",
    "read_metadata",
    "report_devices",
    "request_id",
    "results_for",
    "run",
    "run_controller",
    "run_webhook",
    "serve",
    "serve_webhook",
]
