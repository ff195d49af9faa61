"""Whether kube-controller-manager makes and releases claims, so that this operator must not.

Its Lease in kube-system says so: a controller manager that works renews it every two seconds, and one that is dead
leaves it as it was. Only changes count, by the local clock; the times in the Lease are those of another machine. A
Lease that is seen for the first time counts as renewed until the contrary is proven, since two claim controllers do
more harm than none for half a minute.

Every controller manager of a cluster that serves resource.k8s.io in a version we speak (1.32 and later) has the claim
controller. It cannot be seen from outside when the controller is switched off there, nor that a controller manager
works which elects no leader and has no Lease (k3s with a single server): ``--concerns`` says it then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from dra_kube import LEASES, Api, Forbidden, KubeError, NotFound
from dra_kube.clock import boot_time

from dra_operator.reconcile import Concerns

logger = logging.getLogger(__name__)

NAMESPACE, NAME = "kube-system", "kube-controller-manager"
PATIENCE = 30.0  # seconds without a change until it counts as gone; a standby takes over within 17
WHILE_THEIRS = 10.0  # seconds between two looks
WHILE_OURS = 2.0  # the same when claims are ours: one that starts must find us gone soon


class Heartbeat:
    """Whether a Lease is being renewed."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
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


class ClaimController:
    """Keeps ``concerns`` in step: ``look`` once before the work begins, then ``run``.

    ``became_ours`` is called when claims become ours while the operator works.
    """

    def __init__(
        self,
        api: Api,
        concerns: Concerns,
        became_ours: Callable[[], None],
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._api, self._concerns, self._became_ours = api, concerns, became_ours
        self._heartbeat = Heartbeat(clock)
        self._serves: bool | None = None
        self._is_denied = False

    async def look(self) -> None:
        """Find out whose the claims are now. What cannot be found out stays as it was, at first another one's."""
        try:
            serves = self._heartbeat.saw(await self._api.get(LEASES, NAME, NAMESPACE))
            self._is_denied = False
        except NotFound:
            serves = self._heartbeat.saw(None)
        except Forbidden as error:
            serves = True
            self._tell_denied(error)
        except KubeError as error:
            logger.debug("cannot look at the Lease of kube-controller-manager: %s", error)
            serves = self._serves is not False
        if serves != self._serves:
            self._change(serves)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(WHILE_THEIRS if self._serves else WHILE_OURS)
            await self.look()

    def _change(self, serves: bool) -> None:
        is_first, self._serves = self._serves is None, serves
        self._concerns.templates = self._concerns.release = not serves
        if serves:
            logger.info("kube-controller-manager makes and releases claims in this cluster; ours: %s", self._concerns)
        else:
            logger.info("no kube-controller-manager makes and releases claims; ours: %s", self._concerns)
            if not is_first:
                self._became_ours()

    def _tell_denied(self, error: Forbidden) -> None:
        if not self._is_denied:
            logger.warning(
                "cannot see whether kube-controller-manager works, so making and releasing claims is left to it: %s; "
                "allow to get leases in %s (Role dra-operator-leader-election in manifests/operator/rbac.yaml), or "
                "say what is ours with --concerns",
                error,
                NAMESPACE,
            )
        self._is_denied = True
