"""Find out about the control plane beside the operator: its release, its controllers, and the operator's rights there.

The release decides features and the kinds to watch. It is decided once in the life of the process, so that nothing
changes while the API servers of a cluster are upgraded one after the other. What they answer later is listened to: the
lowest release of the last minutes is the one that all of them have, and if that is not the one in force, the log and
``/readyz?verbose`` say so.

kube-controller-manager has claims and eviction, where it runs. Its Lease in kube-system shows whether it works: it
renews it every two seconds. Only changes count, by the local clock, because the times in the Lease come from another
machine. A Lease that is seen for the first time counts as renewed for a while, because two claim controllers do more
harm than none for half a minute. So does one that could not be looked at: while the API server was away, or the machine
slept, a controller manager could not renew it either. A Lease that lost its holder counts as well: with
ControllerManagerReleaseLeaderElectionLockOnExit a controller manager gives it up when it ends, and in an upgrade the
next one takes it over within seconds.

A controller manager without leader election has no Lease (minikube, k3s with a single server). What it does shows it: a
claim that it made and recorded in a pod while claims were ours. It then counts as working for ten minutes after the
last such claim; if it still does after that, the next pod's claim is made twice, and shows it again.

Every controller manager of a cluster that serves resource.k8s.io in a version we speak (1.32 and later) has the claim
controller. It evicts from tainted devices in releases where the gate DRADeviceTaints is on by default. If it was
switched on in an older cluster both evict, which is harmless: they delete the same pods, each once. A controller that
is switched off there is not visible from outside, and needs ``--controllers``.

``Right`` is a row of the table of rights. The table has the rules of manifests/operator/rbac.yaml. The component
manifests/components/admission grants the rules of the controller ``admission``. A test compares them. An operator needs
only the rights of the controllers and gates that it has.

A watch that is open stays open when its right is taken away, and a write is missed only when it is needed. So
``RightsWatch`` asks the API server for the operator's own rules, by one request every few seconds. What is missing
there it asks once more by name, because an authorizer may not be able to list its rules (``incomplete``). A right that
is missing makes the operator unready; an optional one only if it was there before.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from dra_api.codec import DecodeError, convert
from dra_api.core import Pod
from dra_api.gates import defaults_of, is_on_by_default
from dra_api.kueue import GROUP as KUEUE
from dra_api.meta import Part
from dra_api.releases import NEWEST, Release, release_of
from dra_kube import (
    LEASES,
    LONGEST_LEASE_SECONDS,
    Api,
    Connection,
    Forbidden,
    KubeError,
    NotFound,
    Resource,
    Unauthorized,
)

from dra_operator.allocator import Features
from dra_operator.controllers import NAMES, ControllerName, OwnControllers, records_claim_of_others
from dra_operator.gates import features_of
from dra_operator.kube import rights_for
from dra_operator.sources.kind_table import Kinds
from dra_operator.sources.kinds import watched_kinds
from dra_operator.wording import listed

logger = logging.getLogger(__name__)

AGREED_SECONDS: Final = 600.0
"""So long an answer counts: as long as it takes until each API server behind one address has answered some look."""


class CommonRelease:
    """The release that all API servers of a cluster have: the lowest that one of them answered lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_at: dict[Release, float] = {}

    def heard(self, version: Mapping[str, object]) -> Release:
        """The common release, now that an API server has answered so at ``/version``."""
        now = self._clock()
        self._heard_at[release_of(version)[0]] = now
        return min(release for release, at in self._heard_at.items() if now - at < AGREED_SECONDS)


