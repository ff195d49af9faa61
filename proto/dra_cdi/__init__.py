"""The Container Device Interface: files that say what a container runtime changes for a device.

A driver writes a file, a container runtime reads it. Both go by the rules here: what a file may say, which version of
the interface it needs, and which files a runtime refuses. The rules are those of releases 0.3.0 to 1.1.0 of the
interface's own Go library, which containerd and CRI-O use; plugin-helper.md section 10 lists them,
and where this package is stricter.

``spec`` has all of it: what changes in a container, kinds, device names and ids such as ``vendor.com/gpu=gpu0``; a
file, its text and the version that it needs; all files, and which devices an id means.

A value that breaks a rule cannot be made: its constructor raises CdiError, for a driver that writes and a runtime that
reads alike. No library for this exists for Python; the format: https://github.com/cncf-tags/container-device-interface.
"""

from dra_cdi.spec import CdiDirectory, CdiError, CdiIndex, check_device_name, check_kind

from .spec import (
    VERSIONS,
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    decode,
    encode,
)

__all__ = [
    "VERSIONS",
    "CdiDevice",
    "CdiDirectory",
    "CdiError",
    "CdiIndex",
    "CdiSpec",
    "ContainerEdits",
    "DeviceNode",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "check_device_name",
    "check_kind",
    "decode",
    "encode",
]
