"""The node side of a DRA driver, for driver authors.

A driver is one class; ``run`` makes a command of it (docs/driver-author.md is the tutorial)::

    class Hello(Driver):
        async def prepare(self, claim):
            return [PreparedDevice.of(result) for result in results_for("hello.example.com", claim)]

    run(Hello(), "hello.example.com", [device("hello-0")])

``serve`` is for a main program of your own, and ``KubeletPlugin`` for a plugin inside of another one.
"""

from dra_cdi import CdiDevice, CdiError, CdiSpec, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice

from .cdi import CDI_DIR, CdiFolder
from .command import run
from .device_metadata import DeviceMetadata, decode_metadata, read_metadata
from .device_status import DeviceStatus
from .driver import ClaimRef, DeviceConfig, DeviceHealth, Driver, Prepared, PreparedDevice, configs_for, results_for
from .errors import (
    AttributeUnknown,
    CheckpointCorrupted,
    ClaimError,
    ClaimNotAllocated,
    ClaimReplaced,
    DeviceInUse,
    DeviceNotPublished,
    DroppedFields,
    Fatal,
    HealthFailed,
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
from .interceptor import Interceptor, request_id
from .plugin import KubeletPlugin
from .process import serve
from .registration import RegistrationStatus
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
)
from .standard_attributes import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, numa_node, pci_attributes, pci_bus_id, pcie_root

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
    "ClaimError",
    "ClaimNotAllocated",
    "ClaimRef",
    "ClaimReplaced",
    "ContainerEdits",
    "DeviceConfig",
    "DeviceHealth",
    "DeviceInUse",
    "DeviceMetadata",
    "DeviceNode",
    "DeviceNotPublished",
    "DeviceStatus",
    "Driver",
    "DroppedFields",
    "Fatal",
    "HealthFailed",
    "Hook",
    "IntelRdt",
    "Interceptor",
    "KubeletPlugin",
    "MetadataError",
    "Mount",
    "NetDevice",
    "Owner",
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
    "counter_set",
    "decode_metadata",
    "device",
    "numa_node",
    "pci_attributes",
    "pci_bus_id",
    "pcie_root",
    "read_metadata",
    "request_id",
    "results_for",
    "run",
    "serve",
]
