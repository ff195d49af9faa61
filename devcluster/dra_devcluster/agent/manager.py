"""The DRA manager: prepares the claims of a pod before its containers start, and unprepares them afterwards.

Preparing has four phases (kubelet-manager.md section 6): check the pod's claims against the API server, without
changes; note the references and write the checkpoint; call each driver once, with all its claims; mark the claims
prepared. Unpreparing (section 8) needs only the references, because the claims may be gone.

Work on one claim is serialized, also between pods that share it; a driver's answer replaces its previous one, so that a
repetition after a partial failure leaves no duplicates (deviations of KM-15). A claim that was allocated anew under
its UID is refused until the devices of its earlier allocation are unprepared (deviation of KM-16).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from dra_api.codec import DecodeError, convert
from dra_api.core import Container, Pod
from dra_api.references import ClaimName, ClaimReferenceError, check_owned_by, claim_name, is_reserved_for
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Api, KubeError

from .checkpoint import FILE_NAME, CheckpointFile
from .claims import ClaimCache, ClaimInfo, results_of
from .devices import cdi_devices
from .errors import ClaimError
from .health import Key
from .health_monitor import HealthMonitor
from .plugin import ClaimRef, DraPlugin
from .plugin_instances import PluginInstances, choose_health_service, choose_service
from .resources_status import resources_status
from .settings import AgentSettings
from .wiping import SliceWiper

logger = logging.getLogger(__name__)


class DraManager:
    """Plugins and claims of one node; also the registration handler for plugins of type ``DRAPlugin``.

    ``pods_changed`` is called with the UIDs of pods whose status has to show another health of their devices.
    Raises CheckpointCorrupted when the node's checkpoint is damaged.
    """

    def __init__(self, api: Api, node_name: str, root: Path, settings: AgentSettings) -> None:
        self.plugins: PluginInstances[DraPlugin] = PluginInstances()
        self.wiper = SliceWiper(api, node_name, settings)
        self._api = api
        self._settings = settings
        self._checkpoint = CheckpointFile(root / FILE_NAME)
        self.cache = ClaimCache(self._checkpoint.load())
        self.health = HealthMonitor(root, settings, self._health_changed)
        self.pods_changed: Callable[[set[str]], None] = lambda pods: None
        # A lock lives as long as a task holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Close all connections; the claims stay as the checkpoint has them."""
        await self.wiper.close()
        await self.health.close()
        await asyncio.gather(*(plugin.close() for plugin in self.plugins.instances()))

    # --- plugins (section 4) ---

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raises RegistrationError when the plugin offers no service that the node agent speaks (KM-06)."""
        choose_service(versions)

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Add an instance of a driver; one per endpoint, several may run side by side (KM-07)."""
        self.plugins.check_free(name, endpoint)
        health = choose_health_service(versions) if self._settings.resource_health_status else ""
        plugin = DraPlugin(name, endpoint, choose_service(versions), self._plugin_changed, health_service=health)
        self.plugins.add(plugin)
        self.health.follow(plugin)
        self._driver_changed(name)

    async def deregister(self, name: str, endpoint: str) -> None:
        """Remove this instance and close its connection; does nothing for an unknown one (KM-08)."""
        plugin = self.plugins.remove(name, endpoint)
        if plugin is not None:
            self._driver_changed(name)
            await self.health.leave(plugin)
            await plugin.close()

    def _plugin_changed(self, plugin: DraPlugin) -> None:
        self._driver_changed(plugin.driver)

    def _driver_changed(self, driver: str) -> None:
        self.wiper.update(driver, self.plugins.is_usable(driver))

    def _health_changed(self, driver: str, devices: set[Key]) -> None:
        self.pods_changed(self.cache.pods_with(driver, devices))

    # --- pods ---

    async def prepare(self, pod: Pod) -> None:
        """Make the devices of all claims of the pod ready. Raises ClaimError; repeating is safe."""
        try:
            wanted = [await self._checked(pod, target) for target in _targets(pod)]
            async with self._locked(claim.metadata.uid for claim in wanted):
                await self._hand_back_stale(pod, wanted)
                claims = self._refer(pod, wanted)
                fresh = [claim for claim in claims if not claim.prepared]
                await self._ask_drivers(fresh)
                for claim in fresh:
                    claim.prepared = True
                if fresh:
                    self._save()
        except ClaimError as error:
            raise ClaimError(f"prepare dynamic resources: {error}") from error

    async def unprepare(self, pod_uid: str) -> None:
        """Drop the pod's references; unprepare claims that no other pod uses (KM-18, KM-19).

        Raises ClaimError; claims that failed stay referenced, so repeating is safe and necessary.
        """
        async with self._locked([claim.uid for claim in self.cache.of_pod(pod_uid)]):
            held = self.cache.of_pod(pod_uid)
            last = [claim for claim in held if len(claim.pods) == 1]
            for claim in held:
                if len(claim.pods) > 1:
                    claim.pods.discard(pod_uid)
            if held:
                self._save()
            await self._hand_back(last)

    def holds_claims_for(self, pod_uid: str) -> bool:
        """Whether the pod still holds claims, so that it must not be reported as ended."""
        return bool(self.cache.of_pod(pod_uid))

    def cdi_devices(self, pod: Pod, container: Container) -> list[str]:
        """The CDI ids for a container (KM-17). Raises ClaimError."""
        return cdi_devices(pod, container, self.cache)

    def resources_status(self, pod: Pod, container: Container) -> list[dict[str, Any]]:
        """The health of the container's devices, for its status; empty when the gate is off (KM-27)."""
        settings = self._settings
        if not settings.resource_health_status:
            return []
        return resources_status(
            pod, container, self.cache, self.health.get, messages=settings.resource_health_status_message
        )

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

    async def _hand_back(self, claims: Sequence[ClaimInfo]) -> None:
        """Let the drivers unprepare claims that no pod uses, and forget them. They stay if a driver fails (KM-19)."""
        for claim in claims:
            claim.prepared = False
        for driver, batch in _by_driver(claims).items():
            plugin = self.plugins.get(driver)
            await plugin.unprepare(map(ClaimRef.of, batch), self._settings.call_timeout)
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
        for driver in sorted({result.driver for result in results_of(claim)}):
            self.plugins.get(driver)
        return claim

    async def _hand_back_stale(self, pod: Pod, wanted: Iterable[ResourceClaim]) -> None:
        """Unprepare claims that were allocated anew after an earlier attempt of this pod, which alone refers to them.

        No container of the pod runs while it is prepared. A claim that other pods use is refused by ``_refer``.
        """
        held = ((self.cache.get(claim.metadata.namespace, claim.metadata.name), claim) for claim in wanted)
        await self._hand_back(
            [info for info, claim in held if info and info.is_stale(claim) and info.pods <= {pod.metadata.uid}]
        )

    def _refer(self, pod: Pod, wanted: Iterable[ResourceClaim]) -> list[ClaimInfo]:
        """Phase 2: references noted before a failure stay, and ``unprepare`` removes them (KM-13)."""
        claims: dict[tuple[str, str], ClaimInfo] = {}
        try:
            for claim in wanted:
                info = self.cache.refer(pod.metadata.uid, claim)
                claims[info.key] = info
        finally:
            if claims:
                self._save()
        return list(claims.values())

    async def _ask_drivers(self, claims: Iterable[ClaimInfo]) -> None:
        """Phase 3: one call per driver with all its claims; the answer replaces the previous one (KM-14, KM-15)."""
        for driver, batch in _by_driver(claims).items():
            plugin = self.plugins.get(driver)
            results = await plugin.prepare(map(ClaimRef.of, batch), self._settings.call_timeout)
            for claim in batch:
                claim.drivers[driver] = results[claim.uid]

    # --- shared ---

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


def _by_driver(claims: Iterable[ClaimInfo]) -> dict[str, list[ClaimInfo]]:
    batches: dict[str, list[ClaimInfo]] = {}
    for claim in claims:
        for driver in claim.drivers:
            batches.setdefault(driver, []).append(claim)
    return dict(sorted(batches.items()))
