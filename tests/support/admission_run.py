"""Random jobs behind the model of Kueue, with the admission check or by quota alone, and what that costs.

The clock jumps to the next timer whenever nobody has anything to do, so jobs may take minutes. The processor's time of
decisions and writes counts besides. A job that has no node for all of its pods after five minutes is evicted, as by
Kueue's ``waitForPodsReady``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, cast
from unittest import mock

from admission_world import EPOCH, LoopWorld
from dra_api.values import format_time
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, WORKLOADS
from dra_operator.admission import planner
from fake_api import ERRORS, Call, FakeApi
from history_kit.clock import VirtualLoop
from kueue_model import KueueModel, condition, finish, is_true, workload
from objects import Make, Obj

DEVICES: Final = 8
"""Of each node, all of one of two models."""
SIZES: Final = (1, 2, 4, 8)
ANY: Final = "any"
MODELS: Final = (ANY, ANY, "a", "b")
PODS_READY_SECONDS: Final = 300.0
WATCH_SECONDS: Final = 0.005
"""Seconds from a change until those who watch know it, and from a client to the server."""
MOST_IDLE_SECONDS: Final = 4 * 3600.0
"""Seconds of the run without an end of a job, after which there is none any more: a job takes ten minutes."""


class NoEnd(AssertionError):
    """Jobs wait, and none of them ever ends."""


class WorkingLoop(VirtualLoop):
    """A clock of which waiting takes no time, and working as much as a processor takes for it.

    It stands for the module ``time`` as well: to sleep between two pieces of work takes as long as it says.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slept = 0.0
        self._seen = self.monotonic()
        self.thread_seconds = lambda: 0.0

    def monotonic(self) -> float:
        """Seconds of work, and of sleep in between."""
        return time.process_time() + self._slept

    def sleep(self, seconds: float) -> None:
        """Take no time but on the clock."""
        self._slept += seconds

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """Work that takes no time: that of the measurement itself, and of the model of Kueue.

        Both look at a thousand jobs after each event.
        """
        before = self.monotonic()
        yield
        self._seen += self.monotonic() - before

    def _run_once(self) -> None:
        before, self._seen = self._seen, self.monotonic()
        self._now += self._seen - before
        super()._run_once()


class EffortlessLoop(WorkingLoop):
    """A clock of which work takes no time either: all that takes time are pauses, and the way to the server."""

    def monotonic(self) -> float:
        """Seconds of sleep between pieces of work."""
        return self._slept


@dataclass
class Result:
    """``blocked``: jobs of which a pod found no node after the admission. ``broken``: promises that were not kept.

    ``in_vain``: device seconds of quota that was held while a pod had no node. ``delays``: for each job that waited for
    devices, seconds from the end of the job that left enough of them free until its admission.
    """

    jobs: int
    blocked: set[str] = field(default_factory=set)
    in_vain: float = 0.0
    used: float = 0.0
    delays: list[float] = field(default_factory=list)
    timeouts: int = 0
    retries: int = 0
    broken: int = 0
    seconds: float = 0.0


