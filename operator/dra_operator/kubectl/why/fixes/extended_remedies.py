"""Remedies in what a pod asks of an extended resource that devices serve: fewer of them, in one container."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Pod
from dra_api.values.quantity import Quantity

from dra_operator.allocator import Refusal

from .change import Change
from .fewer import fewer
from .pod_changes import amount_of, containers_of, less_in


def extended_remedies(pod: Pod, refusal: Refusal) -> Iterator[Change]:
    """What may make the devices of the node do for the resource that the refusal names, if it names one."""
    resource = refusal.claim.resource
    for field, container in containers_of(pod) if resource else ():
        asked = amount_of(container, resource)
        for count in fewer(asked.rounded_up(), refusal) if asked is not None else ():
            yield less_in(pod, field, container, resource, Quantity.from_nanos(count * 10**9))
