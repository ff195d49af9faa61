"""The operator's lists and watches: the first list of each kind, a reflector for each, and the intake of changes.

``Loader`` lists every kind before the first decision, all at once: slices without their claims would offer devices that
are taken. ``Intake.take`` takes in each later change. An echo costs no more than a look at its metadata: the operator
wrote that version itself and has it from the answer, or a list had it. Other objects are decoded one at a time,
straight into the structs that the cache keeps; large ones lose their unread parts before the next one is decoded.
Malformed objects are kept apart (``malformed``).

Each reflector calls the handler of its kind. ``dra-operator run`` is fed by these, ``kopf run`` by Kopf's watches.
``Watches`` knows whether changes of a kind are seen now: for readiness, for the log, and for a pod that may be bound
only if another scheduler cannot have come unseen. The log has one line for each kind and reason for which changes go
unseen, and kinds with the same reason share it. A watch that is made again within ``Limits.gap`` is not worth a line.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from dra_api.codec import brief
from dra_api.core import Pod
from dra_api.meta import Object, ObjectVersion
from dra_api.resource import ResourceClaim
from dra_kube import (
    DEVICE_TAINT_RULES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    Api,
    ApiError,
    Change,
    Forbidden,
    KubeError,
    NotServed,
    Reflector,
    Resource,
    gist,
)
from dra_kube.reflector import TURN_BYTES

from dra_operator.cache import Source, without_bulk
from dra_operator.controllers import Control
from dra_operator.kube import rights_for
from dra_operator.scheduling.state import BULKY_BYTES

from .audit import Audit
from .kind_table import OF_KUEUE, OF_STORAGE, Kinds
from .kinds import REQUIRED
from .malformed import MalformedObjects

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits, in seconds."""

    silence: float = 90.0
    """An open watch is silent."""
    gap: float = 10.0
    """A kind is not watched: a reconnection takes less."""


BYTELESS_SECONDS: Final = 70.0
"""Seconds without a byte after which a watch is made again: kube-apiserver sends a bookmark each minute."""
ANSWER_SECONDS: Final = 0.005
"""Seconds that an event waits: the answer to the operator's own write, which often comes behind it, makes it known."""
LOG_SECONDS: Final = 0.5
"""Seconds between two looks at the streams for the log."""
TOLD_REASONS: Final = 8
"""Reasons why a kind is not seen that are logged each; of further ones there is a line now and then."""
MORE_REASONS_SECONDS: Final = 60.0
_RENEW: Final = "the credentials are no longer valid: renew them"
_REASON_CHARACTERS: Final = 240
"""Characters of a refusal that are told."""

Receive = Callable[[Change], Awaitable[None]]


