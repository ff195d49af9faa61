"""What the operator has to be allowed, as a table, and whether it still is.

The table has the rules of manifests/operator/rbac.yaml, and those of the controller ``admission``, which the component
manifests/components/admission grants; a test compares them. An operator needs only the rights of the controllers and
gates that it has.

A watch that is open stays open when its right is taken away, and a write is missed only when it is needed. So
``RightsWatch`` asks the API server for the operator's own rules, by one request every few seconds. What is missing
there it asks once more by name, because an authorizer may not be able to list its rules (``incomplete``). A right that
is missing makes the operator unready; an optional one only if it was there before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dra_api.kueue import GROUP as KUEUE
from dra_kube import Api, Connection, Forbidden, KubeError, NotFound, Resource, Unauthorized

from dra_operator.allocator import Features
from dra_operator.controllers import OwnControllers
from dra_operator.kube import rights_for
from dra_operator.wording import listed

logger = logging.getLogger(__name__)

LOOK_AT_RIGHTS_SECONDS: Final = 4.0
"""Seconds between two questions; a right that is lost is seen within ten."""
LOOKS_PER_MINUTE: Final = 15
REVIEW_SECONDS: Final = 5.0
"""Seconds that the API server has for an answer."""
SHOWN_RIGHTS: Final = 6
"""Rights that a line names."""
ASKED_NAMESPACE: Final = "default"
"""The rules for all namespaces apply in this one as in any other; it need not exist."""
_REVIEW_GROUP: Final = "authorization.k8s.io"
_RULES_REVIEWS: Final = Resource(
    _REVIEW_GROUP, ("v1",), "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False
)
_ACCESS_REVIEWS: Final = Resource(
    _REVIEW_GROUP, ("v1",), "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
MANIFEST: Final = "manifests/operator/rbac.yaml"
MANIFEST_OF_ADMISSION: Final = "manifests/components/admission/rbac.yaml"
_DRA: Final = "resource.k8s.io"
_GROUPS: Final = "scheduling.k8s.io"
_READ: Final = ("list", "watch")
_ONE_TOO: Final = ("get", *_READ)


class Work(NamedTuple):
    """What an operator does; ``controllers`` None: all of them."""

    controllers: OwnControllers | None
    gates: Features
    preemption: bool


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
class Rights:
    """Rights for one purpose; ``is_needed`` by an operator with this work.

    ``is_optional``: an operator without these rights serves all but the pods that need them. ``manifest`` grants them.
    """

    purpose: str
    group: str
    resources: Sequence[str]
    verbs: Sequence[str]
    is_needed: Callable[[Work], bool] = lambda _work: True
    is_optional: bool = False
    manifest: str = MANIFEST

    def rights(self) -> Iterator[Right]:
        """Each alone."""
        return (Right(verb, self.group, resource) for resource in self.resources for verb in self.verbs)


def _places(work: Work) -> bool:
    return work.controllers is None or work.controllers.placement


def _narrows(work: Work) -> bool:
    return work.controllers is None or work.controllers.allocation


def _admits(work: Work) -> bool:
    return work.controllers is not None and work.controllers.admission


def _ends_pods(work: Work) -> bool:
    return work.preemption or work.controllers is None or work.controllers.eviction


RULES: Final = (
    Rights("to see pods", "", ("pods",), _ONE_TOO),
    Rights("to see nodes", "", ("nodes", "namespaces"), _READ),
    Rights("to see devices", _DRA, ("deviceclasses", "resourceslices", "resourceclaimtemplates"), _READ),
    Rights("to read large templates", _DRA, ("resourceclaimtemplates",), ("get",), is_optional=True),
    Rights("to see taints", _DRA, ("devicetaintrules",), _READ, lambda work: work.gates.taint_rules, is_optional=True),
    Rights(
        "to report on taints",
        _DRA,
        ("devicetaintrules/status",),
        ("patch",),
        lambda work: work.gates.taint_rules,
        is_optional=True,
    ),
    Rights(
        "to answer questions about pools",
        _DRA,
        ("resourcepoolstatusrequests",),
        (*_ONE_TOO, "delete"),
        lambda work: work.gates.pool_status,
        is_optional=True,
    ),
    Rights(
        "to answer questions about pools",
        _DRA,
        ("resourcepoolstatusrequests/status",),
        ("update",),
        lambda work: work.gates.pool_status,
        is_optional=True,
    ),
    Rights(
        "to see PodGroups",
        _GROUPS,
        ("podgroups",),
        _ONE_TOO,
        lambda work: work.gates.generic_workload,
        is_optional=True,
    ),
    Rights(
        "to tell PodGroups about their claims",
        _GROUPS,
        ("podgroups/status",),
        ("update",),
        lambda work: work.gates.workload_resource_claims,
        is_optional=True,
    ),
    Rights(
        "for pods with volumes",
        "",
        ("persistentvolumes", "persistentvolumeclaims"),
        (*_ONE_TOO, "update"),
        _places,
        is_optional=True,
    ),
    Rights(
        "for pods with volumes",
        "storage.k8s.io",
        ("storageclasses", "csidrivers", "csinodes", "csistoragecapacities", "volumeattachments"),
        _READ,
        _places,
        is_optional=True,
    ),
    Rights("for claims", _DRA, ("resourceclaims",), (*_ONE_TOO, "create", "update", "patch", "delete")),
    Rights("for claims", _DRA, ("resourceclaims/status", "resourceclaims/binding"), ("update", "patch")),
    Rights("to tell pods about their claims", "", ("pods/status",), ("update", "patch")),
    Rights("for pods of other schedulers", "", ("pods",), ("update",), _narrows),
    Rights("to give pods their nodes", "", ("pods/binding",), ("create",), _places),
    Rights("to evict pods from tainted devices, and to preempt pods", "", ("pods",), ("delete",), _ends_pods),
    Rights("to keep disruption budgets", "policy", ("poddisruptionbudgets",), _READ, lambda work: work.preemption),
    Rights(
        "to answer admission checks",
        KUEUE,
        ("workloads", "resourceflavors", "admissionchecks"),
        _READ,
        _admits,
        is_optional=True,
        manifest=MANIFEST_OF_ADMISSION,
    ),
    Rights(
        "to answer admission checks",
        KUEUE,
        ("workloads",),
        ("get",),
        _admits,
        is_optional=True,
        manifest=MANIFEST_OF_ADMISSION,
    ),
    Rights(
        "to answer admission checks",
        KUEUE,
        ("workloads/status", "admissionchecks/status"),
        ("patch",),
        _admits,
        is_optional=True,
        manifest=MANIFEST_OF_ADMISSION,
    ),
    Rights("to tell users why", "", ("events",), ("create", "patch"), is_optional=True),
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


def needed(work: Work) -> dict[Right, Rights]:
    """Return the rights in all namespaces that an operator with this work needs, each with its rule."""
    return {right: rule for rule in RULES if rule.is_needed(work) for right in rule.rights()}


class RightsWatch:
    """``run`` until cancelled; ``troubles`` for the readiness probe. ``work``: return what the operator does now."""

    def __init__(self, connection: Connection, work: Callable[[], Work]) -> None:
        self._connection, self._work = connection, work
        self._had: set[Right] = set()
        self._denied: set[Right] = set()
        """Rights that were asked by name; they are asked again once a minute."""
        self._looks = 0
        self._missing: list[Right] = []
        self._is_unknown = False

    def troubles(self) -> list[str]:
        """Return a line that names the rights that are missing, or nothing."""
        if self._is_unknown:
            return ["the API server does not accept the operator's credentials (401): is its ServiceAccount gone?"]
        if not self._missing:
            return []
        remedies = dict.fromkeys(rights_for(right.group) for right in self._missing)
        return [f"missing rights: {listed(map(str, self._missing), SHOWN_RIGHTS)}; {'; '.join(remedies)}"]

    async def run(self) -> None:
        """Ask until cancelled; by a client of its own, since reviews are sent as writes, which a lease guards."""
        async with Api(self._connection, timeout=REVIEW_SECONDS) as api:
            while True:
                await self.look(api)
                await asyncio.sleep(LOOK_AT_RIGHTS_SECONDS)

    async def look(self, api: Api) -> None:
        """Find out what is missing now. What the server does not answer stays as it was."""
        before, wanted = self.troubles(), needed(self._work())
        try:
            allowed = await self._allowed(api, wanted)
        except Unauthorized:
            self._is_unknown = True
        except (Forbidden, NotFound) as error:
            logger.debug("cannot ask for the operator's own rights: %s", error)
            self._missing = []
        except KubeError as error:
            logger.debug("rights not looked at: %s", error)
        else:
            self._is_unknown = False
            self._had |= allowed
            absent = wanted.keys() - allowed
            self._missing = sorted(it for it in absent if it in self._had or not wanted[it].is_optional)
        after = self.troubles()
        if after and after != before:
            logger.warning(after[0])
        elif before and not after:
            logger.info("no right is missing any more")

    async def _allowed(self, api: Api, wanted: Mapping[Right, Rights]) -> set[Right]:
        """Return those of the rights that the server gives. Raises KubeError."""
        body = {"apiVersion": f"{_REVIEW_GROUP}/v1", "kind": "SelfSubjectRulesReview"}
        answer = await api.create(_RULES_REVIEWS, {**body, "spec": {"namespace": ASKED_NAMESPACE}})
        rules = (answer.get("status") or {}).get("resourceRules") or []
        allowed = {right for right in wanted if any(_gives(rule, right) for rule in rules)}
        if self._looks % LOOKS_PER_MINUTE == 0:
            self._denied.clear()
        self._looks += 1
        for right in wanted.keys() - allowed - self._denied:
            (allowed if await _is_allowed(api, right) else self._denied).add(right)
        return allowed


async def _is_allowed(api: Api, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
    body = {"apiVersion": f"{_REVIEW_GROUP}/v1", "kind": "SelfSubjectAccessReview"}
    answer = await api.create(_ACCESS_REVIEWS, {**body, "spec": {"resourceAttributes": attributes}})
    return (answer.get("status") or {}).get("allowed") is True


def _gives(rule: Mapping[str, Any], right: Right) -> bool:
    """Return whether a rule of a review gives the right for objects of all names."""
    _, slash, subresource = right.resource.partition("/")
    resources = {right.resource, "*", f"*{slash}{subresource}"}
    return (
        not rule.get("resourceNames")
        and not {right.verb, "*"}.isdisjoint(rule.get("verbs") or ())
        and not {right.group, "*"}.isdisjoint(rule.get("apiGroups") or ())
        and not resources.isdisjoint(rule.get("resources") or ())
    )
