"""What labels select: label selectors, the label of namespaces for admin access, and features that nodes declare.

Only claims in a namespace with the admin label may ask for devices that others hold, or get them in an allocation.
Spec: api.md section 8, claim-controller.md 11.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from dra_api.core import Namespace, Node
from dra_api.meta import LabelSelector
from dra_api.resource import (
    ADMIN_ACCESS_LABEL,
    AllocationResult,
    DeviceAllocationResult,
    DeviceClaim,
    ResourceClaim,
    ResourceClaimTemplate,
)

Labels = Mapping[str, str]
T = TypeVar("T")


class Requirement(NamedTuple):
    """The values that one label may have."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Labels) -> bool:
        """Whether the labels meet the requirement."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False

    def among(self, labelled: Iterable[tuple[Labels, T]]) -> list[tuple[Labels, T]]:
        """Those of many objects whose labels meet the requirement: a tenth of the work of asking about each of them."""
        key, values = self.key, self.values
        match self.operator:
            case "In":
                return [it for it in labelled if it[0].get(key) in values]
            case "NotIn":
                return [it for it in labelled if it[0].get(key) not in values]
            case "Exists":
                return [it for it in labelled if key in it[0]]
            case "DoesNotExist":
                return [it for it in labelled if key not in it[0]]
        return []


class Selector(Struct, frozen=True):
    """``requirements`` None selects nothing."""

    requirements: frozenset[Requirement] | None

    @classmethod
    def of(cls, selector: LabelSelector | None) -> Selector:
        """The compiled form."""
        if selector is None:
            return NOTHING
        wanted = [Requirement(key, "In", frozenset((value,))) for key, value in (selector.match_labels or {}).items()]
        wanted += [
            Requirement(it.key, it.operator, frozenset(it.values or ())) for it in selector.match_expressions or ()
        ]
        return cls(frozenset(wanted))

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Compile what kubectl's ``-l`` takes: ``app=web,tier!=test,zone in (a,b),gpu,!spot``. Raises ValueError."""
        wanted, place = [], 0
        while place < len(text):
            if (found := _PART.match(text, place)) is None:
                raise ValueError(f"cannot read {text[place:]!r}; write KEY=VALUE, separated by commas")
            place = found.end()
            wanted.append(_requirement(found))
        return cls(frozenset(wanted))

    @property
    def is_empty(self) -> bool:
        """Whether it selects everything because it asks for nothing."""
        return self.requirements is not None and not self.requirements

    @property
    def anchor(self) -> tuple[str, str] | None:
        """A label that all selected objects have, if the selector names one: a key under which it can be filed."""
        exact = [(it.key, *it.values) for it in self.requirements or () if it.operator == "In" and len(it.values) == 1]
        return min(((key, value) for key, value in exact), default=None)

    def also(self, more: Iterable[Requirement]) -> Selector:
        """The selector with further requirements; one that selects nothing stays as it is."""
        return self if self.requirements is None else Selector(self.requirements.union(more))

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is selected."""
        return self.requirements is not None and all(it.holds(labels) for it in self.requirements)


NOTHING: Final = Selector(None)
EVERYTHING: Final = Selector(frozenset())
_PART: Final = re.compile(
    r"\s*(?:(?P<key>[\w./-]+)\s*(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)"
    r"|(?P<of>[\w./-]+)\s+(?P<set>in|notin)\s*\((?P<values>[^)]*)\)"
    r"|(?P<absent>!)?\s*(?P<exists>[\w./-]+))\s*(?:,|$)"
)


def _requirement(found: re.Match[str]) -> Requirement:
    if key := found["key"]:
        return Requirement(key, "NotIn" if found["op"] == "!=" else "In", frozenset((found["value"],)))
    if of := found["of"]:
        values = frozenset(one.strip() for one in found["values"].split(","))
        return Requirement(of, "In" if found["set"] == "in" else "NotIn", values)
    return Requirement(found["exists"], "DoesNotExist" if found["absent"] else "Exists")


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


def refuse_admin_access(obj: ResourceClaim | ResourceClaimTemplate, namespace: Namespace | None) -> str | None:
    """Why a new claim or template is forbidden in the namespace, or None."""
    spec = obj.spec if isinstance(obj, ResourceClaim) else obj.spec.spec
    return REFUSAL if wants_admin_access(spec.devices) and not permits_admin_access(namespace) else None


def refuse_admin_access_in_status(new: ResourceClaim, old: ResourceClaim, namespace: Namespace | None) -> str | None:
    """Why a status must not grant admin access that was not there before, or None."""
    granted = has_admin_access(new) and not has_admin_access(old)
    return REFUSAL if granted and not permits_admin_access(namespace) else None


OPTIONAL_NODE_OPERATIONS: Final = "DRAOptionalNodeOperations"
"""The gate, and the feature: the kubelet manages without calls to drivers whose slices say so (K37-ONO-08)."""


def declares_optional_node_operations(node: Node) -> bool:
    """Whether the node manages without calls to drivers."""
    return OPTIONAL_NODE_OPERATIONS in (node.status.declared_features or ())


def has_skipped_operations(allocation: AllocationResult | DeviceAllocationResult) -> bool:
    """Whether the driver of any device said that calls to it are skipped."""
    return any(result.skip_node_operations for result in allocation.results or ())