class ReleaseInForce:
    """``gates`` are changes to the release's feature gates; without a ``release`` that of the API server counts.

    ``preemption``, ``admission``: whether what they need is watched.
    """

    def __init__(
        self,
        gates: Mapping[str, bool],
        release: Release | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        preemption: bool = False,
        admission: bool = False,
    ) -> None:
        self._gates = gates
        self._chosen, self._preemption, self._admission = release, preemption, admission
        self._is_decided = False
        self._common = CommonRelease(clock)
        self.release = release or NEWEST
        self.features = Features()
        self.kinds: Kinds = watched_kinds(self.features, preemption=preemption, admission=admission)
        self.note = ""
        """What people should know about it."""
        self._note_at_start = ""

    def decide(self, version: Mapping[str, object]) -> None:
        """Go by what the API server says at ``/version``, the first time. Raises GateError."""
        if self._is_decided:
            return
        if self._chosen is not None:
            release, unusual, defaults = self._chosen, "", {}
        else:
            (release, unusual), defaults = release_of(version), defaults_of(version)
        self.features = features_of({**defaults, **self._gates}, release)
        self.kinds = watched_kinds(self.features, preemption=self._preemption, admission=self._admission)
        self.release, self._is_decided = release, True
        self.note = self._note_at_start = unusual or f"as Kubernetes {release}"
        logger.log(logging.WARNING if unusual else logging.INFO, "%s", unusual or f"deciding as Kubernetes {release}")

    def heard(self, version: Mapping[str, object]) -> Release:
        """The release that all API servers have, now that one has answered so at ``/version``."""
        common = self._common.heard(version)
        if self._chosen is None and self._is_decided:
            note = self._note_at_start if common == self.release else self._note_beside(common)
            if note != self.note and note != self._note_at_start:
                logger.warning("%s", note)
            self.note = note
        return common

    def _note_beside(self, common: Release) -> str:
        if common > self.release:
            news = f"all API servers are Kubernetes {common} now; restart the operator to decide as they do"
        else:
            news = f"an API server is Kubernetes {common}; restart the operator once all of them have the same release"
        return f"as Kubernetes {self.release}, but {news}"


NAMESPACE, NAME = "kube-system", "kube-controller-manager"
GONE_SECONDS = 30.0  # seconds without a change until it counts as gone; a standby takes over within 17
BELIEVED_SECONDS = 600.0  # seconds after a claim that another controller made
LOOK_SECONDS_WHILE_THEIRS = 10.0  # seconds between two looks
LOOK_SECONDS_WHILE_OURS = 2.0  # the same while claims are ours, so that we soon leave them to one that starts
CLAIMS: Final[frozenset[ControllerName]] = frozenset({"templates", "release"})
EVICTION: Final[frozenset[ControllerName]] = frozenset({"eviction"})


