"""Random jobs behind the model of Kueue, with the admission check or by quota alone, and what that costs.

The clock jumps to the next end of a job whenever nobody has anything to do. In between it is the machine's, so that the
time of decisions and writes counts, and jobs may take minutes. A job that has no node for all of its pods after five
minutes is evicted, as by Kueue's ``waitForPodsReady``.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from admission_world import EPOCH, AdmissionWorld
from dra_api.values import format_time
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, WORKLOADS
from kueue_model import KueueModel, condition, finish, is_true, workload
from objects import Make, Obj

DEVICES = 8
"""Of each node, all of one of two models."""
SIZES = (1, 2, 4, 8)
MODELS = ("any", "any", "a", "b")
PODS_READY_SECONDS = 300.0
QUIET_SECONDS = 0.03
"""Seconds without anything to do after which the clock jumps."""


@dataclass
class Result:
    """``blocked``: jobs of which a pod found no node after the admission. ``in_vain``: device seconds of quota that was
    held while a pod had no node. ``delays``: seconds from the end of a job to an admission that waited for it."""

    jobs: int
    blocked: set[str] = field(default_factory=set)
    in_vain: float = 0.0
    used: float = 0.0
    delays: list[float] = field(default_factory=list)
    timeouts: int = 0
    retries: int = 0
    seconds: float = 0.0


@dataclass
class Job:
    devices: int
    duration: float
    quota_since: float | None = None
    ends_at: float | None = None
    is_done: bool = False
    requeue_at: float = 0.0
    is_early: bool = False
    """It got quota before its wait was over: devices came free."""


class Run:
    """``play`` it once."""

    def __init__(self, jobs: int, nodes: int, seed: int, *, is_checked: bool) -> None:
        self._offset = -time.monotonic()
        self.result = Result(jobs)
        self.world = AdmissionWorld(has_admission=is_checked)
        self.world.is_real_time = False
        self._jobs: dict[str, Job] = {}
        check = "devices" if is_checked else None
        self._kueue = KueueModel(DEVICES * nodes, check=check, cost=lambda obj: self._jobs[_name(obj)].devices)
        self.world.others[:] = [self._kueue]
        self._freed_at = 0.0
        self._furnish(nodes)
        self._submit(jobs, random.Random(seed))

    def _furnish(self, nodes: int) -> None:
        api = self.world.api
        api.add(DEVICE_CLASSES, Make.device_class())
        for number in range(nodes):
            node = Make.node(f"node-{number}")
            node["status"]["allocatable"] = {"cpu": "64", "memory": "512Gi", "pods": "110"}
            api.add(NODES, node)
            api.add(RESOURCE_SLICES, Make.slice(f"node-{number}", DEVICES, model="ab"[number % 2]))
        for size in SIZES:
            for model in MODELS[1:]:
                text = f'device.attributes["gpu.example.com"].model == "{model}"'
                template = Make.template(f"{size}-{model}")
                template["spec"]["spec"] = Make.claim_spec(size, "gpu", *([] if model == "any" else [text]))
                api.add(RESOURCE_CLAIM_TEMPLATES, template)

    def _submit(self, jobs: int, pick: random.Random) -> None:
        for number in range(jobs):
            name, size, pods = f"job-{number:04}", pick.choice(SIZES), pick.choice((1, 1, 2, 2, 4))
            created = format_time(EPOCH + timedelta(seconds=number))
            self.world.api.add(
                WORKLOADS, workload(name, pods, template=f"{size}-{pick.choice(MODELS)}", created=created)
            )
            self._jobs[name] = Job(size * pods, pick.uniform(60, 600))

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() + self._offset

    async def play(self) -> Result:
        """Let all jobs run to their end."""
        world, result, left = self.world, self.result, len(self._jobs)
        world.now = format_time(EPOCH + timedelta(seconds=self.now))
        world.start()
        async with world.running():
            quiet_since = time.monotonic()
            while left:
                world.now = format_time(EPOCH + timedelta(seconds=self.now))
                world.bring_events()
                await world.tick()
                left -= self._look()
                is_busy = world.api.events or not all(it.is_idle for it in world.control.queues.all().values())
                if is_busy or (world.has_admission and not world.admission.is_idle):
                    quiet_since = time.monotonic()
                elif time.monotonic() - quiet_since > QUIET_SECONDS:
                    self._jump()
                    quiet_since = time.monotonic()
        result.retries, result.seconds = self._kueue.decided["Retry"], self.now
        return result

    def _look(self) -> int:
        """Note what became of each job; return how many have ended."""
        ended, nodes = 0, dict[str, list[bool]]()
        for pod in self.world.api.of(PODS):
            owner = pod["metadata"]["ownerReferences"][0]["name"]
            nodes.setdefault(owner, []).append(bool(pod["spec"].get("nodeName")))
            said = condition(pod, "PodScheduled")
            if said is not None and said["status"] == "False" and said.get("reason") == "Unschedulable":
                self.result.blocked.add(owner)
        for obj in self.world.api.of(WORKLOADS):
            name = _name(obj)
            job = self._jobs[name]
            if not job.is_done:
                ended += self._follow(name, job, obj, nodes.get(name, []))
        return ended

    def _follow(self, name: str, job: Job, obj: Obj, nodes: list[bool]) -> int:
        now = self.now
        if job.ends_at is not None:
            if now < job.ends_at:
                return 0
            finish(self.world.api, f"ns/{name}")
            self._freed_at, job.is_done = now, True
            return 1
        has_quota = is_true(obj, "QuotaReserved")
        if not has_quota:
            self._give_up(job, now)
            due = obj.get("status", {}).get("requeueState", {}).get("requeueAt")
            job.requeue_at = (datetime.fromisoformat(due) - EPOCH).total_seconds() if due else job.requeue_at
        elif job.quota_since is None:
            job.quota_since, job.is_early = now, now < job.requeue_at - 1
        elif nodes and all(nodes) and is_true(obj, "Admitted"):
            if job.is_early:
                self.result.delays.append(now - self._freed_at)
            self._give_up(job, now)
            job.ends_at = now + job.duration
            self.result.used += job.devices * job.duration
        elif is_true(obj, "Admitted") and now - job.quota_since > PODS_READY_SECONDS:
            self.result.timeouts += 1
            self._kueue.evict(self.world.api, f"ns/{name}", "PodsReadyTimeout", wait=60)
        return 0

    def _give_up(self, job: Job, now: float) -> None:
        if job.quota_since is not None:
            self.result.in_vain += job.devices * (now - job.quota_since)
            job.quota_since = None

    def _jump(self) -> None:
        """To the next thing that happens by itself."""
        due = [job.ends_at for job in self._jobs.values() if job.ends_at is not None and not job.is_done]
        due += [it.quota_since + PODS_READY_SECONDS for it in self._jobs.values() if it.quota_since is not None]
        requeues = (
            obj.get("status", {}).get("requeueState", {}).get("requeueAt") for obj in self.world.api.of(WORKLOADS)
        )
        due += [(datetime.fromisoformat(it) - EPOCH).total_seconds() for it in requeues if it]
        now = self.now
        to = min((it for it in due if it > now), default=inf)
        if to < inf:
            self._offset += to - now + 0.001


def _name(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name
