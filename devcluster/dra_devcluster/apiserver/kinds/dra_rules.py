"""The kinds of ``resource.k8s.io``, PodGroup and Workload, and who may write which part of a claim's status.

``dra_api`` has their defaults, conversion, validation and write rules. Allocation and reservations are the
scheduler's: they need the verb of the request on ``resourceclaims/binding``. The status of devices is their
driver's: it needs ``associated-node:<verb>`` on ``resourceclaims/driver``, named after the driver, from a plugin on
the node that the claim is allocated for, or ``arbitrary-node:<verb>`` from elsewhere (api.md section 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dra_api import conversion, strategy, validation
from dra_api.core import Namespace
from dra_api.meta import Object
from dra_api.releases import Release
from dra_api.resource import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.scheduling import GangWorkload, PodGroup
from dra_api.selectors import refuse_admin_access, refuse_admin_access_in_status
from dra_api.validation import FieldError
from dra_api.validation import formats as faults
from dra_api.values import now

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds.base import Kind, Write, decoded
from dra_devcluster.apiserver.kinds.core import check_declared_features
from dra_devcluster.apiserver.kinds.pod import admit_priority
from dra_devcluster.apiserver.rbac import Attributes, User, account_of

Validate = Callable[..., list[FieldError]]


class Rules(NamedTuple):
    """What sets the kinds apart; ``options`` are what a validator needs beside the object."""

    struct: type[Object]
    validate: Validate
    validate_status: Validate | None = None
    options: tuple[str, ...] = ()
    has_generation: bool = False
    selectable: tuple[str, ...] = ()
    finalizer: str = ""


PROTECTION: Final = "scheduling.k8s.io/podgroup-protection"
"""The finalizer of a PodGroup while pods of it have not ended; ``controllers`` removes it."""
PROTECTION_SINCE: Final = Release.V1_37
_RULES = {
    "deviceclasses": Rules(
        DeviceClass, validation.validate_device_class, options=("check_selector",), has_generation=True
    ),
    "resourceclaims": Rules(
        ResourceClaim,
        validation.validate_resource_claim,
        validation.validate_resource_claim_status,
        options=("gates", "check_selector", "check_derived"),
    ),
    "resourceclaimtemplates": Rules(
        ResourceClaimTemplate,
        validation.validate_resource_claim_template,
        options=("gates", "check_selector", "check_derived"),
    ),
    "resourceslices": Rules(
        ResourceSlice,
        validation.validate_resource_slice,
        options=("gates",),
        has_generation=True,
        selectable=("spec.nodeName", "spec.driver", "spec.pool.name"),
    ),
    "devicetaintrules": Rules(
        DeviceTaintRule,
        validation.validate_device_taint_rule,
        validation.validate_device_taint_rule_status,
        has_generation=True,
    ),
    "resourcepoolstatusrequests": Rules(
        ResourcePoolStatusRequest,
        validation.validate_resource_pool_status_request,
        validation.validate_resource_pool_status_request_status,
        options=("gates",),
    ),
    "podgroups": Rules(
        PodGroup,
        validation.validate_pod_group,
        validation.validate_pod_group_status,
        options=("gates",),
        has_generation=True,
        finalizer=PROTECTION,
    ),
    "workloads": Rules(GangWorkload, validation.validate_workload, options=("gates",), has_generation=True),
}


class DraKind(Kind):
    """One of the kinds in the table above."""

    checks_metadata = True
    returns_deleted = True
    selectable_since = MappingProxyType({"spec.pool.name": Release.V1_37})

    def __init__(self, plural: str) -> None:
        self._rules = _RULES[plural]
        self.has_generation = self._rules.has_generation
        self.selectable = {path: path for path in self._rules.selectable}

    def default(self, obj: Json, write: Write) -> None:
        conversion.set_defaults(obj, now=now())

    def prepare_create(self, obj: Json, write: Write) -> None:
        gates = write.registry.gates
        strategy.prepare_for_create(obj, gates=gates)
        if obj["kind"] == "PodGroup" and gates.groups_end_as_one:
            admit_priority(obj, write, "pod group", with_policy=gates.pod_group_preemption_policy)
        finalizers = obj["metadata"].get("finalizers") or []
        wanted = self._rules.finalizer
        if wanted and wanted not in finalizers and write.registry.release >= PROTECTION_SINCE:
            obj["metadata"]["finalizers"] = [*finalizers, wanted]

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        if write.subresource == "status":
            strategy.prepare_for_status_update(obj, old, gates=write.registry.gates)
        else:
            strategy.prepare_for_update(obj, old, gates=write.registry.gates, now=now())

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        rules = self._rules
        new = decoded(rules.struct, obj)
        before = None if old is None else decoded(rules.struct, old)
        if write.subresource == "status" and rules.validate_status is not None:
            found = rules.validate_status(new, before)
        else:
            given: Mapping[str, Any] = {
                "gates": write.registry.gates,
                "check_selector": write.registry.check_selector,
                "check_derived": write.registry.check_derived,
            }
            found = rules.validate(new, before, **{name: given[name] for name in rules.options})
        if isinstance(new, ResourceSlice):
            write.warnings += validation.driver_warnings(new)
            check_declared_features(obj, write)
        refused = list(_admin_access(new, before, write))
        granular = write.subresource == "status" and write.registry.gates.granular_status_authorization
        if granular and isinstance(new, ResourceClaim) and isinstance(before, ResourceClaim):
            refused += status_refusals(new.status, before.status, write)
        return [*refused, *found]


def _admin_access(new: Object, old: Object | None, write: Write) -> Iterator[FieldError]:
    """Admin access needs the permission of the namespace (claim-controller.md 11.2: 422, not 403)."""
    stored = write.registry.store.collection("", "namespaces").get("", new.metadata.namespace)
    namespace = None if stored is None else decoded(Namespace, stored.decode())
    why, path, asking = None, "", [False]
    if old is None and isinstance(new, ResourceClaim | ResourceClaimTemplate):
        why = refuse_admin_access(new, namespace)
        devices = new.spec.devices if isinstance(new, ResourceClaim) else new.spec.spec.devices
        path = "spec.devices.requests"
        asking = [bool(request.exactly and request.exactly.admin_access) for request in devices.requests or ()]
    elif isinstance(old, ResourceClaim) and isinstance(new, ResourceClaim) and write.subresource == "status":
        why = refuse_admin_access_in_status(new, old, namespace)
        path = "status.allocation.devices.results"
        results = new.status.allocation.devices.results if new.status.allocation else None
        asking = [bool(result.admin_access) for result in results or ()]
    if why:
        yield faults.forbidden(f"{path}[{asking.index(True)}].adminAccess", why)


_NODE = "authentication.kubernetes.io/node-name"


def status_refusals(new: ResourceClaimStatus, old: ResourceClaimStatus, write: Write) -> Iterator[FieldError]:
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
