"""CDI files: how a prepared device gets into a container.

The Container Device Interface names devices ``vendor/class=name``. A file in the CDI folder says what the
container runtime changes for each of them: environment, device nodes, mounts. Files are written under a
hidden name and renamed, so that a runtime never reads half of one. Their names contain the uid of the
claim: unpreparing finds them by it, even after a restart that lost everything else (TD-02, TD-03).
No library for this exists for Python; the format: https://github.com/cncf-tags/container-device-interface.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from pathlib import Path

import msgspec

from .errors import CdiError

CDI_DIR = Path("/var/run/cdi")

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_FILE_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class DeviceNode(_Part, frozen=True):
    """A device node in the container; ``host_path`` where it differs on the host, ``permissions`` such as ``rw``."""

    path: str
    host_path: str = ""
    permissions: str = ""


class Mount(_Part, frozen=True):
    """A file or folder of the host in the container; ``options`` such as ``ro``, ``bind``."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class ContainerEdits(_Part, frozen=True):
    """What is changed in a container; ``env`` holds ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()


class CdiDevice(_Part, frozen=True):
    """One device of a file."""

    name: str
    container_edits: ContainerEdits


class CdiSpec(_Part, frozen=True, omit_defaults=False):
    """One file: devices of one ``kind``, which is ``vendor/class``. Raises CdiError for unusable names."""

    kind: str
    devices: tuple[CdiDevice, ...]
    cdi_version: str = ""

    def __post_init__(self) -> None:
        vendor, _, class_ = self.kind.partition("/")
        if not (_VENDOR.fullmatch(vendor) and _CLASS.fullmatch(class_)):
            raise CdiError(f"{self.kind!r} is not a CDI kind: expected vendor/class, such as example.com/gpu")
        for device in self.devices:
            if not _DEVICE.fullmatch(device.name):
                raise CdiError(f"{device.name!r} is not a CDI device name: use letters, digits, '_', '.', ':' and '-'")
            for variable in device.container_edits.env:
                if not variable.partition("=")[0] or "=" not in variable or "\0" in variable:
                    raise CdiError(f"{variable!r} is not an environment variable: expected NAME=value")
        if not self.cdi_version:
            nodes = (node for device in self.devices for node in device.container_edits.device_nodes)
            msgspec.structs.force_setattr(self, "cdi_version", "0.5.0" if any(n.host_path for n in nodes) else "0.3.0")


class CdiFolder:
    """The CDI files of one driver, named ``<driver>-<claim uid>-<part>.json``, of kind ``<driver>/<class_name>``.

    Any object with the same three methods can take its place, for instance to write on another machine (TD-04). All
    methods raise CdiError, which names the file.
    """

    def __init__(self, folder: Path, driver: str, class_name: str = "claim") -> None:
        self.folder = folder
        self._driver = driver
        self._kind = f"{driver}/{class_name}"

    def create(self) -> None:
        """Make the folder if it is missing."""
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise CdiError(f"cannot create the CDI folder {self.folder}: {error}") from error

    def write(self, claim_uid: str, part: str, edits: ContainerEdits) -> str:
        """Write what a part of a claim, usually a request or a device, changes in containers; returns its CDI id.

        Writing the same part again replaces it.
        """
        path = self.folder / f"{self._prefix(claim_uid)}{_checked(part)}.json"
        device = CdiDevice(name=f"claim-{claim_uid}-{part}", container_edits=edits)
        content = msgspec.json.encode(CdiSpec(kind=self._kind, devices=(device,)))
        hidden = None
        try:
            descriptor, hidden = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.folder)
            with open(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o644)
            Path(hidden).rename(path)
        except OSError as error:
            if hidden:
                Path(hidden).unlink(missing_ok=True)
            raise CdiError(f"cannot write the CDI file {path}: {error}") from error
        return f"{self._kind}={device.name}"

    def remove(self, claim_uid: str) -> None:
        """Remove all files of a claim; none is fine."""
        for path in self.folder.glob(f"{glob.escape(self._prefix(claim_uid))}*.json"):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise CdiError(f"cannot remove the CDI file {path}: {error}") from error

    def _prefix(self, claim_uid: str) -> str:
        return f"{self._driver}-{_checked(claim_uid)}-"


def _checked(part: str) -> str:
    """The text, if it can be part of a file name. Raises CdiError."""
    if not _FILE_PART.fullmatch(part):
        raise CdiError(f"{part!r} cannot be part of a CDI file name: use letters, digits, '_', '.' and '-'")
    return part