class Watches:
    """``follow`` each kind, and ``run`` until cancelled; ``clear`` before another API server is followed."""

    def __init__(self, limits: Limits | None) -> None:
        self.limits = limits or Limits()
        self._reflectors: dict[Resource, Reflector] = {}
        self._new = asyncio.Queue[Reflector]()
        self._told = defaultdict[Resource, _Told](_Told)
        """What was logged of a kind since its changes were seen."""
        self.failed: Callable[[Resource], None] = lambda _: None
        """Called when a list or watch of the kind fails: something may have been missed."""

    def follow(
        self, api: Api, resource: Resource, since: str, receive: Receive, knows: Callable[[], Iterable[ObjectVersion]]
    ) -> None:
        """Watch a kind from the version of a list on. ``knows`` gives the cached versions of its objects."""
        self._reflectors[resource] = Reflector(
            api,
            resource,
            receive,
            since=since,
            knows=knows,
            failed=partial(self._failed, resource),
            lag=_lag,
            silence=BYTELESS_SECONDS,
        )
        self._new.put_nowait(self._reflectors[resource])

    def clear(self) -> None:
        """No kind is to be watched any more."""
        self._reflectors.clear()
        self._new = asyncio.Queue()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_log(), name="log of watches")
            while True:
                reflector = await self._new.get()
                group.create_task(reflector.run(), name=f"watch of {reflector.resource}")

    def _failed(self, resource: Resource, error: Exception) -> None:
        reflector = self._reflectors.get(resource)
        if reflector is None:
            return  # the operator stops
        stream = reflector.stream
        remedy = {401: _RENEW, 403: rights_for(resource.group)}.get(error.code) if isinstance(error, ApiError) else None
        stream.refusal = f"{stream.refusal[:_REASON_CHARACTERS]}{f'; {remedy}' if remedy else ''}"
        self.failed(resource)

    # --- kinds that are seen ---

    def sees(self, resource: Resource) -> bool:
        """Return whether no change of the kind goes unseen for a reason that is known; False if it is not followed."""
        reflector = self._reflectors.get(resource)
        return reflector is not None and reflector.stream.sees(_now())

    def states(self) -> list[tuple[Resource, str]]:
        """Return each kind, and why its changes go unseen; empty if they are seen."""
        now, limits = _now(), self.limits
        return [
            (resource, reflector.stream.problem(now, gap=limits.gap, silence=limits.silence))
            for resource, reflector in self._reflectors.items()
        ]

    def ages(self) -> list[tuple[str, float]]:
        """Return the seconds since the last sign of life of each kind."""
        now = _now()
        return [(str(resource), now - reflector.stream.life) for resource, reflector in self._reflectors.items()]

    async def _keep_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_SECONDS)
            self.log()

    def log(self) -> None:
        """Log what is new since the last look."""
        states, now = dict(self.states()), _now()
        news = defaultdict[str, list[Resource]](list)
        for resource, problem in states.items():
            stream = self._reflectors[resource].stream
            reason = _lasting_words(stream.refusal)
            is_late = problem and now - stream.life > self.limits.gap
            if is_late and self._told[resource].is_news(reason, now):
                news[reason].append(resource)
        for kinds in news.values():
            logger.warning("%s: %s; retrying until it works", self._names(kinds), states[kinds[0]])
        if seen := [resource for resource in self._told if not states.get(resource, "unknown")]:
            logger.info("%s: watched again", self._names(seen))
            for resource in seen:
                del self._told[resource]

    def _names(self, kinds: list[Resource]) -> str:
        return "all kinds" if len(kinds) == len(self._reflectors) else ", ".join(sorted(map(str, kinds)))


@dataclass(slots=True)
class _Told:
    """What was logged of a kind that is not seen. ``at``: when last."""

    reasons: set[str] = field(default_factory=set)
    at: float = -math.inf

    def is_news(self, reason: str, now: float) -> bool:
        """Return whether the reason is to be logged, and note that it is."""
        if reason in self.reasons:
            return False
        if len(self.reasons) < TOLD_REASONS:
            self.reasons.add(reason)
        elif now - self.at < MORE_REASONS_SECONDS:
            return False
        self.at = now
        return True


def _lasting_words(refusal: str) -> str:
    """Return what a failure says each time. Its code, which stands in front, is part of that."""
    how, colon, text = refusal.partition(": ")
    return f"{how}{colon}{gist(text)}"


def _lag(changes: Sequence[Change]) -> float:
    """Return how long the changes wait for an answer that may make them known.

    A full batch does not wait, since more has come than was read in time. Nor does a new pod, as none is of our making.
    """
    resource = changes[0].resource
    if resource not in (PODS, RESOURCE_CLAIMS) or sum(len(change.content) for change in changes) > TURN_BYTES:
        return 0.0
    is_new = resource == PODS and all(change.event == "ADDED" for change in changes)
    return 0.0 if is_new else ANSWER_SECONDS


def _now() -> float:
    return asyncio.get_running_loop().time()


LARGE_BYTES: Final = 64 << 10
"""Bytes of JSON from which an object is not kept as the server sent it."""


