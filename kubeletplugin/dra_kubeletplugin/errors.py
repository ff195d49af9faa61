"""What can go wrong in a plugin, and where each error goes.

::

    PluginError
    ├── SettingsError          an option or a configuration file cannot be used; raised before anything starts
    ├── StartError             a socket cannot be served
    ├── RegistrationRefused    the kubelet refused the plugin
    ├── ClaimError             one claim cannot be prepared or unprepared; the kubelet shows it and tries again
    │   ├── ClaimNotAllocated  the call came before (or after) the allocation
    │   ├── ClaimReplaced      a claim of that name exists, but with another uid
    │   ├── DeviceInUse        another claim on this node holds the device
    │   ├── CountersInUse      devices of other claims on this node have drawn the counters of the device
    │   ├── DeviceNotPublished  the plugin does not publish the device, or not any more
    │   ├── HostPartInUse      another claim on this node was given the same device node
    │   ├── HostPartElsewhere  another driver on this node has given the same device node to a claim
    │   └── CheckpointCorrupted  the record of the claim cannot be read
    │       └── CheckpointNewer  a newer version of the driver wrote it
    ├── AttributeUnknown       the host does not say what a standard attribute of a device is
    ├── MetadataError          a device metadata file cannot be read
    ├── Recoverable            a background failure that the plugin keeps retrying; for the log
    │   ├── SyncFailed         the slices of a pool could not be written this time
    │   ├── PoolInvalid        the slices wanted for a pool contradict each other; nothing is written until they change
    │   ├── PoolRefused        the API server refuses a slice of the pool; tried again every five minutes
    │   ├── HealthFailed       the driver's ``health`` raised; it is called again
    │   ├── WatchFailed        the ResourceSlices cannot be watched for now
    │   ├── DroppedFields      the API server stored a slice without some of its fields
    │   └── ContestedPool      another client changes the slices: perhaps a second driver of this name
    └── Fatal                  the plugin cannot continue; the process should exit and be restarted
        ├── ServerDied         a gRPC server ended or its socket vanished
        └── DevicesFailed      the iterator of the driver's devices raised

*Recoverable* and *Fatal* go to ``Driver.handle_error``; *Fatal* also ends ``KubeletPlugin.wait``.
``dra_cdi.CdiError`` stands beside the tree: a CDI name, value or file cannot be used.
Spec: plugin-helper.md sections 2.1 and 4.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from dra_api.gates import TABLE
from dra_api.releases import Release
from dra_kube import Forbidden, NotFound, Unauthorized

_RIGHTS = (
    "the driver's ServiceAccount needs a ClusterRole that allows it: list, watch, create, update and delete of "
    "resourceslices, get of nodes and resourceclaims (dra-kubelet-plugin new writes one)"
)

_CONTROLLER_RIGHTS = (
    "the controller's ServiceAccount needs roles that allow it: list, watch, create, update and delete of "
    "resourceslices, list and watch of resourceclaims, patch of resourceclaims/status, and its Lease "
    "(dra-kubelet-plugin new --network-attached writes them)"
)
_SHOWN_HOLDERS: Final = 3


class NamedDevice(Protocol):
    """What a message says of a device that a claim holds."""

    @property
    def device(self) -> str:
        """Its name."""


class PluginError(Exception):
    """Root of all errors of this package."""


def with_remedy(error: Exception, *, of_a_controller: bool = False) -> str:
    """Return an error of the API server in words, with what its owner can do about it."""
    if isinstance(error, Forbidden):
        return f"{error}; {_CONTROLLER_RIGHTS if of_a_controller else _RIGHTS}"
    if isinstance(error, Unauthorized):
        return f"{error}; the API server does not know the kubeconfig's token or certificate, or the pod's account"
    if isinstance(error, NotFound) and error.details.get("kind") == "nodes":
        return f"{error}; give the name that the Node has (--node-name, NODE_NAME)"
    return str(error)


class SettingsError(PluginError):
    """An option or configuration file is missing, malformed or contradictory; the message names the remedy."""


class StartError(PluginError):
    """A socket cannot be served; the message names its path."""


class RegistrationRefused(PluginError):
    """The kubelet refused the plugin; the message has its reason (PH-04)."""


class ClaimError(PluginError):
    """A claim cannot be prepared or unprepared now. Drivers return it, or a subclass, as a claim's result."""


class ClaimNotAllocated(ClaimError):
    """The claim has no allocation, so there is nothing to prepare (PH-08)."""


class ClaimReplaced(ClaimError):
    """The claim was deleted and made again since the kubelet decided to prepare it (PH-08)."""


class DeviceInUse(ClaimError):
    """A device is, or may be, prepared for another claim, whose containers may run. The kubelet calls again."""

    def __init__(self, pool: str, device: str, holder: str, record: Path, *, is_certain: bool = True) -> None:
        verb = "is still" if is_certain else "may still be"
        super().__init__(
            f"device {device} of pool {pool} {verb} prepared for claim {holder}: wait until the pods of that "
            f"claim have ended; if none is left on this node, remove {record}"
        )


class CountersInUse(ClaimError):
    """Devices of other claims have drawn so much of a counter that too little is left. The kubelet calls again.

    ``using`` has the devices that have drawn from it: each with its claim and the record of that.
    """

    def __init__(
        self,
        pool: str,
        device: str,
        counter: str,
        needed: str,
        drawn: str,
        available: str,
        using: Sequence[tuple[NamedDevice, str, Path]],
    ) -> None:
        holders = ", ".join(f"{held.device} of claim {holder}" for held, holder, _ in using[:_SHOWN_HOLDERS])
        more = f" and {len(using) - _SHOWN_HOLDERS} more" if len(using) > _SHOWN_HOLDERS else ""
        records = ", ".join(dict.fromkeys(str(path) for _, _, path in using[:_SHOWN_HOLDERS]))
        super().__init__(
            f"device {device} of pool {pool} needs {needed} of the counter {counter}, of whose {available} the devices "
            f"{holders}{more} have {drawn}: wait until the pods of those claims have ended; if none is left on this "
            f"node, remove {records}"
        )


