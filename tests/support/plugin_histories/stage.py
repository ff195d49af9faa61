"""Where a history takes place: server, host, kubelet and the plugin's processes; and what each step does."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

from dra_kube import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    KubeletPlugin,
    PluginSettings,
    PreparedDevice,
    Resources,
    StartError,
    attribute,
)
from dra_kubeletplugin.process import serve
from history_kit.game import LATE, Step, Weather

from .apiserver import ApiServer, Reader
from .drivers import NAME, NODE, Hardware, device_of, made
from .judge import Judge
from .kubelet import Claim, Kubelet, Pod, Sockets
from .process import Disk, Killed, Process
from .script import ADAPTERS, ADMIN, KNOWN, SHARED, Script

RESTART_SECONDS = (0.3, 2.0)  # after which a process is started again: the least, and how much more
SETTLE_SECONDS = 3.0  # until a plugin that was disturbed has looked at the hardware again
LONGEST_PAUSE_SECONDS = 70.0


class Stage:
    """``root`` is an empty folder."""

    def __init__(self, root: Path, script: Script, weather: Weather, *, traced: bool) -> None:
        self._root, self._script, self.weather = root, script, weather
        self._loop = asyncio.get_running_loop()
        self.trace: list[str] | None = [] if traced else None
        for folder in ("registry", "data", "cdi", "host/dev"):
            (root / folder).mkdir(parents=True)
        self.boot_id = root / "boot_id"
        self._boots = itertools.count(1)
        self.boot_id.write_text(f"boot-{next(self._boots)}")
        self.hardware = Hardware(
            root / "host" if script.driver == "hostdev" else None, is_fixed=script.driver == "simulated"
        )
        self.disk = Disk(root, weather)
        reader = Reader(lambda what: self.judge.find(what), overlaps=script.overlaps)
        reader.has_late_writes = lambda: self._loop.time() < self._late_until
        self._late_until = 0.0
        self.server = ApiServer(weather, self.tell, reader)
        self.sockets = Sockets()
        self.judge = Judge(root, self.hardware, self._loop.time)
        self.judge.furnish()
        self.kubelet = Kubelet(self)
        self.processes: list[Process] = []
        self.all_processes: list[Process] = []
        self._numbers = itertools.count(1)
        self._version = 0
        self._unwell_until = self._server_unwell_until = 0.0
        self.judge.plugin_is_well = self._plugin_is_well
        self.judge.server_is_well = self._server_is_well
        self.judge.published = self._published
        self._tasks: set[asyncio.Task[Any]] = set()

    def tell(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self._loop.time():9.3f}  {line}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the plugin ---

    def start(self) -> None:
        self.server.put(NODES, {"kind": "Node", "metadata": {"name": NODE, "uid": "node-uid"}})
        self.kubelet.start()
        self.start_plugin()

    def start_plugin(self) -> Process:
        number = next(self._numbers)
        uid = f"00000000-0000-4000-8000-{number:012}" if self._script.overlaps else ""
        settings = PluginSettings(
            driver_name=NAME,
            node_name=NODE,
            registry_dir=self._root / "registry",
            data_dir=self._root / "data",
            cdi_dir=self._root / "cdi",
            serialize=self._script.serialize,
            device_metadata=self._script.metadata,
            rolling_update_uid=uid,
            log_level=None,
        )

        async def main(process: Process) -> None:
            driver = made(self._script, self.hardware, self.weather, process.known)

            def beside(plugin: KubeletPlugin) -> AbstractAsyncContextManager[object]:
                process.plugin = plugin
                return driver.beside(plugin)

            await serve(driver.driver, settings, self._noted(driver.resources), beside=beside)

        known = KNOWN if self._script.narrow and self._version % 2 else ADAPTERS
        process = Process(f"process {number}", main, self._ended, known)
        self.processes.append(process)
        self.all_processes.append(process)
        self.tell(f"{process.name} starts")
        self._loop.call_later(0.1, self.kubelet.look)
        return process

    async def _noted(self, resources: AsyncIterable[Resources]) -> AsyncIterator[Resources]:
        async for wanted in resources:
            slices = wanted[NODE].slices
            shown = tuple(tuple(each.name + "!" * bool(each.taints) for each in part.devices) for part in slices)
            self.server.reader.wanted.add(shown)
            yield wanted

    def _ended(self, process: Process, error: BaseException | None) -> None:
        self.tell(f"{process.name} has ended: {error!r}")
        if error is not None and not isinstance(error, Killed | StartError):
            self.judge.find(f"{process.name} ended with {error!r}")
        self.processes.remove(process)
        self._late_until = self._loop.time() + LATE
        self.sockets.drop(process)
        self.kubelet.look()
        if not self.processes:
            self._loop.call_later(self._pause(), self._start_again)

    def _pause(self) -> float:
        least, more = RESTART_SECONDS
        return least + more * self.weather.chance("restart", self._loop.time())

    def _start_again(self) -> None:
        if not self.processes and not self.is_over:
            self.start_plugin()

    is_over = False

    # --- how all are ---

    def _plugin_is_well(self) -> bool:
        """Whether one process has been there for a while, with nothing in its way."""
        is_well = len(self.processes) == 1 and not (self.processes[0].has_signal or self.processes[0].calls)
        if not is_well or self.disk.is_disturbed():
            self._unwell_until = self._loop.time() + SETTLE_SECONDS
        return self._loop.time() >= self._unwell_until

    def _server_is_well(self) -> bool:
        """Whether the server answers as well; failures make pauses grow to a minute."""
        if self.server.is_away:
            self._server_unwell_until = self._loop.time() + LONGEST_PAUSE_SECONDS
        since = self._loop.time() - self.server.last_strike
        return self._plugin_is_well() and since > LATE and self._loop.time() >= self._server_unwell_until

    def _published(self) -> list[str]:
        """What a scheduler may give."""
        slices = self.server.of(RESOURCE_SLICES)
        devices = [device for item in slices for device in item["spec"].get("devices", ())]
        return list(dict.fromkeys(device["name"] for device in devices if not device.get("taints")))

    # --- others ---

    def wipe_slices(self, why: str) -> None:
        """The kubelet removes the slices of its node."""
        self.tell(f"    the kubelet wipes slices {why}")
        if not self.server.is_away:
            for item in self.server.of(RESOURCE_SLICES):
                self.server.remove(RESOURCE_SLICES, item["metadata"]["name"])

    def forget_claims(self, pod: Pod) -> None:
        """Its claims are deallocated and deleted, if they are there."""
        for claim in pod.claims:
            stored = self.server.objects.get((RESOURCE_CLAIMS, "default", claim.name))
            if stored and stored["metadata"]["uid"] == claim.uid:
                self.server.remove(RESOURCE_CLAIMS, claim.name, "default")

    def step(self, step: Step) -> None:
        """A step of the script. One that cannot happen any more does nothing."""
        self.tell(f"---- {step}")
        _ACTIONS[step.what](self, step)
        self.judge.look()

    def pods(self, name: str) -> list[Pod]:
        return [pod for pod in self.kubelet.pods if pod.name == name and pod.is_wanted]

    def add_pod(self, step: Step) -> None:
        """Its claims are made, and allocated what is free."""
        counts = [int(digit) for digit in str(int(step.number))]
        is_admin = step.subject.startswith(ADMIN)
        free = self._published() if is_admin else self._free()
        if self.pods(step.subject) or len(free) < sum(counts):
            return
        number, claims = next(self._numbers), []
        for index, count in enumerate(counts):
            devices, free = tuple(free[:count]), free[count:]
            name = f"{step.subject}-{index}"
            claims.append(Claim(name, f"uid.{name}.{number}", devices, is_admin, self._shares()))
            self.server.put(RESOURCE_CLAIMS, _body(claims[-1]))
        self.tell(f"    {', '.join(f'{claim.uid}: {claim.devices}' for claim in claims)}")
        self.kubelet.add(Pod(step.subject, tuple(claims)))

    def _shares(self) -> frozenset[str]:
        return frozenset({SHARED} if self._script.shares else ())

    def _free(self) -> list[str]:
        """What a scheduler that looks at the server may give."""
        held = {
            result["device"]
            for claim in self.server.of(RESOURCE_CLAIMS)
            for result in claim["status"]["allocation"]["devices"]["results"]
            if not result["adminAccess"]
        }
        return [name for name in self._published() if name not in held - self._shares()]

    def allocate_anew(self, step: Step) -> None:
        """A pod is deleted by force; the claim stays, loses its device, gets another one, and another pod has it."""
        pods = [pod for pod in self.kubelet.pods if pod.is_wanted and len(pod.claims) == 1]
        if not pods or not (free := self._free()):
            return
        pod = pods[int(step.number * len(pods))]
        (claim,) = pod.claims
        stored = self.server.objects.get((RESOURCE_CLAIMS, "default", claim.name))
        if stored is None or stored["metadata"]["uid"] != claim.uid or claim.is_admin:
            return
        self.kubelet.forget(pod)
        again = Claim(claim.name, claim.uid, (free[-1],), shares=claim.shares)
        self.judge.allocated_anew(again)
        self.server.put(RESOURCE_CLAIMS, _body(again))
        self.tell(f"    {again.uid}: {again.devices}")
        self.kubelet.add(Pod(pod.name, (again,)))

    def end_pod(self, step: Step, *, by_force: bool) -> None:
        """It is deleted; by force its claims go at once."""
        for pod in self.pods(step.subject):
            pod.is_forced = by_force
            if by_force:
                self.forget_claims(pod)
            self.kubelet.end(pod, gives_up=self.weather.chance("gives up", step.at) < 0.7)

    def plug(self, step: Step) -> None:
        self.hardware.plug(step.subject, int(step.number))

    def swap(self, step: Step) -> None:
        others = [adapter for adapter in ADAPTERS if adapter != step.subject]
        self.hardware.swap(step.subject, others[int(step.number * len(others))])

    def restart_kubelet(self, step: Step) -> None:
        if self.kubelet.is_running:
            self.kubelet.stop()
            self._loop.call_later(step.number, self._start_kubelet)

    def _start_kubelet(self) -> None:
        if not self.kubelet.is_running:
            self.kubelet.start()

    def reboot(self, step: Step) -> None:
        """The machine starts again: processes and containers are gone, and so is what is in ``/run``."""
        self.kubelet.stop()
        for pod in self.kubelet.pods:
            pod.is_running = False
        self.judge.reboot()
        self.hardware.set_up.clear()
        for process in list(self.processes):
            process.kill()
        for path in (self._root / "cdi").iterdir():
            path.unlink()
        self.judge.furnish()
        self.boot_id.write_text(f"boot-{next(self._boots)}")
        self._loop.call_later(step.number, self._start_kubelet)

    def node_of(self, device: str) -> str | None:
        """Where the device is for the process that is left."""
        known = {device_of(adapter) for process in self.processes[-1:] for adapter in process.known}
        return self.hardware.node_of(device) if device in known else None

    def kill_older(self, step: Step) -> None:
        """Of two processes the one that was there first."""
        if len(self.processes) > 1:
            self.processes[0].kill(int(step.number))

    def kill(self, step: Step) -> None:
        if self.processes:
            self.processes[-1].kill(int(step.number))

    def end(self, step: Step) -> None:
        """The youngest process gets a signal."""
        if self.processes and not self.processes[-1].has_signal:
            self.processes[-1].end()

    def update(self, step: Step) -> None:
        """A second instance, after which the first one ends."""
        if len(self.processes) == 1 and not self.processes[0].has_signal:
            before = self.processes[0]
            self._version += 1
            self.start_plugin()
            self._loop.call_later(step.number, self._retire, before)

    def _retire(self, process: Process) -> None:
        if not process.is_dead and not process.has_signal and len(self.processes) > 1:
            process.end()

    def damage(self, step: Step) -> None:
        """All CDI files of the driver are removed, or empty."""
        for path in self.judge.files():
            self.judge.damaged[self.judge.uid_of(path)] = self._loop.time()
            if step.subject == "remove":
                path.unlink()
            else:
                path.write_bytes(b"")

    def damage_record(self, step: Step) -> None:
        """One record is torn, or replaced by what is no file."""
        records = sorted((self._root / "data" / "claims").glob("[!.]*.json"))
        if records:
            how = ("end", "end", "link", "pipe", "folder")[int(step.number * 1e6) % 5]
            self.judge.tear(records[int(step.number * len(records))], how)

    def disturb(self, step: Step, folders: set[str]) -> None:
        """The disk takes nothing for a while."""
        places = {"claims": "data/claims", "cdi": "cdi", "": ""}
        folder = str(self._root / places[step.subject])
        folders.add(folder)
        self._loop.call_later(step.number, folders.discard, folder)

    def stop_server(self, step: Step) -> None:
        self.server.stop()
        self._loop.call_later(step.number, self._start_server)

    def _start_server(self) -> None:
        self.server.is_away = False

    def lose_slices(self, *, with_events: bool) -> None:
        """Another client deletes them, or the server forgets that they were there."""
        for item in self.server.of(RESOURCE_SLICES):
            if with_events:
                self.server.remove(RESOURCE_SLICES, item["metadata"]["name"])
            else:
                del self.server.objects[RESOURCE_SLICES, "", item["metadata"]["name"]]
        if not with_events:
            self.server.forget()

    def tell_more(self, step: Step) -> None:
        """The driver of the youngest process tells a container more of its devices."""
        process = self.processes[-1] if self.processes else None
        pods = [pod for pod in self.kubelet.pods if pod.is_prepared and pod.is_wanted]
        if process is None or process.plugin is None or process.has_signal or not pods or not self._script.metadata:
            return
        claim = pods[int(step.number * len(pods))].claims[0]
        devices = [
            PreparedDevice(
                pool=NODE,
                device=device,
                requests=("req",),
                attributes={"said": attribute(f"{step.at:g}")},
                share_id=claim.share_of(device),
            )
            for device in claim.devices
        ]
        work = process.plugin.update_metadata(ClaimRef("default", claim.name, claim.uid), "req", devices)
        self._loop.create_task(_tolerant(work), context=process.context.copy())

    def edit_slice(self, step: Step) -> None:
        """Another client changes a slice: it loses a device, has another generation, or is there twice."""
        slices = self.server.of(RESOURCE_SLICES)
        if not slices:
            return
        item = copy.deepcopy(slices[int(step.number * len(slices))])
        if step.subject == "devices":
            item["spec"]["devices"] = (item["spec"].get("devices") or ())[1:]
        elif step.subject == "generation":
            item["spec"]["pool"]["generation"] += 2
        else:
            item["metadata"]["name"] += "-copy"
            item["metadata"]["uid"] += "-copy"
        self.server.reader.touched(item["metadata"]["name"])
        self.server.put(RESOURCE_SLICES, item)

    def lose_slice(self, step: Step) -> None:
        """Another client deletes one of them."""
        slices = self.server.of(RESOURCE_SLICES)
        if slices:
            self.server.remove(RESOURCE_SLICES, slices[int(step.number * len(slices))]["metadata"]["name"])

    def clear_up(self) -> None:
        """Nothing fails any more, and the kubelet asks for all that it has once more."""
        self.tell("---- all is well from now on")
        self.weather.is_over = True
        self.disk.heal()
        for adapter in list(self.hardware.twins):
            self.hardware.pull_twin(adapter)
        self.server.is_away = False
        for process in self.processes[:-1]:
            if not process.has_signal:
                process.end()
        self.kubelet.stop()
        self.kubelet.start()

    def close_locks(self) -> None:
        """What the kernel closes at the end of a process."""
        for process in self.all_processes:
            for descriptor in process.locks:
                os.close(descriptor)

    async def finish(self) -> None:
        self.is_over = True
        ending = list(self.processes)
        for process in ending:
            process.end()
        for process in ending:
            await process.gone.wait()
        for process in ending:
            if process.locks:
                self.judge.find(f"{process.name} has nothing to do, and keeps {len(process.locks)} locks")
        self.kubelet.stop()


_ACTIONS: dict[str, Callable[[Stage, Step], None]] = {
    "add pod": Stage.add_pod,
    "end pod": lambda stage, step: stage.end_pod(step, by_force=False),
    "delete pod by force": lambda stage, step: stage.end_pod(step, by_force=True),
    "pull adapter": lambda stage, step: stage.hardware.pull(step.subject),
    "plug adapter": Stage.plug,
    "swap adapters": Stage.swap,
    "plug twin": lambda stage, step: stage.hardware.plug_twin(step.subject),
    "pull twin": lambda stage, step: stage.hardware.pull_twin(step.subject),
    "restart the kubelet": Stage.restart_kubelet,
    "repeat calls": lambda stage, _: stage.kubelet.repeat(),
    "tell more of devices": Stage.tell_more,
    "reboot": Stage.reboot,
    "kill the plugin": Stage.kill,
    "kill the older plugin": Stage.kill_older,
    "end the plugin": Stage.end,
    "update the plugin": Stage.update,
    "damage CDI files": Stage.damage,
    "damage a record": Stage.damage_record,
    "allocate anew": Stage.allocate_anew,
    "fill disk": lambda stage, step: stage.disturb(step, stage.disk.full),
    "protect disk": lambda stage, step: stage.disturb(step, stage.disk.protected),
    "stop the server": Stage.stop_server,
    "delete slices": lambda stage, step: stage.lose_slices(with_events=True),
    "edit slice": Stage.edit_slice,
    "delete slice": Stage.lose_slice,
    "lose slices": lambda stage, step: stage.lose_slices(with_events=False),
}


async def _tolerant(work: Coroutine[Any, Any, None]) -> None:
    with suppress(ClaimError, OSError):
        await work


def _body(claim: Claim) -> dict[str, Any]:
    results = [
        {
            "request": "req",
            "driver": NAME,
            "pool": NODE,
            "device": device,
            "adminAccess": claim.is_admin,
            **({"shareID": share} if (share := claim.share_of(device)) else {}),
        }
        for device in claim.devices
    ]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": "default", "uid": claim.uid},
        "status": {"allocation": {"devices": {"results": results}}},
    }
