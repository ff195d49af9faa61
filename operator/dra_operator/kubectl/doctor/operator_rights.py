"""What the operator has to be allowed, and what for: the rules of manifests/operator/rbac.yaml, as a table.

A test compares the two. An operator needs only the rights of the controllers and gates that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dra_api.leases import Lease

from dra_operator.allocator import Features
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings

LEASE_PREFIX: Final = "dra-operator-"
"""Of the Lease's name, before the name of the scheduler."""
_DRA: Final = "resource.k8s.io"
_GROUPS: Final = "scheduling.k8s.io"
_READ: Final = ("list", "watch")
_ONE_TOO: Final = ("get", *_READ)
Need = Callable[[Settings, Features], bool]


class Right(NamedTuple):
    """One question to an authorizer; ``name`` and ``namespace`` are empty where any will do."""

    verb: str
    group: str
    resource: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return " ".join(filter(None, (self.verb, resource, self.name)))


@dataclass(frozen=True, slots=True)
class Rule:
    """Rights for one purpose; ``is_needed`` by an operator with these settings and gates."""

    purpose: str
    group: str
    resources: Sequence[str]
    verbs: Sequence[str]
    is_needed: Need = lambda _settings, _gates: True

    def rights(self) -> Iterator[Right]:
        """Each alone."""
        return (Right(verb, self.group, resource) for resource in self.resources for verb in self.verbs)


def _places(settings: Settings, _: Features) -> bool:
    return settings.controllers is None or settings.controllers.placement


def _narrows(settings: Settings, _: Features) -> bool:
    return settings.controllers is None or settings.controllers.allocation


def _preempts(settings: Settings, _: Features) -> bool:
    return settings.preemption


def _ends_pods(settings: Settings, _: Features) -> bool:
    return settings.preemption or settings.controllers is None or settings.controllers.eviction


RULES: Final = (
    Rule("to see pods", "", ("pods",), _ONE_TOO),
    Rule("to see nodes", "", ("nodes", "namespaces"), _READ),
    Rule("to see devices", _DRA, ("deviceclasses", "resourceslices", "resourceclaimtemplates"), _READ),
    Rule("to see taints", _DRA, ("devicetaintrules",), _READ, lambda _, gates: gates.taint_rules),
    Rule("to report on taints", _DRA, ("devicetaintrules/status",), ("patch",), lambda _, gates: gates.taint_rules),
    Rule(
        "to answer questions about pools",
        _DRA,
        ("resourcepoolstatusrequests",),
        (*_ONE_TOO, "delete"),
        lambda _, gates: gates.pool_status,
    ),
    Rule(
        "to answer questions about pools",
        _DRA,
        ("resourcepoolstatusrequests/status",),
        ("update",),
        lambda _, gates: gates.pool_status,
    ),
    Rule("to see PodGroups", _GROUPS, ("podgroups",), _ONE_TOO, lambda _, gates: gates.generic_workload),
    Rule(
        "to tell PodGroups about their claims",
        _GROUPS,
        ("podgroups/status",),
        ("update",),
        lambda _, gates: gates.workload_resource_claims,
    ),
    Rule("for pods with volumes", "", ("persistentvolumes", "persistentvolumeclaims"), (*_ONE_TOO, "update"), _places),
    Rule(
        "for pods with volumes",
        "storage.k8s.io",
        ("storageclasses", "csidrivers", "csinodes", "csistoragecapacities", "volumeattachments"),
        _READ,
        _places,
    ),
    Rule("for claims", _DRA, ("resourceclaims",), (*_ONE_TOO, "create", "update", "patch", "delete")),
    Rule("for claims", _DRA, ("resourceclaims/status", "resourceclaims/binding"), ("update", "patch")),
    Rule("to tell pods about their claims", "", ("pods/status",), ("update", "patch")),
    Rule("for pods of other schedulers", "", ("pods",), ("update",), _narrows),
    Rule("to give pods their nodes", "", ("pods/binding",), ("create",), _places),
    Rule("to end pods on tainted devices, or for others", "", ("pods",), ("delete",), _ends_pods),
    Rule("to keep disruption budgets", "policy", ("poddisruptionbudgets",), _READ, _preempts),
    Rule("to tell users why", "", ("events",), ("create", "patch")),
)
"""Those for all namespaces."""


def lease_rights(lease: str) -> list[Right]:
    """To lead, and to see which controllers are others' business."""
    of_lease = ("coordination.k8s.io", "leases")
    return [
        Right("get", *of_lease, lease, "kube-system"),
        Right("update", *of_lease, lease, "kube-system"),
        Right("get", *of_lease, "kube-controller-manager", "kube-system"),
        Right("create", *of_lease, namespace="kube-system"),
    ]


def needed_rights(seen: Observed) -> dict[Right, str]:
    """Those of the operators that have a Lease, by what they are for; none without one."""
    found: dict[Right, str] = {}
    for lease in seen.every(Lease):
        if not lease.metadata.name.startswith(LEASE_PREFIX):
            continue
        settings = Settings(lease.metadata.name.removeprefix(LEASE_PREFIX)).completed(seen)
        gates = settings.features(seen)
        for rule in RULES:
            if rule.is_needed(settings, gates):
                found |= dict.fromkeys(rule.rights(), rule.purpose)
        found |= dict.fromkeys(lease_rights(lease.metadata.name), "to lead")
    return found
