"""Takes in what lists and watches bring: the first list of each kind, and then each change.

``Loader`` lists every kind before the first decision, all at once: slices without their claims would offer devices that
are taken. ``Intake.take`` takes in each later change. An echo costs no more than a look at its metadata: the operator
wrote that version itself and has it from the answer, or a list had it. Other objects are decoded one at a time,
straight into the structs that the cache keeps; large ones lose their unread parts before the next one is looked at.
Malformed objects are kept apart (``malformed``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dra_api.codec import brief
from dra_api.core import Pod
from dra_api.meta import Object, ObjectVersion
from dra_api.resource import ResourceClaim
from dra_kube import (
    DEVICE_TAINT_RULES,
    POD_GROUPS,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    Api,
    Change,
    Forbidden,
    KubeError,
    NotServed,
    Resource,
)

from dra_operator.cache import Source, without_bulk
from dra_operator.controllers import Control
from dra_operator.scheduling.state import BULKY_BYTES

from .audit import Audit
from .kind_table import OF_KUEUE, OF_STORAGE, Kinds
from .kinds import REQUIRED
from .malformed import MalformedObjects

logger = logging.getLogger(__name__)

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
            logger.info("%s %s was deleted without an event", resource.kind, version.key)
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
                if str(error) != told:
                    logger.warning("cannot look for %s: %s", ", ".join(map(str, missing)), error)
                told = str(error)
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
