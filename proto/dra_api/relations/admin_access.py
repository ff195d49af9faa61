"""Admin access: using devices that others hold, for monitoring and repair.

Only claims in a namespace with the label may ask for it, or get it in an allocation. Spec: api.md section 8,
claim-controller.md 11.2.
"""

from __future__ import annotations

from dra_api.core import Namespace
from dra_api.resource import ADMIN_ACCESS_LABEL, DeviceClaim, ResourceClaim, ResourceClaimTemplate

REFUSAL = f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"


def wants_admin_access(devices: DeviceClaim) -> bool:
    """Whether any request asks for admin access; alternatives cannot."""
    return any(request.exactly is not None and request.exactly.admin_access for request in devices.requests or ())


def has_admin_access(claim: ResourceClaim) -> bool:
    """Whether any device is allocated with admin access."""
    allocation = claim.status.allocation
    return allocation is not None and any(result.admin_access for result in allocation.devices.results or ())


def permits_admin_access(namespace: Namespace | None) -> bool:
    """Whether the namespace has the label; its value is case-sensitive."""
    return namespace is not None and (namespace.metadata.labels or {}).get(ADMIN_ACCESS_LABEL) == "true"


def refuse_creation(obj: ResourceClaim | ResourceClaimTemplate, namespace: Namespace | None) -> str | None:
    """Why a new claim or template is forbidden in the namespace, or None."""
    spec = obj.spec if isinstance(obj, ResourceClaim) else obj.spec.spec
    return REFUSAL if wants_admin_access(spec.devices) and not permits_admin_access(namespace) else None


def refuse_status_update(new: ResourceClaim, old: ResourceClaim, namespace: Namespace | None) -> str | None:
    """Why a status must not grant admin access that was not there before, or None."""
    granted = has_admin_access(new) and not has_admin_access(old)
    return REFUSAL if granted and not permits_admin_access(namespace) else None
