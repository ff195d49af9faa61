"""One container of a pod: its program, its CDI edits, its starts and restarts.

A container here is a process of the host: variables apply to it, and the device nodes and mounts in CDI edits are the
host's own. Everything else in the edits needs a container, and is reported as not carried out.

Images are not pulled. A command runs with the programs of the host, and a command in the image of this project with the
programs of this installation as well. Without a command:

* images with a shell and no entrypoint (busybox, alpine, debian, ubuntu, python, ...) run ``args``;
* without ``args``, any image idles until it is stopped, and so does ``pause`` as the only argument;
* ``args`` for another image would go to an entrypoint that is not known here: an error.

The first restart comes at once, later ones after growing pauses (``CrashLoopBackOff``). A long run resets the pauses. A
container that cannot be started waits with the reason and is tried again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
from dra_cdi import CdiDirectory, CdiError, ContainerEdits, DeviceNode
from dra_kube import Api

from dra_devcluster.agent.claims import DraManager
from dra_devcluster.agent.containers.probes import Prober
from dra_devcluster.agent.containers.runtime import ContainerRecord, LocalRuntime, Waiting
from dra_devcluster.agent.errors import ClaimError, ContainerError
from dra_devcluster.agent.events import EventRecorder
from dra_devcluster.agent.processes.process import why_impossible
from dra_devcluster.agent.settings import AgentSettings, HostPaths
from dra_devcluster.agent.spec import RunContainer, RunPod, basic_environment, expand, pod_environment
from dra_devcluster.agent.storage import PodVolumes

_TYPES = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


def not_carried_out(edits: ContainerEdits) -> list[str]:
    """Fields that ask for what a plain process cannot have."""
    left_out = {
        "hooks": edits.hooks,
        "netDevices": edits.net_devices,
        "intelRdt": edits.intel_rdt,
        "additionalGids": edits.additional_gids,
    }
    return [f"CDI {name}" for name, value in left_out.items() if value]


def missing_on_host(edits: ContainerEdits) -> list[str]:
    """Why a container runtime could not carry out the edits on this host, one text for each entry."""
    bound = [mount.host_path for mount in edits.mounts if mount.type in ("", "bind")]
    mounts = [f"mount {path}: No such file or directory" for path in bound if not os.path.exists(path)]
    return [*_missing_nodes(edits.device_nodes), *mounts]


def _missing_nodes(nodes: tuple[DeviceNode, ...]) -> Iterator[str]:
    """A node with type and number is made as described; of others, the host's node says what they are."""
    for node in nodes:
        if node.type and (node.major or node.type == "p"):
            continue
        try:
            mode = os.lstat(node.source).st_mode
        except OSError as error:
            yield f"device node {node.source}: {error.strerror}"
            continue
        found = _TYPES.get(stat.S_IFMT(mode))
        if found is None:
            yield f"{node.source} is not a device node"
        elif node.type not in ("", found):
            yield f"device node {node.source} has the type {found}, not {node.type}"


IDLE = ("sleep", "2147483647")
_NO_ENTRYPOINT = {"alpine", "bash", "busybox", "centos", "debian", "fedora", "python", "ubi-minimal", "ubuntu"}
_OWN_IMAGE = "kopf-dra"


def search_path_of(image: str, host: str) -> str:
    """Where the programs of a container are looked for; ``host`` is the search path of the host."""
    return f"{host}:{Path(sys.executable).parent}" if _short_name(image) == _OWN_IMAGE else host


def command_of(container: RunContainer, variables: Mapping[str, str]) -> list[str]:
    """The program and its arguments. Raises ContainerError(RunContainerError)."""
    command = [expand(word, variables) for word in container.command or ()]
    arguments = [expand(word, variables) for word in container.args or ()]
    if command:
        return command + arguments
    if not arguments or arguments == ["pause"]:
        return list(IDLE)
    if _short_name(container.image) in _NO_ENTRYPOINT:
        return arguments
    raise ContainerError(
        "RunContainerError",
        f"the entrypoint of image {container.image!r} is not known here: give the container a command",
    )


