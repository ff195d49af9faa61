"""Looks at the claims before pods are bound to devices that another scheduler allocates as well.

The watch of claims does not say whether it is broken or late. So pods whose drivers are shared wait until the cache
has what a look has shown that began after their grace (``conflict_check`` says why that is enough). One look serves all
pods that wait. A failed one is repeated. A cluster without another scheduler is never looked at.

Only claims that another scheduler's pods use can be allocated by it, so a look reads the namespaces of these pods, and
of each no more than the names and states of its claims: claims may have 1.4 MB each, and any tenant may make hundreds
of them and a pod that names another scheduler. It reads a whole claim only if the server has it allocated and the cache
has not, or if a pod without a node could have had it allocated anew. While the watch of pods is known to be broken,
pods of another scheduler may come unseen: then all claims are listed.

Looks take a fifth of the time at most: the next one waits ``REST_FACTOR`` times as long as the last one took, and at
most ``LONGEST_REST_SECONDS``. What takes longer than ``LATE_LOOK_SECONDS`` is said by the pods that wait for it, by
``/readyz``, and in the log.
"""

from __future__ import annotations

import asyncio
import logging

from dra_api.codec import DecodeError, convert
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Api, KubeError, NotFound

from dra_operator.cache import Source, without_bulk
from dra_operator.controllers import Control

from .malformed import MalformedObjects

logger = logging.getLogger(__name__)

LIST_PAUSE_SECONDS = 0.1  # seconds between two looks, at least; or after a failed one, ten times as many
REST_FACTOR = 4.0
LONGEST_REST_SECONDS = 2.0
LATE_LOOK_SECONDS = 5.0
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
        time, wanted = asyncio.get_running_loop().time, self._control.wants_list
        waiting_since = None
        while True:
            await wanted.wait()
            wanted.clear()
            began = time()
            waiting_since = began if waiting_since is None else waiting_since
            late = asyncio.get_running_loop().call_at(
                max(began, waiting_since + LATE_LOOK_SECONDS), self._tell, waiting_since
            )
            try:
                await self._look(began)
            except KubeError as refused:
                self._error = str(refused)
                logger.debug("look at claims postponed: %s", refused)
                await asyncio.sleep(10 * LIST_PAUSE_SECONDS)
                wanted.set()
            else:
                late.cancel()  # or it would be told in the pause below, and stand until the next look
                waiting_since, self._error = None, ""
                self._control.list_is_late("")
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
        remedy = "see whether very large or very many claims are stored there, and whether the API server is overloaded"
        self._control.list_is_late(f"{why}{f' ({error})' if error else ''}; {remedy}; retrying")
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
        if not self._control.sees_others:
            await self._take_in_all()
            return
        self._namespaces |= dict.fromkeys(self._control.cluster.shared_drivers.namespaces(), now)
        for namespace, seen in list(self._namespaces.items()):
            if now - seen > REMEMBERED_SECONDS:
                del self._namespaces[namespace]
                continue
            for name, state in await self._api.rows(RESOURCE_CLAIMS, namespace, _COLUMNS):
                if "allocated" in state and self._may_be_news(f"{namespace}/{name}"):
                    await self._read(name, namespace)

    def _may_be_news(self, key: str) -> bool:
        """Whether an allocated claim may have other devices than the cache knows."""
        cluster = self._control.cluster
        known = cluster.claims.get(key)
        if known is None or known.status.allocation is None:
            return key not in self._malformed_objects.partially_decoded
        users = (cluster.pods.get(user) for user in cluster.pods_by_claim.keys(key))
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
