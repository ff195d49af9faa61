"""Keeps the ResourceSlices of a driver in the API server as the driver wants them.

It watches, decides with ``plan_pool`` and has the writes carried out, one pool at a time.
A plugin has one for its node; a control plane for network-attached devices uses it by itself::

    async with SlicePublisher(api, "net.example.com", on_error=report) as publisher:
        publisher.publish({"rack-1": Pool.of(devices, all_nodes=True)})

Published slices stay when the publisher ends. Pools of thousands of devices are compared in a thread, so that the calls
of the kubelet are answered meanwhile. Spec: plugin-helper.md section 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from dra_api.releases import NEWEST, Release, release_of
from dra_api.values import now
from dra_kube import EVENTS, Api, ApiError, Forbidden, KubeError, NotFound, Resource

from dra_kubeletplugin.errors import (
    ContestedPool,
    DroppedFields,
    PoolInvalid,
    PoolRefused,
    Recoverable,
    SyncFailed,
    WatchFailed,
    with_remedy,
)
from dra_kubeletplugin.slices.plan import in_form_of
from dra_kubeletplugin.slices.writer import follow_slices

from .model import Owner, Pool, Resources, Slice, check_type
from .plan import Plan, Publication, Stored, Write, plan_pool, stay_in_place
from .pool_sync import DesiredPool, NextPublish, PoolCounters, Reason, disabled_features
from .writer import RateLimit, SliceView, SliceWriter, Statistics, stored, text_at

log = logging.getLogger(__name__)

_SOON_SECONDS = 0.5
_RESTORE_SOON_SECONDS = 60.0
_PERMISSION_LOOK_SECONDS = 1.0
_CONTEST_SECONDS = 600.0  # between two reports of the same contest
_EVENT_SECONDS = 5.0
_MINUTE_SECONDS = 60.0
_MANY_CHANGES = 60  # within a minute; hardware that comes and goes is looked at once a second at most
_SELF_REVIEWS = Resource("authentication.k8s.io", ("v1",), "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
MOST_EVENT_LETTERS = 1024
"""The API server takes no longer message of an event."""
_POD = "authentication.kubernetes.io/pod"


class _Superseded(Exception):
    """A newer instance publishes."""


class SlicePublisher:
    """Publishes pools; an async context manager.

    Without ``owner`` nothing but an administrator removes the slices. With a Node as owner they are local to that
    node, unless ``reconcile_pool`` names the one pool that this publisher is responsible for (RS-05).
    ``sync_delay`` is how many seconds a pool must have been quiet before foreign changes are undone,
    ``overlay_seconds`` how long our own writes override the watch; ``rate`` and ``burst`` how many requests per second,
    and how many at once, the publisher sends. While ``may_publish`` says no, as to the older instance of a rolling
    update, nothing is written; what is due then is written afterwards.
    """

    def __init__(  # noqa: PLR0913  # each is named by the caller, and has a default
        self,
        api: Api,
        driver: str,
        *,
        owner: Owner | None = None,
        reconcile_pool: str = "",
        on_error: Callable[[Recoverable, str], None] = lambda error, message: log.warning("%s: %s", message, error),
        sync_delay: float = 30.0,
        overlay_seconds: float = 60.0,
        rate: float = 50.0,
        burst: int = 100,
        may_publish: Callable[[], bool] = lambda: True,
    ) -> None:
        self._api = api
        self._driver = driver
        self._owner = owner
        self._node = owner.name if owner and owner.is_node else ""
        self._node_name = "" if reconcile_pool else self._node
        self._reconcile_pool = reconcile_pool
        self._on_error = on_error
        self._sync_delay = sync_delay
        self._overlay_seconds = overlay_seconds
        self._may_publish = may_publish
        self._desired: dict[str, DesiredPool] = {}
        self._ever_wanted: set[str] = set()
        self._problems: dict[str, Recoverable] = {}
        self._stored: dict[str, DesiredPool] = {}
        """The API server's version of each pool at its last synchronisation; empty while another plugin may publish."""
        self._changes: dict[str, tuple[float, int]] = {}
        """The start of a minute for each pool, and how often it was published with other content since."""
        self._contested: dict[str, float] = {}
        """Time of the last report of a contest, by pool."""
        self._view = SliceView(overlay_seconds)
        self._next_publish = NextPublish()
        self._rate_limit = RateLimit(rate, burst)
        self._writer = SliceWriter(api, self._view, self._rate_limit)
        self._release: Release | None = None
        """The release of the API server, read when a pool has counters."""
        self._restore_soon_until = 0.0
        self.has_settled = False
        """Whether ``settled`` would once have returned after a ``publish``."""
        self._listed = asyncio.Event()
        self._wished = asyncio.Event()
        self._wake = asyncio.Event()
        self._unsettled: set[str] = set()
        self._progress = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        follow = follow_slices(
            self._api,
            f"spec.driver={self._driver},spec.nodeName={self._node_name}",
            on_list=self._relisted,
            on_event=self._changed,
            on_error=self._watch_failed,
            of_a_controller=not self._node,
        )
        self._tasks = [asyncio.create_task(follow), asyncio.create_task(self._work())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def publish(self, resources: Resources) -> None:
        """Publish a copy of these pools and remove all others. Errors go only to ``on_error`` and ``problems``.

        Raises TypeError unless it gets a dict of pools by name.
        """
        check_type(resources)
        if self._reconcile_pool and (others := resources.keys() - {self._reconcile_pool}):
            names = ", ".join(sorted(others))
            error = PoolInvalid(f"only the pool {self._reconcile_pool} may be published, not {names}")
            self._report(error, "the resources were rejected")
            return
        before, self._desired = self._desired, {name: DesiredPool(name, pool) for name, pool in resources.items()}
        self._ever_wanted |= resources.keys()
        affected = set(before.keys() - resources.keys())
        for name, desired in self._desired.items():
            if desired.same(before.get(name)):
                self._desired[name] = before[name]
            else:
                affected.add(name)
                if name in before:
                    self._count_change(name)
        for name in self._changes.keys() - resources.keys():
            del self._changes[name]
        self._unsettled |= affected
        self._schedule(affected, Reason.DESIRED, 0.0)
        self._wished.set()

    def _count_change(self, name: str) -> None:
        """Warn of a driver that publishes something else all the time: each write wakes the pods that wait."""
        now = self._now()
        began, count = self._changes.get(name, (now, 0))
        if now - began > _MINUTE_SECONDS:
            began, count = now, 0
        self._changes[name] = began, count + 1
        if count + 1 == _MANY_CHANGES:
            log.warning(
                'pool "%s" was published with other devices %d times within a minute, each with writes: '
                "publish what a device is, and use metrics for a load or a temperature",
                name,
                _MANY_CHANGES,
            )

    def restore_soon(self) -> None:
        """For a minute undo foreign changes within a second: a kubelet that starts removes all slices of its node, and
        is ready for them again when it has registered the plugin."""
        self._restore_soon_until = self._now() + _RESTORE_SOON_SECONDS
        if self._listed.is_set():
            self._foreign(self._desired.keys())

    @property
    def statistics(self) -> Statistics:
        """Slices written so far."""
        return self._writer.statistics

    @property
    def problems(self) -> Mapping[str, Recoverable]:
        """By pool, why it is not in the API server as it was published; empty if all are."""
        return dict(self._problems)

    def offers(self, pool: str, device: str) -> bool:
        """Whether the device is published: False if its pool is published without it, or was withdrawn.

        A pool that was never published here may have any device: a controller may publish it for several nodes.
        What was published last counts, even before it is written; a pool that cannot be written keeps its devices.
        """
        desired = self._desired.get(pool)
        if desired is None:
            return pool not in self._ever_wanted
        return desired.devices is None or device in desired.devices or pool in self._problems

    def counters(self, pool: str) -> PoolCounters | None:
        """The counters of a pool as it was published last, or None if it was not, or they cannot be told."""
        desired = self._desired.get(pool)
        return desired.counters if desired else None

    async def settled(self) -> None:
        """Wait until the pools published last are in the API server, or were reported as invalid or refused."""
        async with self._progress:
            await self._progress.wait_for(lambda: self._listed.is_set() and not self._unsettled)

    # --- what the watch reports ---

    async def _relisted(self, objects: list[dict[str, Any]], resource_version: str) -> None:
        ours = list(filter(self._is_ours, objects))
        items = await asyncio.to_thread(lambda: list(map(stored, ours)))
        self._view.replace(items, resource_version)
        pools = self._view.pools(self._now()) | self._desired.keys()
        if self._listed.is_set():
            self._foreign(pools)
        else:
            self._schedule(pools, Reason.DESIRED, 0.0)
            self._listed.set()

    def _changed(self, event: str, obj: dict[str, Any]) -> None:
        if self._is_ours(obj):
            self._foreign({self._view.see(event, obj)})

    def _foreign(self, pools: Iterable[str]) -> None:
        now = self._now()
        soon = now < self._restore_soon_until
        for pool in pools:
            self._next_publish.changed(pool, now, min(_SOON_SECONDS, self._sync_delay) if soon else self._sync_delay)
        self._wake.set()

    def _watch_failed(self, error: WatchFailed) -> None:
        self._report(error, "watching ResourceSlices")

    def _report(self, error: Recoverable, message: str) -> None:
        try:
            self._on_error(error, message)
        except Exception:
            log.exception("the error handler failed on: %s: %s", message, error)

    def _is_ours(self, obj: dict[str, Any]) -> bool:
        return not self._reconcile_pool or text_at(obj, "spec", "pool", "name") == self._reconcile_pool

    # --- the worker ---

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _schedule(self, pools: Iterable[str], reason: Reason, delay: float) -> None:
        moment = self._now() + delay
        for pool in pools:
            self._next_publish.add(pool, reason, moment)
        self._wake.set()

    async def _work(self) -> None:
        await self._wished.wait()  # before the first publish nothing may be deleted
        await self._listed.wait()
        while True:
            await self._permitted()
            for pool in self._next_publish.take(self._now()):
                await self._sync(pool)
            self.has_settled = self.has_settled or not self._unsettled
            async with self._progress:
                self._progress.notify_all()
            try:
                async with asyncio.timeout_at(self._next_publish.next_moment()):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _permitted(self) -> None:
        """Wait until this publisher may write."""
        waits = False
        while not self._may_publish():
            if not waits:
                log.info("a newer instance of driver %s publishes its ResourceSlices; this one waits", self._driver)
            waits = True
            self._stored.clear()  # what a newer instance writes is no contest
            await asyncio.sleep(_PERMISSION_LOOK_SECONDS)
        if waits:
            log.info("no newer instance of driver %s is left; this one publishes again", self._driver)

    def _check_permission(self) -> None:
        """Raise _Superseded if a newer instance has started since the sync began: it has another view by now."""
        if not self._may_publish():
            raise _Superseded

    async def _sync(self, name: str) -> None:
        desired = self._desired.get(name)
        before = self._stored.pop(name, None)
        try:
            await self._bring_about(name, desired, is_stored=before is not None and before is desired)
        except _Superseded:
            self._schedule({name}, Reason.DESIRED, 0.0)
            return
        except PoolInvalid as error:
            self._next_publish.settled(name)
            self._trouble(name, error, "pool validation failed")
        except PoolRefused as error:
            if await self._has_other_release(desired):
                self._schedule({name}, Reason.DESIRED, 0.0)
                return
            self._next_publish.refused(name, self._now())
            self._trouble(name, error, "the API server refused ResourceSlices; retrying in 5 minutes")
        except Exception as error:
            self._failed(name, error)
            return
        else:
            self._next_publish.settled(name)
            self._problems.pop(name, None)
            if desired is not None:
                self._stored[name] = desired
            else:
                self._contested.pop(name, None)
        if self._desired.get(name) is desired:
            self._unsettled.discard(name)

    async def _has_other_release(self, desired: DesiredPool | None) -> bool:
        """Return whether the API server was upgraded, so that it takes counters in another form."""
        before, self._release = self._release, None
        if before is None or desired is None:
            return False
        with suppress(KubeError):
            self._release = await self._server_release()
        return self._release not in (before, None)

    async def _server_release(self) -> Release:
        """Return the release of the API server, or the newest if it may not be known. Raises KubeError."""
        try:
            return release_of(await self._api.raw_get("/version"))[0]
        except (Forbidden, NotFound) as error:
            log.warning("cannot read which release the API server has, and take it for %s: %s", NEWEST, error)
            return NEWEST

    def _failed(self, name: str, error: Exception) -> None:
        if not isinstance(error, KubeError):
            log.exception("synchronising pool %s", name)  # a bug of ours must not end the publishing of others
        failure = SyncFailed(f'pool "{name}": {with_remedy(error, of_a_controller=not self._node)}')
        failure.__cause__ = error
        rest = (error.retry_after if isinstance(error, ApiError) else None) or 0.0
        self._rate_limit.rest(self._now(), rest)
        self._next_publish.failed(name, self._now(), rest)
        self._trouble(name, failure, "publishing ResourceSlices failed and will be retried")

    def _trouble(self, name: str, error: Recoverable, message: str) -> None:
        """A pool is not as it was published."""
        self._problems[name] = error
        self._report(error, message)

    async def _bring_about(self, name: str, desired: DesiredPool | None, *, is_stored: bool) -> None:
        publication = Publication(self._driver, name, self._owner, self._node_name)
        existing = self._view.pool(name, self._now())
        unanswered = self._writer.unanswered.get(name, 0)
        if desired is not None and desired.has_counters and self._release is None:
            self._release = await self._server_release()
        release = self._release or NEWEST
        pool, plan = await asyncio.to_thread(_planned, publication, desired, existing, unanswered, release)
        changed = [item.name for item in (*plan.delete, *(write.stored for write in plan.update)) if item]
        if is_stored and changed and not plan.create:  # missing ones were deleted, as a kubelet that starts does
            self._check_permission()
            await self._tell_of_contest(name, changed)
        for item in plan.delete:
            self._check_permission()
            await self._writer.delete(item)
        if pool is None or desired is None:
            return
        if plan.create:
            publication = replace(publication, owner=await self._writer.with_uid(self._owner))
        for write in (*plan.update, *plan.create):
            self._check_permission()
            kept = await self._writer.write(publication, pool, write)
            self._schedule({name}, Reason.OVERLAY_ENDS, self._overlay_seconds)
            if kept is not None:
                self._dropped(name, desired, pool, write, kept)

    async def _tell_of_contest(self, name: str, slices: list[str]) -> None:
        """Report slices that another client changed while nothing was to be published, if that was not told already.

        A mere deletion is no contest. This comes before the changes are undone: who changes them again may win.
        """
        now = self._now()
        if now - self._contested.get(name, -_CONTEST_SECONDS) < _CONTEST_SECONDS:
            return
        self._contested[name] = now
        contest = ContestedPool(self._driver, name, slices, self._node)
        self._report(contest, "ResourceSlices are contested")
        await self._tell_in_an_event(contest)

    async def _tell_in_an_event(self, contest: ContestedPool) -> None:
        """Write an event about our own pod, where people look who see devices come and go.

        The API server knows the pod by our token. A driver outside of a pod, or without the right, has its log alone.
        """
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                pod = _own_pod(await self._api.create(_SELF_REVIEWS, {"metadata": {}}))
                if pod is None:
                    return
                moment = now()
                body = {
                    "metadata": {"generateName": f"{pod['name']}.", "namespace": pod["namespace"]},
                    "involvedObject": {"apiVersion": "v1", "kind": "Pod", **pod},
                    "type": "Warning",
                    "reason": "ContestedPool",
                    "message": str(contest)[:MOST_EVENT_LETTERS],
                    "source": {"component": self._driver},
                    "reportingComponent": self._driver,
                    "reportingInstance": pod["name"],
                    "firstTimestamp": moment,
                    "lastTimestamp": moment,
                    "count": 1,
                }
                await self._api.create(EVENTS, body)
        except (KubeError, TimeoutError) as error:
            text = "no event says that pool %s is contested: %s; the right to create events in its namespace is enough"
            log.info(text, contest.pool, error or "no answer in time")

    def _dropped(self, name: str, desired: DesiredPool, pool: Pool, write: Write, kept: Slice) -> None:
        """The server stored less: from now on want only that, since it would drop the rest at each update (RS-06)."""
        features = disabled_features(pool.slices[write.index], kept)
        self._report(DroppedFields(name, write.index, features), "publishing ResourceSlices")
        slices = list(desired.pool().slices)
        slices[write.index] = kept
        desired.adopt(replace(pool, slices=tuple(slices)))


def _own_pod(review: Mapping[str, Any]) -> dict[str, str] | None:
    """Return namespace, name and UID of the pod whose token asked, or None for somebody who is no pod."""
    try:
        user = review["status"]["userInfo"]
        _, _, namespace, _ = user["username"].split(":")
        name, uid = (str(user["extra"][f"{_POD}-{field}"][0]) for field in ("name", "uid"))
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return {"namespace": namespace, "name": name, "uid": uid}


def _planned(
    publication: Publication, desired: DesiredPool | None, existing: list[Stored], unanswered: int, release: Release
) -> tuple[Pool | None, Plan]:
    wanted = in_form_of(publication.pool, desired.pool(), release) if desired else None
    pool = stay_in_place(wanted, existing)
    return pool, plan_pool(publication, pool, existing, unanswered)