@dataclass
class Job:
    """``pods``, each with ``size`` devices of a ``model``."""

    pods: int
    size: int
    model: str
    duration: float
    uid: str = ""
    nodes: list[str] = field(default_factory=list)
    """Of its pods, as far as they have one."""
    quota_since: float | None = None
    fits_since: float | None = None
    """When another job ended and left it enough devices, which are free since."""
    is_admitted: bool = False
    ends_at: float | None = None
    is_done: bool = False

    @property
    def devices(self) -> int:
        return self.pods * self.size

    def fits(self, free: dict[str, int]) -> bool:
        """Return whether nodes with so many free devices have room for all pods."""
        its = (number for node, number in free.items() if self.model in (ANY, model_of(node)))
        return sum(number // self.size for number in its) >= self.pods


def model_of(node: str) -> str:
    """Return the model of a node's devices."""
    return "ab"[int(node.rpartition("-")[2]) % 2]


class Run:
    """``play`` it once.

    A request takes up to ``slowest`` seconds to the server. Of the writes of Workloads the part ``lost`` is carried out
    without an answer.
    """

    def __init__(
        self, jobs: int, nodes: int, seed: int, *, is_checked: bool, slowest: float = WATCH_SECONDS, lost: float = 0.0
    ) -> None:
        self.result = Result(jobs)
        self.world = LoopWorld(has_admission=is_checked)
        self.jobs: dict[str, Job] = {}
        check = "devices" if is_checked else None
        self._kueue = KueueModel(DEVICES * nodes, check=check, cost=lambda obj: self.jobs[_name(obj)].devices)
        self._kueue.forgets_devices = is_checked
        self.world.others[:] = [self._act_for_kueue]
        self._nodes = [f"node-{number}" for number in range(nodes)]
        self._furnish()
        self._submit(jobs, random.Random(seed))
        self._wakes = asyncio.Event()
        self._dice, self._slowest, self._lost = random.Random(seed), slowest, lost
        self.world.api.after = self._heard
        self.world.api.way = self._way
        self._ended_at = 0.0

    def _act_for_kueue(self, api: FakeApi) -> None:
        with cast(WorkingLoop, asyncio.get_running_loop()).unmeasured():
            self._kueue(api)

    async def _way(self) -> None:
        await asyncio.sleep(self._dice.uniform(WATCH_SECONDS, self._slowest))

    def _heard(self, call: Call) -> Exception | None:
        self._wakes.set()
        is_lost = (call.verb, call.plural) == ("patch", WORKLOADS.plural) and self._dice.random() < self._lost
        return ERRORS["no answer"]() if is_lost else None

    def _furnish(self) -> None:
        api = self.world.api
        api.add(DEVICE_CLASSES, Make.device_class())
        for name in self._nodes:
            node = Make.node(name)
            node["status"]["allocatable"] = {"cpu": "64", "memory": "512Gi", "pods": "110"}
            api.add(NODES, node)
            api.add(RESOURCE_SLICES, Make.slice(name, DEVICES, model=model_of(name)))
        for size in SIZES:
            for model in MODELS[1:]:
                text = f'device.attributes["gpu.example.com"].model == "{model}"'
                template = Make.template(f"{size}-{model}")
                template["spec"]["spec"] = Make.claim_spec(size, "gpu", *([] if model == ANY else [text]))
                api.add(RESOURCE_CLAIM_TEMPLATES, template)

    def _submit(self, jobs: int, pick: random.Random) -> None:
        """Jobs that fit an empty cluster. Others would be rejected, and by quota alone be evicted for ever."""
        empty = dict.fromkeys(self._nodes, DEVICES)
        for number in range(jobs):
            while True:
                size, pods = pick.choice(SIZES), pick.choice((1, 1, 2, 2, 4))
                job = Job(pods, size, pick.choice(MODELS), pick.uniform(60, 600))
                if job.fits(empty):
                    break
            name = f"job-{number:04}"
            created = format_time(EPOCH + timedelta(seconds=number))
            self.world.api.add(WORKLOADS, workload(name, pods, template=f"{size}-{job.model}", created=created))
            self.jobs[name] = job

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return asyncio.get_running_loop().time()

    def play(self, clock: type[WorkingLoop] = WorkingLoop) -> Result:
        """Let all jobs run to their end. Raises NoEnd, and AssertionError if Kueue admitted a job unasked."""
        with asyncio.Runner(loop_factory=clock) as runner:
            loop = cast(WorkingLoop, runner.get_loop())
            with mock.patch.object(planner, "time", loop):
                return runner.run(self._play(loop))

    async def _play(self, loop: WorkingLoop) -> Result:
        world, left = self.world, len(self.jobs)
        _ = world.now
        world.start()
        async with world.running():
            while left:
                self._wakes.clear()
                _ = world.now
                before = world.api.revision
                world.bring_events()
                goes_on = world.api.revision != before  # Kueue takes several steps, and waits for nobody in between
                with loop.unmeasured():
                    left -= self._look()
                await asyncio.sleep(WATCH_SECONDS)
                if not world.api.events and not goes_on:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._next() - self.now):
                            await self._wakes.wait()
        assert not self._kueue.forgotten, (
            f"Kueue has ended the wait of these, and forgot their devices: {self._kueue.forgotten}"
        )
        self.result.retries, self.result.seconds = self._kueue.decided["Retry"], self.now
        self.result.broken = int(world.seen("dra_operator_admission_broken_promises_total"))
        return self.result

    def _look(self) -> int:
        """Note what became of each job; return how many have ended."""
        nodes = dict[str, list[str]]()
        for pod in self.world.api.of(PODS):
            owner = pod["metadata"]["ownerReferences"][0]["name"]
            nodes.setdefault(owner, []).append(pod["spec"].get("nodeName", ""))
            said = condition(pod, "PodScheduled")
            if said is not None and said["status"] == "False" and said.get("reason") == "Unschedulable":
                self.result.blocked.add(owner)
        ended = 0
        for obj in self.world.api.of(WORKLOADS):
            name = _name(obj)
            self.jobs[name].uid, self.jobs[name].nodes = obj["metadata"]["uid"], nodes.get(name, [])
            ended += self._follow(name, self.jobs[name], obj)
        self._note_free(is_new=bool(ended))
        return ended

    def _follow(self, name: str, job: Job, obj: Obj) -> int:
        now = self.now
        if job.ends_at is not None:
            if now < job.ends_at:
                return 0
            finish(self.world.api, f"ns/{name}")
            self.world.api.drop(WORKLOADS, f"ns/{name}")
            self._ended_at, job.is_done, job.nodes = now, True, []
            return 1
        if obj["spec"].get("active") is False:
            raise AssertionError(f"{name} was rejected, and fits an empty cluster: {obj['status']}")
        is_admitted = is_true(obj, "Admitted")
        if is_admitted and not job.is_admitted and job.fits_since is not None:
            self.result.delays.append(now - job.fits_since)
        job.is_admitted = is_admitted
        if not is_true(obj, "QuotaReserved"):
            self._give_up(job, now)
        elif job.quota_since is None:
            job.quota_since = now
        elif is_admitted and job.nodes and all(job.nodes):
            self._give_up(job, now)
            job.ends_at = now + job.duration
            self.result.used += job.devices * job.duration
        elif is_admitted and now - job.quota_since > PODS_READY_SECONDS:
            self.result.timeouts += 1
            self._kueue.evict(self.world.api, f"ns/{name}", "PodsReadyTimeout", wait=60)
        return 0

    def _give_up(self, job: Job, now: float) -> None:
        if job.quota_since is not None:
            self.result.in_vain += job.devices * (now - job.quota_since)
            job.quota_since = None

    def _note_free(self, *, is_new: bool) -> None:
        """Note which jobs that wait would fit now; ``is_new`` says that devices have come free."""
        waiting = [job for job in self.jobs.values() if not job.is_done and not job.is_admitted]
        running = [job for job in self.jobs.values() if not job.is_done and job.is_admitted]
        taken = Counter[str]()
        for job in running:
            nodes = job.nodes if len(job.nodes) == job.pods and all(job.nodes) else self._promised(job)
            if len(nodes) < job.pods:
                return  # devices that they will hold look free
            for node in nodes:
                taken[node] += job.size
        free = {node: DEVICES - taken[node] for node in self._nodes}
        fits: dict[tuple[int, int, str], bool] = {}
        for job in waiting:
            shape = (job.pods, job.size, job.model)
            if not fits.setdefault(shape, job.fits(free)):
                job.fits_since = None
            elif is_new and job.fits_since is None:
                job.fits_since = self._ended_at

    def _promised(self, job: Job) -> list[str]:
        """Return the nodes of its promise, or none if it has no promise."""
        if not self.world.has_admission:
            return []
        memory = self.world.admission._memory.get(job.uid)
        return [node for nodes in memory.nodes.values() for node in nodes] if memory is not None else []

    def _next(self) -> float:
        """When something happens by itself. Raises NoEnd."""
        due = [job.ends_at for job in self.jobs.values() if job.ends_at is not None and not job.is_done]
        due += [it.quota_since + PODS_READY_SECONDS for it in self.jobs.values() if it.quota_since is not None]
        requeues = (
            obj.get("status", {}).get("requeueState", {}).get("requeueAt") for obj in self.world.api.of(WORKLOADS)
        )
        due += [(datetime.fromisoformat(it) - EPOCH).total_seconds() for it in requeues if it]
        if self.now > self._ended_at + MOST_IDLE_SECONDS:
            left = [f"{name} ({it.pods} pods of {it.size})" for name, it in self.jobs.items() if not it.is_done]
            raise NoEnd(f"no job has ended for {MOST_IDLE_SECONDS:g} s, and these wait: {', '.join(left)}")
        return min((it for it in due if it > self.now), default=self.now + MOST_IDLE_SECONDS) + 0.001


def _name(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name
