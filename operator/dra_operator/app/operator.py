"""The running operator: connection, view, reconcilers; started once, fed by Kopf, stopped once.

Our own LIST of every kind is the sync barrier: decisions start when it is complete (CC-01). What Kopf lists and
watches afterwards is dropped by resourceVersion where it is no news. A restart of Kopf does not touch any of this.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import uuid
from dataclasses import dataclass, field
from typing import Any

from dra_api.codec import DecodeError, convert
from dra_kube import Api, Connection, Resource
from dra_kube.versions import from_served
from prometheus_client import CollectorRegistry

from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cluster import SCHEDULER_NAME, Cluster
from dra_operator.reconcile import Control

from .audit import Audit
from .language import CelSelectors
from .loading import load_all
from .malformed import Quarantine
from .watched import WATCHED

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator may be told. ``check_invariants`` costs time in big clusters."""

    scheduler_name: str = SCHEDULER_NAME
    features: Features = field(default_factory=Features)
    check_invariants: bool = False


class Operator:
    """One operator on one API server. ``start`` and ``stop`` must run in the same event loop."""

    def __init__(self, options: Options | None = None, registry: CollectorRegistry | None = None) -> None:
        self.options = options or Options()
        self.registry = registry or CollectorRegistry()
        self._served: dict[Resource, str] = {}
        self._api: Api | None = None
        self._control: Control | None = None
        self._audit: Audit | None = None
        self._task: asyncio.Task[None] | None = None
        self._quarantine = Quarantine()

    async def start(self, connection: Connection) -> None:
        """Connect, list everything, start to work. Raises KubeError when the server cannot be used."""
        api = await Api(connection).__aenter__()
        try:
            await api.raw_get("/version")
            control = self._make_control(api)
            self._served = await load_all(api, control.load, self._quarantine)
        except BaseException:
            await api.__aexit__(None, None, None)
            raise
        settle_memory()
        self._api, self._control, self._audit = api, control, Audit(api, control)
        self._task = asyncio.create_task(self._work(control, self._audit), name="operator")
        await control.started()
        cluster = control.cluster
        counts = (len(cluster.nodes), len(cluster.slices), len(cluster.claims), len(cluster.pods))
        logger.info("in sync: %d nodes, %d slices, %d claims, %d pods", *counts)

    def _make_control(self, api: Api) -> Control:
        inventory = Inventory(self.options.features, language=CelSelectors(self.options.features))
        cluster = Cluster(inventory, scheduler_name=self.options.scheduler_name)
        allocator = Allocator(inventory, new_share_id=lambda: str(uuid.uuid4()))
        checks = self.options.check_invariants
        return Control(cluster, api, allocator, registry=self.registry, check_invariants=checks)

    async def stop(self) -> None:
        """Stop to work and disconnect; what is half done is finished by the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        if self._api is not None:
            await self._api.__aexit__(None, None, None)
            self._api = None

    async def ended(self) -> None:
        """Wait until the reconcilers end, which they do only by ``stop`` or by a failure, which is logged."""
        if self._task is None:
            return
        await asyncio.wait((self._task,))
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.critical("the reconcilers failed", exc_info=error)

    @property
    def is_running(self) -> bool:
        """Whether the reconcilers are at work."""
        return self._task is not None and not self._task.done()

    @property
    def control(self) -> Control:
        """The reconcilers; only between ``start`` and ``stop``."""
        if self._control is None:
            raise RuntimeError("the operator was not started")
        return self._control

    def served_version(self, resource: Resource) -> str | None:
        """The version in which the server has the kind; None if it has none. Known after ``start``."""
        return self._served.get(resource)

    def received(self, resource: Resource, version: str, event_type: str | None, raw: dict[str, Any]) -> None:
        """A watch event, or with type None an item of a list that Kopf made."""
        if event_type is None and self._audit is not None:
            self._audit.relisted(resource)
        if event_type == "DELETED":
            meta = raw["metadata"]
            name, namespace = meta["name"], meta.get("namespace")
            self.control.remove(WATCHED[resource], f"{namespace}/{name}" if namespace else name, meta.get("uid"))
            return
        try:
            obj = convert(WATCHED[resource], from_served(resource, version, raw))
        except (DecodeError, ValueError, KeyError, TypeError) as error:
            self._quarantine.tell(resource, raw, error)
            return
        self.control.put(obj)

    async def _work(self, control: Control, audit: Audit) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(control.run(), name="reconcilers")
            group.create_task(audit.run(), name="audit")


def settle_memory() -> None:
    """What was listed lives as long as the process: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
