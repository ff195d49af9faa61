"""Finds out what kube-controller-manager does in this cluster, so that the operator does not do it, too.

Its Lease in kube-system shows whether it works: a working controller manager renews it every two seconds. Only changes
count, by the local clock, because the times in the Lease come from another machine. A Lease that is seen for the first
time counts as renewed for a while, because two claim controllers do more harm than none for half a minute. So does one
that could not be looked at: while the API server was away, or the machine slept, a controller manager could not renew
it either.

Every controller manager of a cluster that serves resource.k8s.io in a version we speak (1.32 and later) has the claim
controller. From 1.36 on it evicts from tainted devices, too: before, the gate DRADeviceTaints is off by default. If it
was switched on in an older cluster both evict, which is harmless: they delete the same pods, each once. Two cases are
not visible from outside, and need ``--concerns``: a controller that is switched off there, and a controller manager
without leader election and Lease (k3s with a single server).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import Any, Final

from dra_kube import LEASES, Api, Forbidden, KubeError, NotFound

from dra_operator.reconcile import NAMES, ConcernName, Concerns

logger = logging.getLogger(__name__)

NAMESPACE, NAME = "kube-system", "kube-controller-manager"
PATIENCE = 30.0  # seconds without a change until it counts as gone; a standby takes over within 17
WHILE_THEIRS = 10.0  # seconds between two looks
WHILE_OURS = 2.0  # the same while claims are ours, so that we soon leave them to one that starts
CLAIMS: Final[frozenset[ConcernName]] = frozenset({"templates", "release"})
EVICTION: Final[frozenset[ConcernName]] = frozenset({"eviction"})
EVICTS_FROM: Final = (1, 36)


class Heartbeat:
    """Whether a Lease is being renewed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spec: dict[str, Any] = {}
        self._changed_at = 0.0

    def saw(self, lease: dict[str, Any] | None) -> bool:
        """The Lease as it is now; None if there is none."""
        spec = (lease or {}).get("spec") or {}
        if spec != self._spec:
            self._spec, self._changed_at = spec, self._clock()
        patience = max(PATIENCE, 2.0 * (spec.get("leaseDurationSeconds") or 0))
        return bool(spec.get("holderIdentity")) and self._clock() - self._changed_at < patience

    def saw_nothing(self) -> None:
        """The server did not answer: the time until now does not count."""
        self._changed_at = self._clock()


class ControllerManager:
    """Keeps ``concerns`` in step: ``look`` once before the work begins, then ``run``.

    ``became_ours`` is called when anything becomes ours while the operator works.
    """

    def __init__(
        self,
        api: Api,
        concerns: Concerns,
        became_ours: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._concerns, self._became_ours = api, concerns, became_ours
        self._heartbeat = Heartbeat(clock)
        self._theirs: frozenset[ConcernName] | None = None
        self._is_denied = False

    async def look(self) -> None:
        """Find out which concerns are ours now. What cannot be found out stays as it was, at first not ours."""
        theirs: frozenset[ConcernName] = frozenset()
        if await self._works():
            theirs = CLAIMS | EVICTION if await self._evicts() else CLAIMS
        if theirs != self._theirs:
            self._change(theirs)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(WHILE_THEIRS if self._theirs else WHILE_OURS)
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
            logger.debug("cannot look at the Lease of kube-controller-manager: %s", error)
            works = self._theirs is None or bool(self._theirs)
            if works:
                self._heartbeat.saw_nothing()
            return works
        self._is_denied = False
        return works

    async def _evicts(self) -> bool:
        """Whether a controller manager of the server's version evicts by default; at first an unknown version counts as
        yes."""
        try:
            version = await self._api.raw_get("/version")
        except KubeError as error:
            logger.debug("cannot look at the version of the API server: %s", error)
            return self._theirs is None or self._theirs >= EVICTION
        return _numbers(version) >= EVICTS_FROM

    def _change(self, theirs: frozenset[ConcernName]) -> None:
        before, self._theirs = self._theirs, theirs
        for concern in CLAIMS | EVICTION:
            setattr(self._concerns, concern, concern not in theirs)
        if theirs:
            names = ", ".join(name for name in NAMES if name in theirs)
            logger.info("%s are left to kube-controller-manager; ours: %s", names, self._concerns)
        else:
            logger.info("no kube-controller-manager works in this cluster; ours: %s", self._concerns)
        if before is not None and before - theirs:
            self._became_ours()

    def _tell_denied(self, error: Forbidden) -> None:
        if not self._is_denied:
            logger.warning(
                "cannot see whether kube-controller-manager works, so making and releasing claims, and eviction, are "
                "left to it: %s; allow to get leases in %s (Role dra-operator-leader-election in "
                "manifests/operator/rbac.yaml), or say what is ours with --concerns",
                error,
                NAMESPACE,
            )
        self._is_denied = True


def _numbers(version: Any) -> tuple[int, int]:
    """Major and minor version of an answer of ``/version``, whose minor may be ``36+``."""
    try:
        return int(version["major"]), int(re.sub(r"\D.*", "", version["minor"]))
    except (KeyError, TypeError, ValueError):
        return EVICTS_FROM  # a version without numbers is no known release, so it counts as newer
