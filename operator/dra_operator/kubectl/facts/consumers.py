"""The pods that a claim is reserved for: by their names, or as pods of a PodGroup."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.relations.references import claims_of_pod, is_pod_group, pod_as_consumer, pod_is_done
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference

from dra_operator.kubectl.observed.observed import Observed


def pods_of(seen: Observed, claim: ResourceClaim) -> list[ResourceClaimConsumerReference]:
    """A pod that is named need not exist. A PodGroup stands for those of its pods that use the claim and have not
    ended."""
    users = (user for consumer in claim.status.reserved_for or () for user in _users(seen, claim, consumer))
    return list({(user.name, user.uid): user for user in users}.values())


def _users(
    seen: Observed, claim: ResourceClaim, consumer: ResourceClaimConsumerReference
) -> Iterator[ResourceClaimConsumerReference]:
    if is_pod_group(consumer):
        for pod in seen.pods_by_group.get(f"{claim.metadata.namespace}/{consumer.name}", ()):
            if not pod_is_done(pod) and any(use.name == claim.metadata.name for use in claims_of_pod(pod)):
                yield pod_as_consumer(pod)
    elif consumer.resource == "pods":
        yield consumer
