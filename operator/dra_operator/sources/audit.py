"""Lists that are asked for beside the watches: audits, and the last look before a pod is bound to contested devices.

``Audit`` finds deletions that no event reported, and a server that went back in time. Kopf lists a kind again when its
watch fell too far behind (410), and never reports what was deleted in between. So when a watch begins or its
resourceVersion is refused, and at long intervals, the audit lists what exists (versions only) and removes all else from
the cache, except objects newer than that list. It repeats a failed audit until it succeeds, at once when a watch
begins.

A list is never older than what was seen before the request, unless the server was restored from a backup. Then
resourceVersions start again from a lower one, and every change would be dropped as old: the audit calls ``restored``,
and the cache is built again. Where other writers have raised the resourceVersion above the one before the restore,
single objects tell: one has an older version than the cache, or is there again after its deletion, or a pod has the
same version as before a binding that was answered.

``LastLook`` looks at the claims before pods are bound to devices that another scheduler allocates as well. The watch of
claims does not say whether it is broken or late. So pods whose drivers are shared wait for a look that began after
their grace (``other_schedulers`` says why that is enough). One look serves all waiting pods. A failed one is repeated.
A cluster without another scheduler is never looked at.

Only claims that another scheduler's pods use can be allocated by it, so a look reads the namespaces of these pods, and
of each no more than the names and states of its claims: claims may have 1.4 MB each, and any tenant may make hundreds
of them and a pod that names another scheduler. It reads a whole claim only if the server has it allocated and the cache
has not, or if a pod without a node could have had it allocated anew. While the watch of pods is known to be broken,
pods of another scheduler may come unseen: then all claims are listed. A tenant may have thousands of large ones, so a
watch that begins, or breaks for a moment, is waited for instead.

Looks take a fifth of the time at most: the next one waits ``REST_FACTOR`` times as long as the last one took, and at
most ``LONGEST_REST_SECONDS``. What takes longer than ``LATE_LOOK_SECONDS`` is said by the pods that wait for it, by
``/readyz``, and in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

from dra_api.codec import DecodeError, convert
from dra_api.meta import ObjectVersion
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Api, KubeError, NotFound, Resource

from dra_operator import wording
from dra_operator.cache import Source, Store, any_claim, revision, without_bulk
from dra_operator.controllers import Control

from .kind_table import Kinds
from .malformed import MalformedObjects

logger = logging.getLogger(__name__)

AUDIT_GAP_SECONDS = 2.0  # seconds between two audits of one kind
UNSEEN_ENDS_SECONDS = 0.5  # seconds in which ends that no event reported are collected for one line
AUDIT_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds until a failed audit is repeated, the last one for ever


class Audit:
    """``call`` asks for an audit of one kind; ``saw`` takes every resourceVersion; ``run`` audits until cancelled.

    Every kind is audited after ``interval`` seconds.
    """

    def __init__(
        self,
        api: Api,
        control: Control,
        malformed_objects: MalformedObjects,
        kinds: Kinds,
        restored: Callable[[str], None],
        interval: float,
    ) -> None:
        self._api, self._control, self._malformed_objects, self._kinds = api, control, malformed_objects, kinds
        self._restored, self._interval = restored, interval
        self._calls = {resource: asyncio.Event() for resource in kinds}
        self._newest: dict[Resource, int] = {}
        self._served: set[Resource] = set()
        self._unseen_ends: dict[Resource, list[str]] = {}
        """Keys of the objects whose end no event reported, until that is logged."""

    def call(self, resource: Resource) -> None:
        """Ask for an audit: an event of the kind may have been missed."""
        self._calls[resource].set()

    def loaded(self, resource: Resource, version: str) -> None:
        """The cache has the kind as of a list of this resourceVersion."""
        self._served.add(resource)
        self.saw(resource, version)

    def saw(self, resource: Resource, version: str) -> None:
        """The server has come at least that far."""
        self._newest[resource] = max(revision(version) or 0, self._newest.get(resource, 0))

    def ended_unseen(self, resource: Resource, key: str) -> None:
        """Log that an object was deleted without an event, in one line with others: there may be thousands."""
        ends = self._unseen_ends.setdefault(resource, [])
        if not ends:
            asyncio.get_running_loop().call_later(UNSEEN_ENDS_SECONDS, self._tell_ends, resource)
        ends.append(key)

    def _tell_ends(self, resource: Resource) -> None:
        ends = self._unseen_ends.pop(resource)
        many = f" ({len(ends)} objects)" if len(ends) > 1 else ""
        logger.info("%s deleted without an event%s: %s", resource, many, wording.listed(ends))

    async def run(self) -> None:
        """Audit until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep(), name="audit")
            for resource in self._kinds:
                group.create_task(self._keep(resource), name=f"audit of {resource}")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            for resource in self._served:
                self.call(resource)
            self._control.look_again()

    async def _keep(self, resource: Resource) -> None:
        while True:
            await self._calls[resource].wait()
            self._calls[resource].clear()
            for pause in _pauses():
                if await self._compare(resource):
                    break
                await asyncio.sleep(min(pause, AUDIT_GAP_SECONDS))
                await self._called_within(resource, pause - AUDIT_GAP_SECONDS)
            await asyncio.sleep(AUDIT_GAP_SECONDS)

    async def _called_within(self, resource: Resource, seconds: float) -> None:
        """Wait so long at most: a watch that begins says that the server is back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._calls[resource].wait()
        self._calls[resource].clear()

    async def _compare(self, resource: Resource) -> bool:
        """Compare the cache with the server; whether that succeeded."""
        store = self._control.cluster.store_of(self._kinds[resource])
        newest, deleted = max(self._newest.get(resource, 0), _newest_in(store)), frozenset(store.deleted)
        bound = set(self._control.cluster.bound)
        try:
            listed, at = await self._api.list_versions(resource)
        except KubeError as error:
            logger.debug("audit of %s postponed: %s", resource, error)
            return False
        bound &= self._control.cluster.bound  # without those that an event has shown with their node meanwhile
        if (revision(at) or newest) < newest:
            self._restored(f"its {resource} are at resourceVersion {at}, after {newest}")
            return True
        if back := next((it for it in listed if it.uid in deleted or _is_undone(it, store, at, bound)), None):
            self._restored(f"{resource.kind} {back.key} is at resourceVersion {back.resource_version} again")
            return True
        self.saw(resource, at)
        present = {it.key: it.uid for it in listed}
        self._remove_others(resource, present, at)
        return True

    def _remove_others(self, resource: Resource, present: dict[str, str], at: str) -> None:
        kind = self._kinds[resource]
        for obj in list(self._control.cluster.store_of(kind)):
            uid = obj.metadata.uid
            if present.get(obj.key) != uid and _is_older(obj.metadata.resource_version, at):
                self.ended_unseen(resource, obj.key)
                self._control.delete(Source.AUDIT, kind, obj.key, uid)
        if resource == RESOURCE_CLAIMS:
            for key, claim in list(self._malformed_objects.partially_decoded.items()):
                if present.get(key) != claim.uid and _is_older(claim.resource_version, at):
                    self._malformed_objects.deleted(key, claim.uid)


def _pauses() -> Iterator[float]:
    yield from AUDIT_RETRY_SECONDS
    while True:
        yield AUDIT_RETRY_SECONDS[-1]


def _newest_in(store: Store[Any]) -> int:
    """The newest version in the cache: it may be an answer to a write of ours, which no watch has brought."""
    return max((revision(obj.metadata.resource_version) or 0 for obj in store), default=0)


def _is_undone(version: ObjectVersion, store: Store[Any], at: str, bound: Collection[str]) -> bool:
    """Whether a list made at this version has an older version of the object than it should have.

    ``bound`` are pods whose binding was answered before, and that no event has shown with their node.
    """
    known = store.get(version.key)
    listed = revision(version.resource_version)
    seen = revision(known.metadata.resource_version) if known is not None else None
    if seen is None or listed is None:
        return False
    return listed < seen <= (revision(at) or 0) or (listed == seen and version.uid in bound)


def _is_older(version: str, at: str) -> bool:
    seen, listed = revision(version), revision(at)
    return seen is not None and listed is not None and seen <= listed


LIST_PAUSE_SECONDS = 0.1  # seconds between two looks, at least; or after a failed one, ten times as many
REST_FACTOR = 4.0
LONGEST_REST_SECONDS = 2.0
LATE_LOOK_SECONDS = 5.0
BLIND_SECONDS = 1.0  # a look waits so long for watches that are not open
REMEMBERED_SECONDS = 60.0  # a namespace is looked at so long after the last pod of another scheduler was seen there
_WARNING_GAP_SECONDS = 60.0
_MOST_NAMED_NAMESPACES = 3
_COLUMNS = ("Name", "State")


class LastLook:
    """``run`` until cancelled."""

    def __init__(self, api: Api, control: Control, malformed_objects: MalformedObjects) -> None:
        self._api, self._control, self._malformed_objects = api, control, malformed_objects
        self._namespaces: dict[str, float] = {}
        """Where pods of another scheduler were seen, and when last."""
        self._error = ""
        """Of the last look, since pods have waited."""
        self._warned_at = -_WARNING_GAP_SECONDS

    async def run(self) -> None:
        """Look when a pod waits for it."""
        time, wanted = asyncio.get_running_loop().time, self._control.conflict_check.asked
        waiting_since = None
        while True:
            await wanted.wait()
            waiting_since = time() if waiting_since is None else waiting_since
            late = asyncio.get_running_loop().call_at(
                max(time(), waiting_since + LATE_LOOK_SECONDS), self._tell, waiting_since
            )
            try:
                is_blind = await self._is_blind()
                wanted.clear()  # whoever asked meanwhile is served as well
                began = time()
                await (self._take_in_all() if is_blind else self._look(began))
            except KubeError as refused:
                self._error = str(refused)
                logger.debug("look at claims postponed: %s", refused)
                await asyncio.sleep(10 * LIST_PAUSE_SECONDS)
                wanted.set()
            else:
                late.cancel()  # or it would be told in the pause below, and stand until the next look
                waiting_since, self._error = None, ""
                self._control.conflict_check.obstacle = ""
                self._control.listed(began)
                await asyncio.sleep(min(max(LIST_PAUSE_SECONDS, REST_FACTOR * (time() - began)), LONGEST_REST_SECONDS))
            finally:
                late.cancel()

    def _tell(self, since: float) -> None:
        """Pods have waited for a look for too long."""
        now, error = asyncio.get_running_loop().time(), self._error
        named = sorted(self._namespaces)[:_MOST_NAMED_NAMESPACES]
        more = len(self._namespaces) - len(named)
        where = f" in namespace {', '.join(named)}{f' and {more} more' if more else ''}" if named else ""
        why = f"the API server does not say in time which claims{where} another scheduler has allocated"
        remedy = (
            "see whether very large or very many claims are stored there, whether the API server is overloaded, "
            "and whether its etcd is older than 3.5.13"
        )
        self._control.conflict_check.obstacle = f"{why}{f' ({error})' if error else ''}; {remedy}; retrying"
        if now - self._warned_at >= _WARNING_GAP_SECONDS:
            self._warned_at = now
            logger.warning(
                "pods with devices that another scheduler allocates as well wait for %.0f s to be bound: %s%s; %s",
                now - since,
                why,
                f" ({error})" if error else "",
                remedy,
            )

    async def _look(self, now: float) -> None:
        self._namespaces |= dict.fromkeys(self._control.cluster.shared_drivers.namespaces(), now)
        for namespace, seen in list(self._namespaces.items()):
            if now - seen > REMEMBERED_SECONDS:
                del self._namespaces[namespace]
                continue
            for name, state in await self._api.rows(RESOURCE_CLAIMS, namespace, _COLUMNS):
                if "allocated" in state and self._may_be_news(f"{namespace}/{name}"):
                    await self._read(name, namespace)

    async def _is_blind(self) -> bool:
        """Whether pods of another scheduler may come unseen, not only for a moment."""
        for _ in range(round(BLIND_SECONDS / LIST_PAUSE_SECONDS)):
            if self._control.sees_others:
                return False
            await asyncio.sleep(LIST_PAUSE_SECONDS)
        return not self._control.sees_others

    def _may_be_news(self, key: str) -> bool:
        """Whether an allocated claim may have other devices than the cache knows."""
        cluster = self._control.cluster
        known = cluster.claims.get(key)
        if known is None or known.status.allocation is None:
            return key not in self._malformed_objects.partially_decoded
        keys = (key, any_claim(key.partition("/")[0])) if cluster.pods_aside else (key,)
        users = (cluster.pods.get(user) for it in keys for user in cluster.pods_by_claim.keys(it))
        return any(
            pod is not None
            and pod.spec.scheduler_name != cluster.scheduler_name
            and not pod.spec.node_name
            and not pod_is_done(pod)
            for pod in users
        )

    async def _read(self, name: str, namespace: str) -> None:
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, name, namespace)
        except NotFound:
            return
        try:
            claim = convert(ResourceClaim, raw)
        except DecodeError as error:
            self._malformed_objects.take(RESOURCE_CLAIMS, raw, error)
        else:
            self._take_in(without_bulk(claim))

    async def _take_in_all(self) -> None:
        async for page in self._api.pages_as(RESOURCE_CLAIMS, ResourceClaim, keep=without_bulk):
            for raw, error in page.malformed:
                self._malformed_objects.take(RESOURCE_CLAIMS, raw, error)
            for claim in page.items:
                self._take_in(claim)

    def _take_in(self, claim: ResourceClaim) -> None:
        """The devices of a partially decoded claim count already; the watch says when it is corrected."""
        if claim.key not in self._malformed_objects.partially_decoded:
            self._control.apply(Source.CONFLICT_CHECK, claim)