class HostPartInUse(ClaimError):
    """Another claim was given a part of the host that a device owns, and its containers may run.

    If the other device has ``moved``, that claim has another part of the host now. With ``record`` that of the claim is
    damaged.
    """

    def __init__(self, device: str, part: str, holder: str, *, moved: bool = False, record: Path | None = None) -> None:
        given = f"device {device} is at {part}, which was given to claim {holder}, whose containers may still use it"
        if record:
            super().__init__(
                f"{given}: delete the pods of that claim, or if none is left on this node, remove {record}"
            )
        elif moved:
            super().__init__(f"{given}, although its device is elsewhere now: delete the pods of that claim")
        else:
            super().__init__(f"{given}: delete the pods of that claim, or bring its device back")


class HostPartElsewhere(ClaimError):
    """Another driver has given a part of the host to a claim, whose containers may run. The kubelet calls again.

    Without ``holder`` the file ``path`` that would name the parts is damaged; its driver writes it again when it runs.
    """

    def __init__(self, part: str, driver: str, holder: str | None, path: Path) -> None:
        given = (
            f"{part} was given to claim {holder} by another driver, {driver}, and its containers may still use it"
            if holder
            else f"{part} may have been given to a claim by another driver, {driver}, whose note of it is damaged"
        )
        super().__init__(
            f"{given}: wait until the pods of that claim have ended, and let only one of the two drivers publish it; "
            f"if no pod of it is left on this node, remove {path}"
        )


class DeviceNotPublished(ClaimError):
    """The pool of the device is published without it: it is gone since it was allocated. The kubelet calls again."""

    def __init__(self, pool: str, device: str) -> None:
        super().__init__(
            f"device {device} of pool {pool} is not published on this node: bring the device back, or delete the pods "
            "of the claim, so that another device is allocated"
        )


class CheckpointCorrupted(ClaimError):
    """The file that remembers a prepared claim is damaged; other claims are not concerned."""

    remedy = "delete the pods of the claim, or if none is left on this node, remove the file"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the checkpoint {path} cannot be read: {reason}; {self.remedy}")
        self.path = path


class CheckpointNewer(CheckpointCorrupted):
    """A newer version of the driver wrote the file: it is kept for that, and no other claim gets its devices."""

    remedy = (
        "start that version again, which unprepares the claim; to do without it, delete the pods of the claim, undo by "
        "hand what was prepared, and remove the file"
    )

    def __init__(self, path: Path, formats: str) -> None:
        super().__init__(path, f"a newer version of the driver wrote it ({formats})")


class AttributeUnknown(PluginError):
    """A standard attribute cannot be found out; the message names the file and the remedy."""


class MetadataError(PluginError):
    """A device metadata file cannot be read; the driver may be writing it at this moment."""


class Recoverable(PluginError):
    """A background failure that does not stop the plugin; most are retried."""


class SyncFailed(Recoverable):
    """Writing the slices of a pool failed; ``__cause__`` says how. It is retried."""


class PoolInvalid(Recoverable):
    """The slices wanted for a pool contradict each other (section 4.3). Not retried: publish other slices."""


class PoolRefused(Recoverable):
    """The API server refuses a slice of the pool and will until something changes; the message names device, field and
    remedy. Tried again every five minutes, because an admission policy may refuse it as well."""


class WatchFailed(Recoverable):
    """Listing or watching ResourceSlices failed; ``__cause__`` says how. It is retried."""


class HealthFailed(Recoverable):
    """The driver could not say how its devices are; ``health`` is called again."""


class DroppedFields(Recoverable):
    """The API server stored a slice without fields whose feature it has not enabled, or does not know (RS-06)."""

    def __init__(self, pool: str, slice_index: int, features: Sequence[str]) -> None:
        new = [feature for feature in features if feature in TABLE and TABLE[feature].steps[0].since >= Release.V1_37]
        super().__init__(
            f'pool "{pool}", slice #{slice_index}: some fields were dropped by the apiserver, '
            f"probably because these features are disabled: {', '.join(features)}"
            + (f" (API servers before Kubernetes {Release.V1_37} do not have {', '.join(new)})" if new else "")
        )
        self.pool = pool
        self.slice_index = slice_index
        self.features = tuple(features)


class ContestedPool(Recoverable):
    """Another client changed slices that were as published: a second driver of this name does so.

    ``node`` is that of the pool. A controller publishes pools of no node, and has the empty name.
    """

    def __init__(self, driver: str, pool: str, slices: Sequence[str], node: str = "") -> None:
        second = (
            f"a second driver with the name {driver} runs on node {node}"
            if node
            else f"a second controller of driver {driver} publishes this pool, without the Lease of this one"
        )
        super().__init__(
            f'pool "{pool}": another client changed {", ".join(slices)}, which are restored now; if {second}, each '
            "undoes the devices of the other: stop one of them, or rename it"
        )
        self.driver = driver
        self.pool = pool
        self.slices = tuple(slices)
        self.node = node


class Fatal(PluginError):
    """The plugin can no longer work; its process should be restarted."""


class DevicesFailed(Fatal):
    """The iterator that gives the driver's devices raised, and cannot be asked again; the slices stay as they are."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"the driver's devices failed with {type(error).__name__}: {error}; catch in their iterator what can go "
            "wrong"
        )


class ServerDied(Fatal):
    """A gRPC server stopped serving unexpectedly."""
