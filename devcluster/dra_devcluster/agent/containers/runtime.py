"""The container runtime of the development cluster: a container is a process of this machine.

The state of a container is kept in ``state.json`` below the node's root, so that a restarted node agent knows how the
containers of its pods ended. Processes never outlive the runtime: it ends them when it closes, and kills the leftovers
of a crash at the next start.

The runtime may live longer than a node agent: give the same one to the next agent, and it finds the containers
running, as a kubelet does after its restart.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
from dra_api.values import now

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.pod_network import Network, PodNetwork
from dra_devcluster.agent.processes.logs import LogFile
from dra_devcluster.agent.processes.process import (
    NO_CONSOLE,
    Console,
    ContainerProcess,
    Mount,
    signal_group,
    start_ticks,
)
from dra_devcluster.agent.settings import write_whole


class ContainerRecord(msgspec.Struct, frozen=True):
    """One run of a container; ``exit_code`` None while it runs. Times are RFC 3339, ``attempt`` counts from 0."""

    id: str
    attempt: int
    pid: int
    ticks: int
    started_at: str
    finished_at: str | None = None
    exit_code: int | None = None


class ContainerState(msgspec.Struct, frozen=True):
    current: ContainerRecord
    previous: ContainerRecord | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


Key = tuple[str, str]


class LocalRuntime:
    """The containers of one node by pod UID and container name; an async context manager.

    Containers have ``shutdown_grace`` seconds to end when the runtime closes.
    """

    def __init__(self, root: Path, *, shutdown_grace: float = 2.0) -> None:
        self._root = root / "pods"
        self._shutdown_grace = shutdown_grace
        self._running: dict[Key, ContainerProcess] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._states: dict[Key, ContainerState] = {}
        self._networks: dict[str, Network] = {}

    async def __aenter__(self) -> Self:
        for file in self._root.glob("*/*/state.json"):
            with suppress(msgspec.DecodeError, UnicodeDecodeError, OSError):
                state = msgspec.json.decode(file.read_bytes(), type=ContainerState)
                self._take_over((file.parent.parent.name, file.parent.name), state)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(process.stop(self._shutdown_grace) for process in self._running.values()))
        await asyncio.gather(*(self.close_sandbox(pod_uid) for pod_uid in list(self._networks)))

    # --- pods ---

    async def open_sandbox(self, pod_uid: str, server: tuple[str, int] | None = None) -> None:
        """The pod is about to get containers.

        With ``server`` they have a network of their own, from which they reach this address alone. Raises NetworkError.
        """
        self._networks[pod_uid] = Network() if server is None else await PodNetwork.open(*server)

    def has_sandbox(self, pod_uid: str) -> bool:
        """Whether this runtime was already asked to run containers of the pod."""
        return pod_uid in self._networks

    def network(self, pod_uid: str) -> Network:
        return self._networks.get(pod_uid) or Network()

    async def close_sandbox(self, pod_uid: str) -> None:
        """The pod will get no more containers; logs and states stay."""
        network = self._networks.pop(pod_uid, None)
        if network is not None:
            await network.close()

    def pods(self) -> set[str]:
        return {path.name for path in self._root.glob("*")}

    async def kill_pod(self, pod_uid: str) -> None:
        await asyncio.gather(*(self.stop(*key, 0.0) for key in list(self._running) if key[0] == pod_uid))
        await self.close_sandbox(pod_uid)

    async def remove_pod(self, pod_uid: str) -> None:
        """Forget the pod and its logs, and kill its remaining processes."""
        await self.kill_pod(pod_uid)
        for key in [key for key in self._states if key[0] == pod_uid]:
            del self._states[key]
        shutil.rmtree(self._root / pod_uid, ignore_errors=True)

    # --- containers ---

    def state(self, pod_uid: str, name: str) -> ContainerState | None:
        """The state of the container; None if it never ran."""
        return self._states.get((pod_uid, name))

    def is_running(self, pod_uid: str, name: str) -> bool:
        return (pod_uid, name) in self._running

    def process(self, pod_uid: str, name: str) -> ContainerProcess:
        """The container's process. Raises ContainerError when it is not running."""
        try:
            return self._running[(pod_uid, name)]
        except KeyError:
            raise ContainerError("NotRunning", f"container {name} is not running") from None

    def folder(self, pod_uid: str, name: str) -> Path:
        return self._root / pod_uid / name

    def volumes_folder(self, pod_uid: str) -> Path:
        """Where the content of the pod's volumes is kept. No container can have this name."""
        return self._root / pod_uid / ".volumes"

    def log_path(self, pod_uid: str, name: str, attempt: int) -> Path:
        """The log of one run; those of the latest two are kept."""
        return self.folder(pod_uid, name) / f"{attempt}.log"

    def start(
        self,
        pod_uid: str,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: str = "",
        mounts: Sequence[Mount] = (),
        console: Console = NO_CONSOLE,
    ) -> ContainerRecord:
        """Start or restart the container, by default in a directory of its own.

        Raises ContainerError(RunContainerError), or OSError when the node's disk does not take its files.
        """
        key = (pod_uid, name)
        last = self._states[key].current if key in self._states else None
        attempt = last.attempt + 1 if last else 0
        work, root = (self.folder(pod_uid, name) / part for part in ("work", "root"))  # root: what it sees as its own
        for folder in (work, root):
            folder.mkdir(parents=True, exist_ok=True)
        log = LogFile(self.log_path(pod_uid, name, attempt))
        where, network = Path(cwd) if cwd else work, self.network(pod_uid).pid
        try:
            process = ContainerProcess(
                argv, environment, where, log, mounts=mounts, root=root, network=network, console=console
            )
        except ContainerError:
            log.close()
            raise
        record = ContainerRecord(uuid.uuid4().hex, attempt, process.pid, start_ticks(process.pid), now())
        self._running[key] = process
        watching = asyncio.create_task(self._watch(key, process), name=f"container {name}")
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        try:
            self._keep(key, ContainerState(record, last))
        except OSError:
            signal_group(process.pid, signal.SIGKILL)
            raise
        self.log_path(pod_uid, name, attempt - 2).unlink(missing_ok=True)
        return record

    async def wait(self, pod_uid: str, name: str) -> ContainerRecord:
        """The record of the latest run, once it has ended."""
        process = self._running.get((pod_uid, name))
        if process is not None:
            await process.over.wait()
        return self._states[(pod_uid, name)].current

    async def stop(self, pod_uid: str, name: str, grace: float) -> None:
        """End the container, by force after ``grace`` seconds; returns when it has ended."""
        process = self._running.get((pod_uid, name))
        if process is not None:
            await process.stop(grace)

    # --- inside ---

    async def _watch(self, key: Key, process: ContainerProcess) -> None:
        code = await process.log_until_end()
        state = self._states[key]
        ended = msgspec.structs.replace(state.current, finished_at=now(), exit_code=code)
        del self._running[key]
        try:
            self._keep(key, ContainerState(ended, state.previous))
        finally:
            process.over.set()

    def _keep(self, key: Key, state: ContainerState) -> None:
        self._states[key] = state
        write_whole(self.folder(*key) / "state.json", msgspec.json.encode(state))

    def _take_over(self, key: Key, state: ContainerState) -> None:
        """Take over the state of an earlier runtime: processes that run according to it are leftovers of a crash."""
        record = state.current
        if record.exit_code is None:
            if record.ticks and start_ticks(record.pid) == record.ticks:
                signal_group(record.pid, signal.SIGKILL)
            record = msgspec.structs.replace(record, finished_at=now(), exit_code=128 + signal.SIGKILL)
        self._keep(key, ContainerState(record, state.previous))
