"""What the cache keeps of an object: users decide how large it is, and pay for that with what is left out."""

from __future__ import annotations

import re
from typing import Final, TypeVar

from dra_api.codec import encode
from dra_api.core import Namespace, Node, Pod
from dra_api.meta import LabelSelector, Object, ObjectMeta
from dra_api.policy import PodDisruptionBudget
from dra_api.resource import ResourceClaim
from dra_api.storage import PersistentVolume, PersistentVolumeClaim
from msgspec.structs import replace

from dra_operator.scheduling.state import LARGEST_OBJECT_BYTES, claim_without_bulk, pod_without_bulk

from .template import ClaimTemplate

T = TypeVar("T", bound=Object)


def without_bulk(obj: T) -> T:
    """The object itself, or what is kept of it if it is large.

    Nodes, namespaces and volumes keep their labels, which selectors look at; who may create them is no tenant.
    """
    match obj:
        case Pod():
            return pod_without_bulk(obj)  # type: ignore[return-value]
        case ResourceClaim():
            return claim_without_bulk(obj)  # type: ignore[return-value]
        case ClaimTemplate():
            return obj.without_bulk()  # type: ignore[return-value]
    if len(encode(obj)) <= LARGEST_OBJECT_BYTES:
        return obj
    match obj:
        case Node() | Namespace() | PersistentVolume():
            return replace(obj, metadata=_with_labels(obj.metadata))
        case PersistentVolumeClaim() if len(encode(obj.spec.selector)) > LARGEST_OBJECT_BYTES:
            return replace(obj, metadata=_for_volumes(obj.metadata), spec=replace(obj.spec, selector=_NO_VOLUME))
        case PersistentVolumeClaim():
            return replace(obj, metadata=_for_volumes(obj.metadata))
        case PodDisruptionBudget() if len(encode(obj.spec.selector)) > LARGEST_OBJECT_BYTES:
            return replace(obj, metadata=_without_labels(obj.metadata), spec=replace(obj.spec, selector=_ALL_PODS))
    return replace(obj, metadata=_without_labels(obj.metadata))


def _with_labels(meta: ObjectMeta) -> ObjectMeta:
    return replace(meta, annotations=None, finalizers=None, owner_references=None)


def _for_volumes(meta: ObjectMeta) -> ObjectMeta:
    """Keep the annotations of Kubernetes: which node was chosen for the volume, and whether it is bound."""
    ours = {name: text for name, text in (meta.annotations or {}).items() if _OF_VOLUMES.match(name)}
    return replace(_without_labels(meta), annotations=ours or None)


def _without_labels(meta: ObjectMeta) -> ObjectMeta:
    """Keep short annotations with our prefix, and the controller."""
    ours = {name: text for name, text in (meta.annotations or {}).items() if name.startswith("dra.kopf.dev/")}
    owner = meta.controller
    return replace(
        _with_labels(meta), labels=None, annotations=ours or None, owner_references=None if owner is None else (owner,)
    )


_OF_VOLUMES: Final = re.compile(r"(pv|volume)(\.beta)?\.kubernetes\.io/")
_NO_VOLUME: Final = LabelSelector(match_labels={"dra.kopf.dev/too-large": "true"})
"""No volume has the label, so a claim with a selector that is too large is not bound."""
_ALL_PODS: Final = LabelSelector()
"""A budget with a selector that is too large protects all pods of its namespace."""
