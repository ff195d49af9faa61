"""What the cache keeps of an object: users decide how large it is, and pay for that with what is left out."""

from __future__ import annotations

from typing import TypeVar

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim

from dra_operator.scheduling.state import claim_without_bulk, pod_without_bulk

from .template import ClaimTemplate

T = TypeVar("T", bound=Object)


def without_bulk(obj: T) -> T:
    """The object itself, unless it is a pod, a claim or a template that is too large."""
    match obj:
        case Pod():
            return pod_without_bulk(obj)  # type: ignore[return-value]
        case ResourceClaim():
            return claim_without_bulk(obj)  # type: ignore[return-value]
        case ClaimTemplate():
            return obj.without_bulk()  # type: ignore[return-value]
    return obj
