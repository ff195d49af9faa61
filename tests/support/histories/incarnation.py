"""One life of the operator's process: from its first list to its end, which it may not see coming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from controllers_world import FEW, TinyLanguage
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_api.scheduling import PodGroup
from dra_api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    Api,
    KubeError,
    Resource,
)
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import ClaimTemplate, Cluster, Source
from dra_operator.controllers import Control, ControlOptions, TimeSettings
from dra_operator.controllers.settings import PreemptionSettings
from dra_operator.sources.audit import Audit, LastLook
from dra_operator.sources.intake import Loader
from dra_operator.sources.malformed import MalformedObjects
from objects import Obj

from .script import GROUPED, TAINTED
from .server import Server

KINDS: Final[Mapping[Resource, type[Object]]] = {
    NODES: Node,
    STORAGE_CLASSES: StorageClass,
    PERSISTENT_VOLUMES: PersistentVolume,
    PERSISTENT_VOLUME_CLAIMS: PersistentVolumeClaim,
    DEVICE_CLASSES: DeviceClass,
    DEVICE_TAINT_RULES: DeviceTaintRule,
    RESOURCE_SLICES: ResourceSlice,
    RESOURCE_CLAIM_TEMPLATES: ClaimTemplate,
    POD_GROUPS: PodGroup,
    RESOURCE_CLAIMS: ResourceClaim,
    PODS: Pod,
}
"""In the order in which the operator lists them."""
WITH: Final[Mapping[Resource, str]] = {DEVICE_TAINT_RULES: TAINTED, POD_GROUPS: GROUPED}
"""Which histories have objects of a kind at all; the others do not list it."""
PAUSE = 1.0  # seconds between two attempts to start
AUDITS = 300.0  # seconds between two sweeps


def kinds_of(traits: frozenset[str]) -> Mapping[Resource, type[Object]]:
    """What the operator lists and watches in a history."""
    return {resource: kind for resource, kind in KINDS.items() if resource not in WITH or WITH[resource] in traits}


class _WatchedAudit(Audit):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._failed: set[Resource] = set()

    @property
    def is_due(self) -> bool:
        """Whether an audit was asked for that has not begun, or that is to be repeated."""
        return bool(self._failed) or any(called.is_set() for called in self._calls.values())

    async def _compare(self, resource: Resource) -> bool:
        self._failed.add(resource)
        is_done = await super()._compare(resource)
        if is_done:
            self._failed.discard(resource)
        return is_done


class Incarnation:
    """``start`` makes one that works until ``kill``. ``went_back`` is called when it has to be replaced."""

    def __init__(
        self,
        server: Server,
        now: Callable[[], datetime],
        went_back: Callable[[], None],
        *,
        checks: Callable[[], bool],
        sees_others: Callable[[], bool],
        preempts: bool,
        kinds: Mapping[Resource, type[Object]],
    ) -> None:
        groups = POD_GROUPS in kinds
        features = Features(generic_workload=groups, workload_resource_claims=groups)
        inventory = Inventory(features, language=TinyLanguage())
        self.cluster = Cluster(inventory)
        allocator = Allocator(inventory, new_share_id=lambda: f"share-{next(server.share_numbers)}")
        options = ControlOptions(
            times=TimeSettings(workers=FEW),
            check_invariants=checks,
            now=now,
            sees_others=sees_others,
            preemption=PreemptionSettings() if preempts else None,
        )
        self.control = Control(self.cluster, server, allocator, options)
        api = cast(Api, server)
        malformed_objects = MalformedObjects(self.control.hold)
        self.audit = _WatchedAudit(api, self.control, malformed_objects, kinds, lambda _: went_back(), AUDITS)
        self._last_look = LastLook(api, self.control, malformed_objects)
        self._loader = Loader(api, kinds, self.control.load, malformed_objects, self.audit.loaded)
        self._tasks: list[asyncio.Task[None]] = []
        self.is_working = False

    async def start(self) -> None:
        """List everything, then work."""
        self._tasks.append(asyncio.create_task(self._load()))
        await asyncio.wait(self._tasks)
        if not self._tasks[0].cancelled():
            work = (self.control.run(), self.audit.run(), self._last_look.run())
            self._tasks = [asyncio.create_task(each) for each in work]
            self.is_working = True

    async def _load(self) -> None:
        while True:
            try:
                await self._loader.load_all()
            except KubeError:
                await asyncio.sleep(PAUSE)
            else:
                if not self._loader.missing():
                    return
                await asyncio.sleep(PAUSE)

    def kill(self) -> None:
        """It does nothing any more, and what it knew is gone."""
        self.is_working = False
        for task in self._tasks:
            task.cancel()

    def received(self, resource: Resource, event: str, obj: Object, raw: Obj) -> None:
        """What a watch or a list brings, read and as the server sent it; as such echoes of answers do not get here."""
        if event == "DELETED":
            self.control.delete(Source.WATCH, KINDS[resource], obj.key, obj.metadata.uid)
        else:
            self.audit.saw(resource, obj.metadata.resource_version)
            store, meta = self.control.cluster.store_of(KINDS[resource]), obj.metadata
            self.control.apply(
                Source.WATCH, obj, None if store.knows(obj.key, meta.uid, meta.resource_version) else raw
            )

    @property
    def is_at_rest(self) -> bool:
        """Nothing is being done, and nothing is to be done later."""
        return self.is_working and self.control.queues.is_quiet and not self.audit.is_due

    def failed(self) -> str:
        """How it ended by itself, if it did."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return f"the operator ended by itself: {error!r}"
        return ""