class Intake:
    """For one cache. ``take`` is what each handler does with a change of its kind."""

    def __init__(self, control: Control, malformed_objects: MalformedObjects, audit: Audit, kinds: Kinds) -> None:
        self._control, self._malformed_objects, self._audit, self._kinds = control, malformed_objects, audit, kinds
        self.pod_seen: Callable[[Pod | None, Pod], None] = lambda _, __: None
        """Called with each new version of a pod, and with the version that the cache has."""

    def take(self, change: Change) -> None:
        """Put the change into the cache, unless the cache has it already."""
        resource, version = change.resource, change.version
        control, kind = self._control, self._kinds[resource]
        source = Source.LIST if change.event in ("LISTED", "MISSED") else Source.WATCH
        if change.event == "MISSED":
            self._audit.ended_unseen(resource, version.key)
        if change.is_end:
            control.delete(source, kind, version.key, version.uid or None)
            if resource == RESOURCE_CLAIMS:
                self._malformed_objects.deleted(version.key, version.uid or None)
            return
        if self._is_known(change, source):
            return
        try:
            obj = change.decoded(kind)
            raw = None if len(change.content) > LARGE_BYTES else _kept(change, obj)
        except (ValueError, KeyError, TypeError) as error:
            self._malformed_objects.take(resource, brief(bytes(change.content)), error)
            return
        if len(change.content) > BULKY_BYTES:
            obj = without_bulk(obj)
        self._audit.saw(resource, version.resource_version)
        if isinstance(obj, Pod):
            self.pod_seen(control.cluster.pods.get(obj.key), obj)
        control.apply(source, obj, raw)
        if resource == RESOURCE_CLAIMS and obj.key in self._malformed_objects.partially_decoded:
            self._correct(obj)

    def _is_known(self, change: Change, source: Source) -> bool:
        """Return whether the cache has this version, a newer one, or the end of the object."""
        resource, version = change.resource, change.version
        if resource == RESOURCE_CLAIMS and version.key in self._malformed_objects.partially_decoded:
            return self._malformed_objects.is_ahead_of(version.key, version.resource_version)
        store = self._control.cluster.store_of(self._kinds[resource])
        if not store.knows(version.key, version.uid, version.resource_version):
            return False
        known = store.get(version.key)
        if known is not None and version == ObjectVersion.of(known.metadata):
            self._control.apply(source, known)  # others see it by now: a pod may wait for that
        self._audit.saw(resource, version.resource_version)
        return True

    def _correct(self, claim: Object) -> None:
        """A good version of a malformed claim has come. It counts if it was taken in, perhaps without its bulk."""
        control, known = self._control, self._control.cluster.claims.get(claim.key)
        is_taken_in = known is not None and ObjectVersion.of(known.metadata) == ObjectVersion.of(claim.metadata)
        if is_taken_in and self._malformed_objects.corrected(claim.key, claim.metadata.uid):
            control.look_again()  # it may hold less than before


def _kept(change: Change, obj: Object) -> dict[str, Any] | None:
    """Return the object as the server sent it if the operator may soon write it as a whole, with its changes.

    It is a second decoding, so a pod whose claims are recorded already has an empty one: only that it came counts.
    """
    match obj:
        case Pod():
            if any(entry.resource_claim_template_name is not None for entry in obj.spec.resource_claims or ()):
                return change.object() if obj.status.resource_claim_statuses is None else {}
        case ResourceClaim() if obj.metadata.deletion_timestamp is not None:
            return change.object()
    return None


NEEDED_LOOK_SECONDS = 5.0  # seconds between two looks for a kind without which claims cannot be handled
OTHER_LOOK_SECONDS = 60.0  # the same for others

SINCE = "Kubernetes 1.34 serves it, 1.32 and 1.33 with --runtime-config=resource.k8s.io/v1beta1=true"
OPTIONAL = {
    DEVICE_TAINT_RULES: (
        "1.37 serves it, 1.36 with --runtime-config=resource.k8s.io/v1beta2=true, 1.33 to 1.35 with v1alpha3"
    ),
    RESOURCE_POOL_STATUS_REQUESTS: "1.36 with --runtime-config=resource.k8s.io/v1alpha3=true",
    POD_GROUPS: (
        "1.37 with --runtime-config=scheduling.k8s.io/v1beta1=true, 1.36 with v1alpha2, and the gate GenericWorkload"
    ),
}
"""Kinds that are watched with a feature gate only, and the versions of Kubernetes that serve them."""

Load = Callable[[Iterable[Object]], None]


