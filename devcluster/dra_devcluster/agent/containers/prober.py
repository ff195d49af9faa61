"""Carries out what a pod wants to happen while one of its containers runs: lifecycle hooks and probes.

A start hook that fails ends the container, and so does a startup or liveness probe that gives up. The restart policy
says what happens then. The stop hook takes its time from the grace period; the container still gets two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.events import EventRecorder
from dra_devcluster.agent.settings import AgentSettings
from dra_devcluster.agent.spec.pod import RunContainer, RunPod

from .handlers import HandlerFailed, Target, perform
from .probes import Probes
from .runtime import LocalRuntime

_LONGEST_HOOK_SECONDS = 365 * 24 * 3600.0  # a start hook has no time limit in Kubernetes
_LEAST_GRACE_SECONDS = 2.0


class Prober:
    """Runs the hooks and probes of one container. ``changed`` is called when ``started`` or ``ready`` has changed."""

    def __init__(
        self,
        runtime: LocalRuntime,
        settings: AgentSettings,
        events: EventRecorder,
        pod: Callable[[], RunPod],
        container: RunContainer,
        changed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._probe_timeout = settings.probe_timeout
        self._events = events
        self._pod = pod
        self._container = container
        self._changed = changed
        self._probes = self._new_probes()

    @property
    def started(self) -> bool:
        """Whether the container that runs has started up, as its startup probe sees it."""
        return self._probes.started

    @property
    def ready(self) -> bool:
        """Whether the container that runs is ready, as its readiness probe sees it."""
        return self._probes.ready

    def reset(self) -> None:
        """The container is about to start (again)."""
        self._probes = self._new_probes()

    async def run(self, *, fresh: bool) -> None:
        """Run the hooks and probes of the container that runs now, until a failure ends it.

        The start hook runs only if the container is ``fresh``: started just now, not by an earlier node agent.
        """
        lifecycle, name = self._container.lifecycle, self._container.name
        try:
            target = self._target()
        except ContainerError:
            return  # the container has ended already
        if fresh and lifecycle is not None and lifecycle.post_start is not None:
            try:
                await perform(lifecycle.post_start, target, _LONGEST_HOOK_SECONDS)
            except HandlerFailed as error:
                self._events.warning(self._pod(), "FailedPostStartHook", f"PostStartHook failed: {error}", name)
                await self.stop(self._pod().grace_seconds)
                return
        kind, probe = await self._probes.run(target)
        self._events.normal(self._pod(), "Killing", f"Container {name} failed {kind} probe, will be restarted", name)
        own = probe.termination_grace_period_seconds
        await self.stop(self._pod().grace_seconds if own is None else float(own))

    async def stop(self, grace: float) -> None:
        """The stop hook, then the end of the container within what is left of the grace period."""
        loop, uid, name = asyncio.get_running_loop(), self._pod().metadata.uid, self._container.name
        began, lifecycle = loop.time(), self._container.lifecycle
        if (
            grace > 0
            and lifecycle is not None
            and lifecycle.pre_stop is not None
            and self._runtime.is_running(uid, name)
        ):
            try:
                await perform(lifecycle.pre_stop, self._target(), grace)
            except HandlerFailed as error:
                self._events.warning(self._pod(), "FailedPreStopHook", f"PreStopHook failed: {error}", name)
            grace = max(_LEAST_GRACE_SECONDS, grace - (loop.time() - began))
        await self._runtime.stop(uid, name, grace)

    def _target(self) -> Target:
        """Raises ContainerError when the container is not running."""
        ports = {port.name: port.container_port for port in self._container.ports or () if port.name}
        uid = self._pod().metadata.uid
        process = self._runtime.process(uid, self._container.name)
        return Target(process, self._runtime.network(uid), ports)

    def _new_probes(self) -> Probes:
        one = self._container
        probes = (one.startup_probe, one.readiness_probe, one.liveness_probe)
        return Probes(*probes, self._failed, self._changed, self._probe_timeout)

    def _failed(self, kind: str, reason: str) -> None:
        self._events.warning(self._pod(), "Unhealthy", f"{kind} probe failed: {reason}", self._container.name)
