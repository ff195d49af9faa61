"""Whether namespaces in files permit admin access to the claims that ask for it: the API server goes by their label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_api.relations.admin_access import permits_admin_access, wants_admin_access
from dra_api.resource import ADMIN_ACCESS_LABEL, ResourceClaim

from dra_operator.cache import Cluster

from .held_back import HeldBack, Hindrance


def admin_refusal(claims: Iterable[ResourceClaim], cluster: Cluster) -> HeldBack | None:
    """Why a claim gets no admin access; None if it does, or if its namespace is not in the files."""
    for claim in filter(_waits_for_admin_access, claims):
        name = claim.metadata.namespace
        namespace = cluster.namespaces.get(name)
        if namespace is not None and not permits_admin_access(namespace):
            label = f"admin access to devices requires the label {ADMIN_ACCESS_LABEL}: true on namespace {name}"
            return HeldBack(Hindrance.ADMIN_ACCESS, name, f"claim {claim.key}: {label}")
    return None


def taken_as_permitted(claims: Iterable[ResourceClaim], cluster: Cluster) -> Iterator[str]:
    """A note for each namespace that is not in the files, although its label decides about a claim."""
    for name in sorted({claim.metadata.namespace for claim in filter(_waits_for_admin_access, claims)}):
        if cluster.namespaces.get(name) is None:
            label = f"(label {ADMIN_ACCESS_LABEL}: true)"
            yield f"Namespace {name} is not in the files: admin access is taken as permitted there {label}"


def _waits_for_admin_access(claim: ResourceClaim) -> bool:
    """What was granted stays, whatever becomes of the label."""
    return claim.status.allocation is None and wants_admin_access(claim.spec.devices)