@dataclass(slots=True)
class Loader:
    """Lists kinds into a cache: at start every kind that the server serves, later the kinds that it serves since.

    ``served`` has the version in which the server serves each kind. ``loaded`` is called with a kind that is in the
    cache, and the resourceVersion of its list.
    """

    api: Api
    kinds: Kinds
    load: Load
    malformed_objects: MalformedObjects
    loaded: Callable[[Resource, str], None] = lambda _, __: None
    keep: Callable[[Object], Object] = without_bulk
    """What is kept of each object of a list, before the next one is read."""
    served: dict[Resource, str] = field(default_factory=dict)
    _forbidden: set[Resource] = field(default_factory=set)

    def missing(self) -> list[Resource]:
        """The kinds that the server has not served so far."""
        return [resource for resource in self.kinds if resource not in self.served]

    def unseen_storage(self) -> tuple[str, ...]:
        """The kinds of storage among them: not served, or not to us."""
        return tuple(str(resource) for resource in self.missing() if resource in OF_STORAGE)

    async def load_all(self) -> None:
        """Hand everything that exists to ``load``. Raises KubeError."""
        await self._load_missing()
        missing = [str(resource) for resource in self.missing() if resource in REQUIRED]
        if missing:
            logger.warning(
                "the API server does not serve %s; no claim is handled until it does (%s); looking again every %g s",
                ", ".join(missing),
                SINCE,
                NEEDED_LOOK_SECONDS,
            )
        for resource in OPTIONAL.keys() & set(self.missing()):
            logger.warning(
                "the API server does not serve %s, for which a feature gate is on; they have no effect until it does "
                "(Kubernetes %s)",
                resource,
                OPTIONAL[resource],
            )

    async def look_for_missing(self, found: Callable[[], None]) -> None:
        """Load the kinds that were missing when the server has them; ``found`` is called each time.

        A failure is logged when its words change.
        """
        told = ""
        while missing := self.missing():
            await asyncio.sleep(NEEDED_LOOK_SECONDS if REQUIRED.intersection(missing) else OTHER_LOOK_SECONDS)
            try:
                new = await self._load_missing()
            except KubeError as error:
                if gist(str(error)) != told:
                    logger.warning("cannot look for %s: %s", ", ".join(map(str, missing)), error)
                told = gist(str(error))
                continue
            told = ""
            if new:
                logger.info("the API server serves %s now", ", ".join(map(str, new)))
                found()

    async def _load_missing(self) -> list[Resource]:
        versions = await self._look_up(self.missing())
        objects: list[Object] = []
        lists: dict[Resource, str] = {}
        for resource in list(versions):
            try:
                listed = await self.api.list_as(resource, self.kinds[resource], keep=self.keep)
            except Forbidden as error:
                self._do_without(resource, error)
                del versions[resource]
                continue
            objects += listed.items
            lists[resource] = listed.resource_version
            for raw, fault in listed.malformed:
                self.malformed_objects.take(resource, raw, fault)
        self.load(objects)  # all at once: slices without their claims would offer devices that are taken
        self.served |= versions
        for resource, revision in lists.items():
            self.loaded(resource, revision)
        return list(versions)

    def _do_without(self, resource: Resource, error: Forbidden) -> None:
        """Warn once of a kind of storage or of Kueue that we may not see, and look again later; others are needed."""
        if resource not in OF_STORAGE and resource not in OF_KUEUE:
            raise error
        if resource not in self._forbidden:
            self._forbidden.add(resource)
            who = "pods that use PersistentVolumeClaims" if resource in OF_STORAGE else "Workloads of Kueue"
            logger.warning("%s wait: %s", who, error)

    async def _look_up(self, resources: Collection[Resource]) -> dict[Resource, str]:
        found: dict[Resource, str] = {}
        for resource in resources:
            try:
                found[resource] = await self.api.version_of(resource)
            except NotServed:
                continue
        group = {resource for resource in self.kinds if resource.group == RESOURCE_CLAIMS.group}
        if any(resource in REQUIRED for resource in group - found.keys() - self.served.keys()):
            return {resource: version for resource, version in found.items() if resource not in group}
        return found