def _short_name(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """What every pod on the node works with."""

    name: str
    address: str
    api: Api
    settings: AgentSettings
    manager: DraManager
    runtime: LocalRuntime
    cdi: CdiDirectory
    events: EventRecorder
    paths: HostPaths


class ContainerWorker:
    """Runs one container of a pod, and restarts it by its restart policy.

    ``pod`` gives the current pod; ``changed`` is called when the pod's status has to change.
    ``waiting`` is why the container does not run although it should.
    """

    def __init__(
        self,
        node: Node,
        pod: Callable[[], RunPod],
        container: RunContainer,
        volumes: PodVolumes,
        changed: Callable[[], None],
    ) -> None:
        self._volumes = volumes
        self.container = container
        self.waiting: Waiting | None = None
        self.started = asyncio.Event()
        self._node = node
        self._pod = pod
        self._uid = pod().metadata.uid
        self._changed = changed
        self._crashes = 0
        self.prober = Prober(node.runtime, node.settings, node.events, pod, container, self._probes_changed)

    @property
    def record(self) -> ContainerRecord | None:
        state = self._node.runtime.state(self._uid, self.container.name)
        return state.current if state else None

    def wants_start(self, is_init: bool) -> bool:
        """Whether the container has to run (again)."""
        record = self.record
        return record is None or (record.exit_code is not None and self.wants_restart(record.exit_code, is_init))

    def wants_restart(self, exit_code: int, is_init: bool) -> bool:
        """What the restart policy says about an end with this exit code."""
        policy = self.container.restart_policy or self._pod().spec.restart_policy or "Always"
        if is_init and not self.container.is_sidecar:
            return exit_code != 0 and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)

    async def run(self, *, is_init: bool, again: bool = False) -> int:
        """Run the container until it is not to be restarted; returns the last exit code.

        ``again`` runs it even if it has completed.
        """
        fresh = again or self.wants_start(is_init)
        if fresh:
            await self._start()
        while True:
            record = await self._await_end(fresh=fresh)
            self._changed()
            assert record.exit_code is not None
            if not self.wants_restart(record.exit_code, is_init):
                return record.exit_code
            self.started.clear()
            await self._back_off(record)
            await self._start()
            fresh = True

    async def run_once(self) -> None:
        """Run the container unless it has run already, whatever the restart policy says: an ephemeral container."""
        fresh = self.record is None
        if fresh:
            await self._start()
        await self._await_end(fresh=fresh)
        self._changed()

    async def _await_end(self, *, fresh: bool) -> ContainerRecord:
        """The record of the run, once it has ended."""
        self._probes_changed()
        probing = asyncio.create_task(self.prober.run(fresh=fresh), name=f"probes of {self.container.name}")
        try:
            return await self._node.runtime.wait(self._uid, self.container.name)
        finally:
            probing.cancel()
            (problem,) = await asyncio.gather(probing, return_exceptions=True)
            if isinstance(problem, Exception):
                logger.error("probes of container %s: unexpected failure", self.container.name, exc_info=problem)

    def _probes_changed(self) -> None:
        if self.prober.started:
            self.started.set()
        self._changed()

    async def _back_off(self, record: ContainerRecord) -> None:
        settings, pod, name = self._node.settings, self._pod().metadata, self.container.name
        assert record.finished_at is not None
        ran = datetime.fromisoformat(record.finished_at) - datetime.fromisoformat(record.started_at)
        if ran.total_seconds() >= settings.restart_forgiven:
            self._crashes = 0
        self._crashes += 1
        if self._crashes == 1:
            return  # the first restart waits for nothing
        pause = settings.restart_backoff.pause(self._crashes - 1)
        place = f"pod={pod.name}_{pod.namespace}({pod.uid})"
        self._wait_for("CrashLoopBackOff", f"back-off {duration(pause)} restarting failed container={name} {place}")
        message = f"Back-off restarting failed container {name} in pod {pod.name}_{pod.namespace}({pod.uid})"
        self._node.events.warning(self._pod(), "BackOff", message, name)
        await asyncio.sleep(pause)

    async def _start(self) -> None:
        while True:
            try:
                await self._try_to_start()
            except ContainerError as error:
                self._node.events.warning(self._pod(), "Failed", f"Error: {error.message}", self.container.name)
                self._wait_for(error.reason, error.message)
                await asyncio.sleep(self._node.settings.pod_retry)
            else:
                self.waiting = None
                self._changed()
                return

    async def _try_to_start(self) -> None:
        node, pod, container = self._node, self._pod(), self.container
        ids, edits = self._devices(pod)
        environment = basic_environment(
            node.api, search_path_of(container.image, node.settings.search_path), pod.metadata.name
        )
        environment |= await pod_environment(node.api, pod, container, node.address)
        mounts = self._volumes.mounts(container, environment)
        environment |= edits.environment()
        if edits != ContainerEdits(env=edits.env):
            environment["CDI_FACTS"] = self._write_facts(ids, edits)
        command = command_of(container, environment)
        self.prober.reset()
        obstacle = await asyncio.to_thread(why_impossible) if mounts else ""
        folder, views = container.working_dir, () if obstacle else mounts
        try:
            node.runtime.start(self._uid, container.name, command, environment, folder, views, container.console)
        except OSError as error:
            raise ContainerError("CreateContainerError", f"the node cannot keep the container: {error}") from error
        self._report_left_out(pod, edits, obstacle)
        node.events.normal(pod, "Created", f"Created container: {container.name}", container.name)
        node.events.normal(pod, "Started", f"Started container {container.name}", container.name)

    def _report_left_out(self, pod: RunPod, edits: ContainerEdits, obstacle: str) -> None:
        container = self.container
        left_out = [*container.not_carried_out, *not_carried_out(edits)]
        left_out += [f"volume {name} (of an unsupported kind)" for name in self._volumes.not_provided(container)]
        if not pod.spec.host_network and any(port.host_port for port in container.ports or ()):
            left_out.append("hostPort")
        if obstacle:
            left_out.append(f"volumeMounts (this machine forbids mount namespaces: {obstacle})")
        if left_out:
            message = f"The development cluster runs containers as plain processes, without their {', '.join(left_out)}"
            self._node.events.warning(pod, "NotCarriedOut", message, container.name)

    def _devices(self, pod: RunPod) -> tuple[list[str], ContainerEdits]:
        try:
            ids = self._node.manager.cdi_devices(pod, self.container)
        except ClaimError as error:
            raise ContainerError("CreateContainerConfigError", str(error)) from error
        try:
            edits = self._node.cdi.index().resolve(ids) if ids else ContainerEdits()
        except CdiError as error:
            raise ContainerError("CreateContainerError", f"failed to inject CDI devices: {error}") from error
        if missing := missing_on_host(edits):
            message = f"failed to inject CDI devices, for which this host lacks: {'; '.join(missing)}"
            raise ContainerError("CreateContainerError", message)
        return ids, edits

    def _write_facts(self, ids: list[str], edits: ContainerEdits) -> str:
        """Write the edits into a file for the process, because a plain process has only the variables."""
        folder = self._node.runtime.folder(self._uid, self.container.name)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "cdi.json"
        file.write_text(json.dumps({"devices": ids, "containerEdits": msgspec.to_builtins(edits)}, indent=1))
        return str(file)

    def _wait_for(self, reason: str, message: str) -> None:
        self.waiting = Waiting(reason, message)
        self._changed()


def duration(seconds: float) -> str:
    """A duration as Go prints it: ``10s``, ``2m40s``; fractions of a second are kept in milliseconds."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
