"""The DRA manager: prepares the claims of a pod before its containers start, and unprepares them afterwards.

Preparing has four phases (kubelet-manager.md section 6): check the pod's claims against the API server, without
changes; note the references and write the checkpoint; call each driver once, with all its claims; mark the claims
prepared. Unpreparing (section 8) needs only the references, because the claims may be gone.

Work on one claim is serialized, also between pods that share it; a driver's answer replaces its previous one, so that a
repetition after a partial failure leaves no duplicates (deviations of KM-15). A claim that was allocated anew under
its UID is refused until the devices of its earlier allocation are unprepared (deviation of KM-16).

A driver is not called if every device that it has in the claim says so in its slice. The allocation keeps a copy of
that, and the checkpoint keeps the allocation, so a slice that changes later changes nothing for the claim (K37-ONO-02,
-09, -11).

A container gets the CDI devices of its claim references (KM-17). Their health stands in ``allocatedResourcesStatus`` of
the pod's status (KM-27): one entry per reference, with one resource per device. Claims for extended resources and
devices that the node does not hold (any more) are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from dra_api.codec import DecodeError, convert
from dra_api.core import Container, ContainerClaim, Pod
from dra_api.references import (
    ClaimName,
    ClaimReferenceError,
    check_owned_by,
    claim_name,
    claims_of_pod,
    is_reserved_for,
    without_group,
)
from dra_api.releases import Release
from dra_api.resource import DeviceAllocationResult, ResourceClaim
from dra_api.selectors import OPTIONAL_NODE_OPERATIONS, has_skipped_operations
from dra_api.validation.published import ALL, PREPARE, UNPREPARE
from dra_kube import RESOURCE_CLAIMS, Api, KubeError
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_devcluster.agent.checkpoint import FILE_NAME, CheckpointFile, ClaimCache, ClaimInfo, results_of
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.health import Key
from dra_devcluster.agent.plugins.plugin import NodeMetrics, PreparedDevice
from dra_devcluster.agent.plugins.registration import DraPlugins
from dra_devcluster.agent.settings import AgentSettings, KubeletDefect


def cdi_devices(pod: Pod, container: Container, cache: ClaimCache, *, repeat: bool = False) -> list[str]:
    """The CDI ids for a container, in the order of its claim references, each once unless they may ``repeat``.

    Raises ClaimError when a claim of the container is not held by the node.
    """
    ids: list[str] = []
    for name, request in claim_requests(pod, container):
        claim = cache.get(pod.metadata.namespace, name)
        if claim is None:
            raise ClaimError(f"ResourceClaim {name} is not prepared on this node")
        for _, device in matching(claim, request):
            ids += device.cdi_ids
    return ids if repeat else list(dict.fromkeys(ids))


def claim_requests(pod: Pod, container: Container) -> Iterator[tuple[str, str]]:
    """Pairs of claim name and request that the container refers to; an empty request is the whole claim."""
    entries = {entry.name: entry for entry in pod.spec.resource_claims or ()}
    for reference in container.resources.claims or ():
        entry = entries.get(reference.name)
        if entry is None:
            raise ClaimError(f"container {container.name} refers to the unknown claim {reference.name}")
        try:
            name, _ = claim_name(pod, entry)
        except ClaimReferenceError as error:
            raise ClaimError(str(error)) from error
        if name is not None:
            yield name, reference.request
    extended = pod.status.extended_resource_claim_status
    for mapping in extended.request_mappings or () if extended else ():
        amount = (container.resources.requests or {}).get(mapping.resource_name)
        if extended and mapping.container_name == container.name and amount is not None and amount.nanos:
            yield extended.resource_claim_name, mapping.request_name


def matching(claim: ClaimInfo, request: str) -> Iterator[tuple[str, PreparedDevice]]:
    """The devices of a claim that serve a request, each with its driver; an empty request is the whole claim."""
    for driver, devices in claim.drivers.items():
        for device in devices:
            if not request or not device.requests or request in device.requests:
                yield driver, device


Json = dict[str, Any]


def _claim(pod: Pod, reference: ContainerClaim, cache: ClaimCache) -> ClaimInfo | None:
    """The claim if the node holds it for this pod."""
    entry = next((entry for entry in pod.spec.resource_claims or () if entry.name == reference.name), None)
    try:
        name = claim_name(pod, entry).name if entry is not None else None
    except ClaimReferenceError:
        return None
    claim = cache.get(pod.metadata.namespace, name) if name is not None else None
    return claim if claim is not None and pod.metadata.uid in claim.pods else None


ANY_DRIVER = "<any>"


class ClaimsInUse(Collector):
    """Counts the prepared claims at each scrape, per driver and in all."""

    def __init__(self, claims: Iterable[ClaimInfo]) -> None:
        self._claims = claims

    def collect(self) -> Iterator[Metric]:
        prepared = [claim for claim in self._claims if claim.prepared]
        counts = Counter(driver for claim in prepared for driver in claim.drivers)
        counts[ANY_DRIVER] = len(prepared)
        gauge = GaugeMetricFamily(
            "dra_resource_claims_in_use", "Claims that are prepared on the node.", labels=["driver_name"]
        )
        for driver, count in sorted(counts.items()):
            gauge.add_metric([driver], count)
        yield gauge


__all__ = ["PREPARE", "UNPREPARE", "is_skipped"]


def is_skipped(operation: str, driver: str, allocation: DeviceAllocationResult | None) -> bool:
    """Whether the driver does without this call; False for a driver of which the allocation has no device."""
    results = (allocation.results if allocation else None) or ()
    skipped = [result.skip_node_operations or () for result in results if result.driver == driver]
    return bool(skipped) and all(operation in one or ALL in one for one in skipped)


logger = logging.getLogger(__name__)


class DraManager:
    """The claims of one node, and the plugins of their drivers.

    ``pods_changed`` is called with the UIDs of pods whose status has to show another health of their devices.
    Raises CheckpointCorrupted when the node's checkpoint is damaged.
    """

    def __init__(
        self, api: Api, node_name: str, root: Path, settings: AgentSettings, metrics: NodeMetrics | None = None
    ) -> None:
        self.pods_changed: Callable[[set[str]], None] = lambda pods: None
        self._api = api
        self._settings = settings
        self._metrics = metrics or NodeMetrics()
        self._checkpoint = CheckpointFile(root / FILE_NAME)
        self.cache = ClaimCache(self._checkpoint.load())
        self.plugins = DraPlugins(api, node_name, root, settings, self._metrics, self._health_changed)
        # A lock lives as long as a task holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Close all connections; the claims stay as the checkpoint has them."""
        await self.plugins.close()

    def _health_changed(self, driver: str, devices: set[Key]) -> None:
        self.pods_changed(self.cache.pods_with(driver, devices))

    def _has(self, defect: KubeletDefect) -> bool:
        return defect in self._settings.defects

    # --- pods ---

    async def prepare(self, pod: Pod) -> None:
        """Make the devices of all claims of the pod ready. Raises ClaimError; repeating is safe."""
        if not self._settings.workload_resource_claims:
            pod = without_group(pod)
        try:
            with self._metrics.operation("PrepareResources"):
                desired = [await self._checked(pod, target) for target in _targets(pod)]
                async with self._locked(claim.metadata.uid for claim in desired):
                    await self._unprepare_stale(pod, desired)
                    fresh = [claim for claim in self._refer(pod, desired) if not claim.prepared]
                    await self._call_drivers(fresh)
                    for claim in fresh:
                        claim.prepared = True
                    if fresh:
                        self._save()
        except ClaimError as error:
            raise ClaimError(f"prepare dynamic resources: {error}") from error

    async def unprepare(self, pod_uid: str, pod: Pod | None = None) -> None:
        """Drop the pod's references; unprepare claims that no other pod uses (KM-18, KM-19).

        ``pod`` is None for a pod that is gone. Raises ClaimError; claims that failed stay referenced, so repeating is
        safe and necessary.
        """
        with self._metrics.operation("UnprepareResources"):
            async with self._locked([claim.uid for claim in self._held_by(pod_uid, pod)]):
                held = self._held_by(pod_uid, pod)
                last = [claim for claim in held if len(claim.pods) == 1]
                for claim in held:
                    if len(claim.pods) > 1:
                        claim.pods.discard(pod_uid)
                if held:
                    self._save()
                await self._unprepare(last)

    def _held_by(self, pod_uid: str, pod: Pod | None) -> list[ClaimInfo]:
        """The claims to which the pod refers. With the defect also those of the same names that one other pod holds."""
        held = self.cache.of_pod(pod_uid)
        if pod is not None and self._has(KubeletDefect.FOREIGN_UNPREPARE):
            names = [use.name for use in claims_of_pod(pod)]
            named = (self.cache.get(pod.metadata.namespace, name) for name in names)
            held += [claim for claim in named if claim and claim not in held and len(claim.pods) == 1]
        return held

    def cdi_devices(self, pod: Pod, container: Container) -> list[str]:
        """The CDI ids for a container (KM-17). Raises ClaimError."""
        return cdi_devices(pod, container, self.cache, repeat=self._has(KubeletDefect.DUPLICATED_DEVICES))

    def resources_status(self, pod: Pod, container: Container) -> list[dict[str, Any]]:
        """The health of the container's devices, for its status; empty when the gate is off (KM-27)."""
        entries: dict[str, list[Json]] = {}
        for reference in (self._settings.resource_health_status and container.resources.claims) or ():
            if (claim := _claim(pod, reference, self.cache)) is not None:
                name = "/".join(filter(None, (f"claim:{reference.name}", reference.request)))
                entries[name] = self._resources(claim, reference.request)
        return [{"name": name, "resources": resources} for name, resources in sorted(entries.items()) if resources]

    def _resources(self, claim: ClaimInfo, request: str) -> list[Json]:
        """One resource per device id: of devices with the same id the first counts."""
        resources: dict[str, Json] = {}
        for driver, device in matching(claim, request):
            identity = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
            health = self.plugins.health.get(driver, device.pool, device.device)
            shows_words = self._settings.resource_health_status_message and health.message
            message = {"message": health.message} if shows_words else {}
            resources.setdefault(identity, {"resourceID": identity, "health": health.status} | message)
        return list(resources.values())

    async def reconcile(self, active: Callable[[], set[str]]) -> None:
        """Unprepare for every pod in the cache that is not active on the node (KM-20)."""
        for pod_uid in sorted(self.cache.pods()):
            if pod_uid in active():
                continue
            try:
                await self.unprepare(pod_uid)
                logger.info("unprepared the claims of pod %s, which is gone", pod_uid)
            except ClaimError as error:
                logger.warning("unpreparing the claims of pod %s, which is gone, failed: %s", pod_uid, error)

    async def _unprepare(self, claims: Sequence[ClaimInfo]) -> None:
        """Let the drivers unprepare claims that no pod uses, and forget them. They stay if a driver fails (KM-19)."""
        for claim in claims:
            claim.prepared = False
        for driver, batch in self._by_driver(claims, UNPREPARE).items():
            plugin = self.plugins.get(driver)
            await plugin.unprepare([claim.ref for claim in batch], self._settings.call_timeout)
        for claim in claims:
            self.cache.remove(claim)
        if claims:
            self._save()

    # --- the phases of prepare ---

    async def _checked(self, pod: Pod, target: ClaimName) -> ResourceClaim:
        """Phase 1: the claim exists, is the pod's, reserved, allocated, and its drivers are registered (KM-12)."""
        name = target.name or ""
        try:
            claim = convert(ResourceClaim, await self._api.get(RESOURCE_CLAIMS, name, pod.metadata.namespace))
        except (KubeError, DecodeError) as error:
            raise ClaimError(f"fetch ResourceClaim {name}: {error}") from error
        if target.must_check_owner:
            try:
                check_owned_by(pod, claim)
            except ClaimReferenceError as error:
                raise ClaimError(str(error)) from error
        if not is_reserved_for(pod, claim):
            raise ClaimError(
                f"pod {pod.metadata.name} ({pod.metadata.uid}) is not allowed to use "
                f"ResourceClaim {name} ({claim.metadata.uid})"
            )
        if claim.status.allocation is None:
            raise ClaimError(f"ResourceClaim {name}: not allocated")
        self._check_skipped_operations(claim, claim.status.allocation.devices)
        for driver in sorted({result.driver for result in results_of(claim)}):
            if not self._is_skipped(PREPARE, driver, claim.status.allocation.devices):
                self.plugins.get(driver)
        return claim

    def _check_skipped_operations(self, claim: ResourceClaim, allocation: DeviceAllocationResult) -> None:
        """Refuse a new claim that skips calls while the gate is off (K37-ONO-12). Before 1.37 nothing is skipped."""
        settings, key = self._settings, (claim.metadata.namespace, claim.metadata.name)
        is_refused = settings.release >= Release.V1_37 and not settings.optional_node_operations
        if is_refused and has_skipped_operations(allocation) and self.cache.get(*key) is None:
            raise ClaimError(
                f"ResourceClaim {claim.metadata.name}: {OPTIONAL_NODE_OPERATIONS} feature gate is disabled on kubelet"
            )

    async def _unprepare_stale(self, pod: Pod, desired: Iterable[ResourceClaim]) -> None:
        """Unprepare claims that were allocated anew after an earlier attempt of this pod, which alone refers to them.

        No container of the pod runs while it is prepared. A claim that other pods use is refused by ``_refer``.
        """
        if self._has(KubeletDefect.UNNOTICED_REALLOCATION):
            return
        held = ((self.cache.get(claim.metadata.namespace, claim.metadata.name), claim) for claim in desired)
        await self._unprepare(
            [info for info, claim in held if info and info.is_stale(claim) and info.pods <= {pod.metadata.uid}]
        )

    def _refer(self, pod: Pod, desired: Iterable[ResourceClaim]) -> list[ClaimInfo]:
        """Phase 2: references noted before a failure stay, and ``unprepare`` removes them (KM-13)."""
        claims: dict[tuple[str, str], ClaimInfo] = {}
        may_be_stale = self._has(KubeletDefect.UNNOTICED_REALLOCATION)
        try:
            for claim in desired:
                info = self.cache.refer(pod.metadata.uid, claim, may_be_stale=may_be_stale)
                claims[info.key] = info
        finally:
            if claims:
                self._save()
        return list(claims.values())

    async def _call_drivers(self, claims: Iterable[ClaimInfo]) -> None:
        """Phase 3: one call per driver with all its claims; the answer replaces the previous one (KM-14, KM-15)."""
        for driver, batch in self._by_driver(claims, PREPARE).items():
            plugin = self.plugins.get(driver)
            results = await plugin.prepare([claim.ref for claim in batch], self._settings.call_timeout)
            for claim in batch:
                earlier = claim.drivers[driver] if self._has(KubeletDefect.DUPLICATED_DEVICES) else ()
                claim.drivers[driver] = earlier + results[claim.uid]

    # --- shared ---

    def _by_driver(self, claims: Iterable[ClaimInfo], operation: str) -> dict[str, list[ClaimInfo]]:
        """The drivers to call with their claims; those that do without the call are counted."""
        batches: dict[str, list[ClaimInfo]] = {}
        for claim in claims:
            for driver in claim.drivers:
                if self._is_skipped(operation, driver, claim.allocation):
                    self._metrics.skipped(operation, driver)
                else:
                    batches.setdefault(driver, []).append(claim)
        return dict(sorted(batches.items()))

    def _is_skipped(self, operation: str, driver: str, allocation: DeviceAllocationResult | None) -> bool:
        return self._settings.release >= Release.V1_37 and is_skipped(operation, driver, allocation)

    def _save(self) -> None:
        try:
            self._checkpoint.store(self.cache)
        except OSError as error:
            raise ClaimError(f"checkpoint: {error}") from error

    @asynccontextmanager
    async def _locked(self, uids: Iterable[str]) -> AsyncIterator[None]:
        """Exclusive work on these claims; sorted, so that two pods with the same claims cannot block each other.

        By uid: a claim that replaces one of the same name must fail, not wait for the teardown of the old one (KM-21).
        """
        async with AsyncExitStack() as stack:
            for uid in sorted(set(uids)):
                await stack.enter_async_context(self._locks.setdefault(uid, asyncio.Lock()))
            yield


def _targets(pod: Pod) -> list[ClaimName]:
    """The claims of the pod, whether containers use them or not; entries that need no claim are skipped."""
    try:
        names = [claim_name(pod, entry) for entry in pod.spec.resource_claims or ()]
    except ClaimReferenceError as error:
        raise ClaimError(str(error)) from error
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        names.append(ClaimName(extended.resource_claim_name, must_check_owner=True))
    return [target for target in names if target.name is not None]
