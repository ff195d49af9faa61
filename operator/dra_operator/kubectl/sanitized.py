"""Removes fields that no decision reads and that may be secret from objects, for snapshots.

These are annotations, parameters of drivers and device data. Environment, arguments, images and Secrets are not read in
the first place. Labels, names and conditions stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from dra_api.core import MIRROR_ANNOTATION, Pod, Volume
from dra_api.kueue import REPLACED_SLICE, WORKLOAD
from dra_api.leases import MIX, SETTINGS
from dra_api.meta import Object, ObjectMeta
from dra_api.resource import (
    EXTENDED_RESOURCE_ANNOTATION,
    NULL,
    POD_CLAIM_NAME_ANNOTATION,
    DeviceClaim,
    DeviceClass,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from dra_api.storage import BOUND_ANNOTATION, BOUND_BY_CONTROLLER, CLASS_ANNOTATION, SELECTED_NODE
from msgspec.structs import asdict, replace

from dra_operator.scheduling import PLACEMENT_STRATEGY_ANNOTATION
from dra_operator.scheduling.state import ANNOTATION, GANG, GANG_MATCH_ATTRIBUTE, GANG_SIZE, GANG_TOPOLOGY, KUEUE_COUNT

T = TypeVar("T", bound=Object)
MOVABLE: Final = "dra.kopf.dev/movable"
"""The annotation by which a pod allows ``defrag`` to move it: ``"true"``."""
READ_ANNOTATIONS: Final = frozenset(
    {
        SETTINGS,
        MIX,
        POD_CLAIM_NAME_ANNOTATION,
        EXTENDED_RESOURCE_ANNOTATION,
        MIRROR_ANNOTATION,
        ANNOTATION,
        MOVABLE,
        PLACEMENT_STRATEGY_ANNOTATION,
        GANG,
        GANG_SIZE,
        GANG_TOPOLOGY,
        GANG_MATCH_ATTRIBUTE,
        KUEUE_COUNT,
        WORKLOAD,
        REPLACED_SLICE,
        BOUND_ANNOTATION,
        BOUND_BY_CONTROLLER,
        CLASS_ANNOTATION,
        SELECTED_NODE,
    }
)
"""Those that decisions depend on; labels stay all."""


def without_secrets(objects: Iterable[Object]) -> list[Object]:
    """The objects as a snapshot may hold them."""
    return [_clean(replace(obj, metadata=_metadata(obj.metadata))) for obj in objects]


def _metadata(meta: ObjectMeta) -> ObjectMeta:
    kept = {key: value for key, value in (meta.annotations or {}).items() if key in READ_ANNOTATIONS}
    return replace(meta, annotations=kept or None)


def _clean(obj: Object) -> Object:
    match obj:
        case Pod():
            volumes = obj.spec.volumes
            kept = tuple(_volume(volume) for volume in volumes) if volumes is not None else None
            return replace(obj, spec=replace(obj.spec, volumes=kept))
        case DeviceClass():
            return replace(obj, spec=replace(obj.spec, config=None))
        case ResourceClaimTemplate():
            inner = obj.spec.spec
            spec = replace(inner, devices=_devices(inner.devices))
            return replace(obj, spec=replace(obj.spec, metadata=_metadata(obj.spec.metadata), spec=spec))
        case ResourceClaim():
            spec = replace(obj.spec, devices=_devices(obj.spec.devices))
            return replace(obj, spec=spec, status=_status(obj.status))
        case _:
            return obj


def _volume(volume: Volume) -> Volume:
    """Which kind of volume it is, without its content."""
    content: dict[str, dict[str, object]] = {
        name: {} for name, value in asdict(volume).items() if isinstance(value, dict)
    }
    return replace(volume, **content)


def _devices(claim: DeviceClaim) -> DeviceClaim:
    return replace(claim, config=None)


def _status(status: ResourceClaimStatus) -> ResourceClaimStatus:
    allocation = status.allocation
    if allocation is not None:
        allocation = replace(allocation, devices=replace(allocation.devices, config=None))
    reported = tuple(replace(device, data=NULL, network_data=None) for device in status.devices or ())
    return replace(status, allocation=allocation, devices=reported or None)
