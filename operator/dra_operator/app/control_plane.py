"""Find out about the control plane beside the operator: its release, and whether its controllers are at work.

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

A controller manager without leader election has no Lease (minikube, k3s with a single server). What it does shows it:
a claim that it made and recorded in a pod while claims were ours. It then counts as working for ten minutes after the
last such claim; if it still does after that, the next pod's claim is made twice, and shows it again.

Every controller manager of a cluster that serves resource.k8s.io in a version we speak (1.32 and later) has the claim
controller. It evicts from tainted devices in releases where the gate DRADeviceTaints is on by default. If it was
switched on in an older cluster both evict, which is harmless: they delete the same pods, each once. A controller that
is switched off there is not visible from outside, and needs ``--controllers``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from dra_api.core import Pod
from dra_api.releases import NEWEST, Release, defaults_of, is_on_by_default, release_of
from dra_kube import LEASES, Api, Forbidden, KubeError, NotFound

from dra_operator.allocator import Features
from dra_operator.controllers import NAMES, ControllerName, OwnControllers, records_claim_of_others
from dra_operator.gates import features_of
from dra_operator.sources.kind_table import Kinds
from dra_operator.sources.kinds import watched_kinds

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
        spec = (lease or {}).get("spec") or {}
        if spec != self._spec:
            self._spec, self._changed_at = spec, self._clock()
        self._had_holder = bool(spec.get("holderIdentity")) or (self._had_holder and bool(spec))
        patience = max(GONE_SECONDS, 2.0 * (spec.get("leaseDurationSeconds") or 0))
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
