"""The cluster as one read found it: every command starts from this value, whether live or from a snapshot.

What the viewer may not see is part of it, since a table without it looks complete. A snapshot has neither what no
decision reads nor what may be secret: annotations, parameters of drivers, device data; environment, arguments, images
and Secrets are not read in the first place. Labels, names and conditions stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

from dra_api.core import MIRROR_ANNOTATION, Pod, Volume
from dra_api.leases import MIX, SETTINGS
from dra_api.meta import Object, ObjectMeta
from dra_api.references import group_name
from dra_api.releases.release import NEWEST, Release
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
from dra_api.selectors import Selector
from dra_api.storage import BOUND_ANNOTATION, BOUND_BY_CONTROLLER, CLASS_ANNOTATION, SELECTED_NODE
from msgspec.structs import asdict, replace

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.scheduling import PLACEMENT_STRATEGY_ANNOTATION
from dra_operator.scheduling.state import (
    ANNOTATION,
    GANG,
    GANG_MATCH_ATTRIBUTE,
    GANG_SIZE,
    GANG_TOPOLOGY,
    KUEUE_COUNT,
)

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, repr=False)
class Observed:
    """``objects`` of all kinds that were read; ``namespace`` is the one that people mean if they name none.

    Its repr has none of them: up to Python 3.12, ``asyncio.run`` makes the repr of what it returns, when it gives the
    handler of SIGINT back. That took a second in a large cluster.
    """

    objects: Sequence[Object]
    taken: datetime
    release: Release = NEWEST
    """That of the API server."""
    namespace: str = "default"
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Kinds that could not be read, or only in one namespace, and why; by plural name."""
    malformed: Mapping[str, str] = field(default_factory=dict)
    """Objects that could not be read, as ``KIND namespace/name``, and what is wrong with them."""
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Defaults of feature gates that differ beside this API server from those of its release."""
    is_whole: bool = False
    """All kinds were asked for: of a kind that is not ``unseen``, all objects are here."""

    @cached_property
    def _by_kind(self) -> dict[type[Object], dict[str, Any]]:
        found: dict[type[Object], dict[str, Any]] = {}
        for obj in self.objects:
            found.setdefault(type(obj), {})[obj.key] = obj
        return found

    @cached_property
    def pods_by_group(self) -> Mapping[str, Sequence[Pod]]:
        """The pods of each PodGroup, by ``namespace/name`` of the group."""
        found: dict[str, list[Pod]] = {}
        for pod in self.every(Pod):
            if (name := group_name(pod)) is not None:
                found.setdefault(f"{pod.metadata.namespace}/{name}", []).append(pod)
        return found

    def every(self, kind: type[T]) -> Sequence[T]:
        """All objects of a kind."""
        return tuple(self._by_kind.get(kind, {}).values())

    def one(self, kind: type[T], key: str) -> T | None:
        """By ``namespace/name``, or by name for kinds without namespaces."""
        found: T | None = self._by_kind.get(kind, {}).get(key)
        return found


Matches = Callable[[Mapping[str, str] | None], bool]


def selecting(text: str | None) -> Matches:
    """Whether labels meet all requirements. Raises Problem."""
    try:
        selector = Selector.parse(text or "")
    except ValueError as error:
        raise Problem(f"--selector: {error}", ExitCode.USAGE) from error
    return lambda labels: selector.matches(labels or {})


SHOWN: Final = ("nodes", "pods", "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io")


def notes_on(seen: Observed, kinds: Iterable[str] = SHOWN) -> list[str]:
    """A note for each kind of which something is missing, and for each malformed object."""
    notes = [f"incomplete: {kind}: {seen.unseen[kind]}" for kind in kinds if kind in seen.unseen]
    return notes + [f"left out, malformed: {what}: {why}" for what, why in seen.malformed.items()]


def require(seen: Observed, *kinds: str) -> None:
    """Without these kinds an empty table would be wrong. Raises Problem."""
    for kind in kinds:
        why = seen.unseen.get(kind, "")
        if why and not why.startswith("read only in"):
            role = "the ClusterRole dra-viewer in manifests/operator/viewer.yaml allows it: have it bound to you"
            raise Problem(f"{why}; {role}" if "forbidden" in why else why)


def joined(words: Iterable[str]) -> str:
    """A cell with several values, or kubectl's word for none."""
    return ",".join(words) or "<none>"


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
