"""Who may write which part of a claim's status, beyond the permission for ``resourceclaims/status``.

Allocation and reservations are the scheduler's: they need the verb of the request on ``resourceclaims/binding``. What
is said of devices is their driver's: it needs ``associated-node:<verb>`` on ``resourceclaims/driver``, named after the
driver, from a plugin on the node that the claim is allocated for, or ``arbitrary-node:<verb>`` from elsewhere (api.md
section 8).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dra_api.resource import AllocatedDeviceStatus, AllocationResult, ResourceClaimStatus

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.authorization import Attributes, User, account_of
from dra_devcluster.apiserver.structure import Fault

from .base import Write

_NODE = "authentication.kubernetes.io/node-name"


def status_refusals(new: ResourceClaimStatus, old: ResourceClaimStatus, write: Write) -> Iterator[Fault]:
    """What the user of the request may not change."""
    verb = "update" if write.verb == "update" else "patch"
    if (new.allocation, new.reserved_for) != (old.allocation, old.reserved_for):
        asked = replace(write.asks(verb, "", "binding"), namespace="")  # in the whole cluster
        if why := _refused(write, asked):
            what = f'changing status.allocation or status.reservedFor requires resource="{asked.full_resource}"'
            yield faults.forbidden("status.allocation", f'{what}, verb="{verb}" permission: {why}')
    if new.allocation is None:
        return
    verbs = [f"arbitrary-node:{verb}"]
    if _is_on(write.user, new.allocation):
        verbs.insert(0, f"associated-node:{verb}")
    for driver in sorted(_changed_drivers(new, old)):
        reasons = [_refused(write, write.asks(each, driver, "driver")) for each in verbs]
        if all(reasons):
            what = 'changing status.devices requires resource="resourceclaims/driver"'
            yield faults.forbidden("status.devices", f'{what}, verb="[{" ".join(verbs)}]" permission: {reasons[0]}')


def _refused(write: Write, asked: Attributes) -> str:
    """Why it is refused; empty if it is allowed."""
    authorization = write.registry.authorization
    if authorization.allows(asked):
        return ""
    return asked.refusal(authorization.judge(asked).reason).message


def _is_on(user: User, allocation: AllocationResult) -> bool:
    """Whether the user is a service account whose token names the one node that the allocation is for."""
    terms = (allocation.node_selector.node_selector_terms if allocation.node_selector else None) or ()
    if len(terms) != 1 or terms[0].match_expressions or len(terms[0].match_fields or ()) != 1:
        return False
    (field,) = terms[0].match_fields or ()
    if (field.key, field.operator) != ("metadata.name", "In") or len(field.values or ()) != 1:
        return False
    return account_of(user.name) is not None and user.extra.get(_NODE) == tuple(field.values or ())


def _changed_drivers(new: ResourceClaimStatus, old: ResourceClaimStatus) -> set[str]:
    before, after = (_by_device(status) for status in (old, new))
    return {key[0] for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _by_device(status: ResourceClaimStatus) -> dict[tuple[str, str, str, str | None], AllocatedDeviceStatus]:
    return {(each.driver, each.pool, each.device, each.share_id): each for each in status.devices or ()}