class Heartbeat:
    """Whether a Lease is being renewed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spec: dict[str, Any] = {}
        self._had_holder = False
        self._changed_at = 0.0

    def saw(self, lease: dict[str, Any] | None) -> bool:
        """The Lease as it is now; None if there is none."""
        found = (lease or {}).get("spec")
        spec: dict[str, Any] = found if isinstance(found, dict) else {}
        if spec != self._spec:
            self._spec, self._changed_at = spec, self._clock()
        self._had_holder = bool(spec.get("holderIdentity")) or (self._had_holder and bool(spec))
        lasts = spec.get("leaseDurationSeconds")
        seconds = min(lasts, LONGEST_LEASE_SECONDS) if isinstance(lasts, int) else 0
        patience = max(GONE_SECONDS, 2.0 * seconds)
        return self._had_holder and self._clock() - self._changed_at < patience

    def saw_nothing(self) -> None:
        """The server did not answer: the time until now does not count."""
        self._changed_at = self._clock()


class ControllerManager:
    """Keeps ``controllers`` in step: ``look`` once before the work begins, then ``run``.

    ``became_ours`` is called when anything becomes ours while the operator works. ``common_release`` hears each answer
    of an API server at ``/version``, and says which release all of them have. ``records_here``: whether the claim
    of that name is being recorded in the pod by this process, or may have been.
    """

    def __init__(
        self,
        api: Api,
        controllers: OwnControllers,
        became_ours: Callable[[], Awaitable[None]],
        common_release: Callable[[Mapping[str, object]], Release],
        records_here: Callable[[Pod, str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._controllers, self._became_ours = api, controllers, became_ours
        self._common_release, self._records_here = common_release, records_here
        self._heartbeat = Heartbeat(clock)
        self._clock = clock
        self._claimed_at = -math.inf
        self._look_now = asyncio.Event()
        self._theirs: frozenset[ControllerName] | None = None
        self._is_denied = False

    def saw(self, before: Pod | None, now: Pod) -> None:
        """The watch brought a new version of a pod."""
        may_show = self._controllers.templates or self._clock() - self._claimed_at < BELIEVED_SECONDS
        if may_show and records_claim_of_others(before, now, self._records_here):
            self._claimed_at = self._clock()
            self._look_now.set()

    async def look(self) -> None:
        """Find out which controllers are ours now. What cannot be found out stays as it was, at first not ours."""
        theirs: frozenset[ControllerName] = frozenset()
        if await self._works():
            theirs = CLAIMS | EVICTION if await self._evicts() else CLAIMS
        if theirs != self._theirs:
            await self._change(theirs)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS_WHILE_THEIRS if self._theirs else LOOK_SECONDS_WHILE_OURS):
                    await self._look_now.wait()
            self._look_now.clear()
            await self.look()

    async def _works(self) -> bool:
        try:
            works = self._heartbeat.saw(await self._api.get(LEASES, NAME, NAMESPACE))
        except NotFound:
            works = self._heartbeat.saw(None)
        except Forbidden as error:
            self._tell_denied(error)
            return True
        except KubeError as error:
            logger.debug("cannot read the Lease of kube-controller-manager: %s", error)
            works = self._theirs is None or bool(self._theirs)
            if works:
                self._heartbeat.saw_nothing()
            return works
        self._is_denied = False
        return works or self._clock() - self._claimed_at < BELIEVED_SECONDS

    async def _evicts(self) -> bool:
        """Whether a controller manager of that release evicts by default; at first an unknown one counts as yes.

        It is no newer than the oldest API server, so that the lowest release among them counts.
        """
        try:
            version = await self._api.raw_get("/version")
        except KubeError as error:
            logger.debug("cannot read the version of the API server: %s", error)
            return self._theirs is None or self._theirs >= EVICTION
        return is_on_by_default("DRADeviceTaints", self._common_release(version))

    async def _change(self, theirs: frozenset[ControllerName]) -> None:
        before, self._theirs = self._theirs, theirs
        for controller in CLAIMS | EVICTION:
            setattr(self._controllers, controller, controller not in theirs)
        if theirs:
            names = ", ".join(name for name in NAMES if name in theirs)
            logger.info("left to kube-controller-manager: %s; controllers run here: %s", names, self._controllers)
        else:
            logger.info(
                "no kube-controller-manager is running in this cluster; controllers run here: %s", self._controllers
            )
        if before is not None and before - theirs:
            await self._became_ours()

    def _tell_denied(self, error: Forbidden) -> None:
        if not self._is_denied:
            logger.warning(
                "cannot see whether kube-controller-manager is running, so templates, release and eviction are left to "
                "it: %s; allow the operator to get leases in %s (Role dra-operator-leader-election of "
                "manifests/operator/rbac.yaml or the chart), or set --controllers",
                error,
                NAMESPACE,
            )
        self._is_denied = True


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


def _minds_taints(work: Work) -> bool:
    return work.gates.taint_rules


def _answers_about_pools(work: Work) -> bool:
    return work.gates.pool_status


_optional = partial(Rights, is_optional=True)
_of_admission = partial(
    _optional, "to answer admission checks", KUEUE, is_needed=_admits, manifest=MANIFEST_OF_ADMISSION
)
_POOLS: Final = "to answer questions about pools"
_VOLUMES: Final = ("persistentvolumes", "persistentvolumeclaims")
_OF_STORAGE: Final = ("storageclasses", "csidrivers", "csinodes", "csistoragecapacities", "volumeattachments")
RULES: Final = (
    Rights("to see pods", "", ("pods",), _ONE_TOO),
    Rights("to see nodes", "", ("nodes", "namespaces"), _READ),
    Rights("to see devices", _DRA, ("deviceclasses", "resourceslices", "resourceclaimtemplates"), _READ),
    _optional("to read large templates", _DRA, ("resourceclaimtemplates",), ("get",)),
    _optional("to see taints", _DRA, ("devicetaintrules",), _READ, _minds_taints),
    _optional("to report on taints", _DRA, ("devicetaintrules/status",), ("patch",), _minds_taints),
    _optional(_POOLS, _DRA, ("resourcepoolstatusrequests",), (*_ONE_TOO, "delete"), _answers_about_pools),
    _optional(_POOLS, _DRA, ("resourcepoolstatusrequests/status",), ("update",), _answers_about_pools),
    _optional("to see PodGroups", _GROUPS, ("podgroups",), _ONE_TOO, lambda work: work.gates.generic_workload),
    _optional(
        "to tell PodGroups about their claims",
        _GROUPS,
        ("podgroups/status",),
        ("update",),
        lambda work: work.gates.workload_resource_claims,
    ),
    _optional("for pods with volumes", "", _VOLUMES, (*_ONE_TOO, "update"), _places),
    _optional("for pods with volumes", "storage.k8s.io", _OF_STORAGE, _READ, _places),
    Rights("for claims", _DRA, ("resourceclaims",), (*_ONE_TOO, "create", "update", "patch", "delete")),
    Rights("for claims", _DRA, ("resourceclaims/status", "resourceclaims/binding"), ("update", "patch")),
    Rights("to tell pods about their claims", "", ("pods/status",), ("update", "patch")),
    Rights("for pods of other schedulers", "", ("pods",), ("update",), _narrows),
    Rights("to give pods their nodes", "", ("pods/binding",), ("create",), _places),
    Rights("to evict pods from tainted devices, and to preempt pods", "", ("pods",), ("delete",), _ends_pods),
    Rights("to keep disruption budgets", "policy", ("poddisruptionbudgets",), _READ, lambda work: work.preemption),
    _of_admission(("workloads", "resourceflavors", "admissionchecks"), _READ),
    _of_admission(("workloads",), ("get",)),
    _of_admission(("workloads/status", "admissionchecks/status"), ("patch",)),
    _optional("to tell users why", "", ("events",), ("create", "patch")),
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
        except (KubeError, DecodeError) as error:
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
        """Return those of the rights that the server gives. Raises KubeError, and DecodeError for a strange answer."""
        body = {"apiVersion": f"{_REVIEW_GROUP}/v1", "kind": "SelfSubjectRulesReview"}
        answer = await api.create(_RULES_REVIEWS, {**body, "spec": {"namespace": ASKED_NAMESPACE}})
        rules = convert(_RulesReview, answer).status.resource_rules or ()
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
    return convert(_AccessReview, answer).status.allowed


class _Rule(Part, frozen=True):
    verbs: tuple[str, ...] | None = None
    api_groups: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    resource_names: tuple[str, ...] | None = None


class _Rules(Part, frozen=True):
    resource_rules: tuple[_Rule, ...] | None = None


class _RulesReview(Part, frozen=True):
    status: _Rules = _Rules()


class _Access(Part, frozen=True):
    allowed: bool = False


class _AccessReview(Part, frozen=True):
    status: _Access = _Access()


def _gives(rule: _Rule, right: Right) -> bool:
    """Return whether a rule of a review gives the right for objects of all names."""
    _, slash, subresource = right.resource.partition("/")
    resources = {right.resource, "*", f"*{slash}{subresource}"}
    return (
        not rule.resource_names
        and not {right.verb, "*"}.isdisjoint(rule.verbs or ())
        and not {right.group, "*"}.isdisjoint(rule.api_groups or ())
        and not resources.isdisjoint(rule.resources or ())
    )
