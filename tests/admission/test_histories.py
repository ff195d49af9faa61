"""Random histories of jobs behind the admission check: writes that fail, or are carried out without an answer, at once
or late; watches that lag; restarts; and whatever else changes in a cluster while jobs wait or have a promise.

At no moment have the jobs that were told Ready, with the pods of others, more devices than there are; no job that runs
is evicted by the check; and when all is as it was in the beginning, every job comes to its end, and nothing is left of
its promise. The clock is the loop's, so a history takes a second or less.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final, cast
from unittest import mock

import pytest
from admission_world import LaggingWorld, LoopWorld
from dra_kube import (
    ADMISSION_CHECKS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_FLAVORS,
    RESOURCE_SLICES,
    WORKLOADS,
)
from dra_operator.admission import planner
from dra_operator.cache import BulkLimits
from fake_api import ERRORS, Call, FakeApi
from histories.history import MEASURING
from history_kit.clock import VirtualLoop
from kueue_model import CHECK, FLAVOR, KueueModel, admission_check, check_of, finish, flavor, is_true, pods_of, workload
from objects import Make, Obj

MANY_NODES: Final = 2
EACH: Final = 2
"""Devices of a node."""
STEP_SECONDS: Final = 0.01
END_SECONDS: Final = 300.0
"""Seconds after which all jobs have ended when nothing disturbs them any more."""
READY_SECONDS: Final = 10.0
"""Seconds from the admission until all pods of a job have nodes: as Kueue's waitForPodsReady."""
REST_SECONDS: Final = 6.0
"""Seconds after which no promise is left of jobs that have ended."""
WITHDRAWN_SECONDS: Final = 2.0
"""Seconds after which no answer is left of quota that Kueue has taken back."""
POOL: Final = "pool"


class _World(LoopWorld, LaggingWorld):
    pass


class _Kueue(KueueModel):
    """A queue that gets its check only later, and a job controller that makes pods one by one."""

    def __init__(self) -> None:
        super().__init__(1000, makes_pods=False)
        self.check = None

    def get_check(self, api: FakeApi) -> None:
        """Name the check in the queue: admitted Workloads get it as well, as Pending."""
        self.check = CHECK
        pending = {"name": CHECK, "state": "Pending", "message": "", "lastTransitionTime": api.now}
        for obj in api.of(WORKLOADS):
            if is_true(obj, "QuotaReserved") and not is_true(obj, "Finished"):
                api.change(WORKLOADS, _key(obj), lambda it: it["status"].update(admissionChecks=[pending]))

    def _evict(self, api: FakeApi, key: str, now: datetime, reason: str) -> None:
        if reason == "AdmissionCheck":
            running = [it["metadata"]["name"] for it in _pods(api, key) if it["spec"].get("nodeName")]
            assert not running, f"the check has evicted {key}, of which these run: {running}"
        super()._evict(api, key, now, reason)


class History:
    """``play`` it once. Raises AssertionError."""

    def __init__(self, seed: int, jobs: int = 6, seconds: float = 3.0) -> None:
        self._seed, self._random, self._seconds = seed, random.Random(seed), seconds
        self._count = jobs
        # Where nothing harms a promise, each has to be kept, however long the pods take to come.
        self._events = self._random.choice((_HARMLESS, _HARMLESS, [*_HARMLESS, *_HARMFUL]))
        self.faults = 0
        self.trace: list[str] = []
        """What happened, with the time."""

    def play(self) -> None:
        """Let faults happen for a while, then let all jobs come to their end."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = cast(VirtualLoop, runner.get_loop())
            with ExitStack() as clocks:
                for module in (planner, *MEASURING):
                    clocks.enter_context(mock.patch.object(module, "time", loop))
                try:
                    runner.run(self._play())
                except (AssertionError, TimeoutError) as error:
                    raise AssertionError(f"seed {self._seed}: {error!r}, after\n" + "\n".join(self.trace)) from error

    async def _play(self) -> None:
        random.seed(self._seed)  # the pauses between two attempts vary by it
        self._furnish()
        world = self.world
        world.api.before, world.api.after, world.api.landing = (
            self._fault(0.15),
            self._fault(0.2),
            lambda call: self._fault(0.1)(call) is not None,
        )
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        while loop.time() < end:
            self._harm_unknown()
            world.start_anew()
            self._note("start")
            async with world.running():
                restart = min(end, loop.time() + self._random.uniform(0.2, 2.0))
                await self._steps(lambda moment=restart: loop.time() < moment)  # type: ignore[misc]
        self._calm()
        world.start_anew()
        async with world.running():
            if self._kueue.is_stopped:
                go_on = loop.time() + WITHDRAWN_SECONDS
                await self._steps(lambda: loop.time() < go_on)
                assert not (stale := self._stale()), f"these would be admitted unasked: {stale}"
                self._toggle_queue()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._steps(lambda: not all(self._has_ended(it) for it in self.jobs))
            left = {it: world.workload(it).get("status") for it in self.jobs if not self._has_ended(it)}
            assert not left, f"these wait: {left}"
            rested = loop.time() + REST_SECONDS
            await self._steps(lambda: loop.time() < rested)
            left_over = [it.pod.metadata.uid for it in world.cluster.nominated_pods]
            assert not left_over, f"nobody has these promises: {left_over}"

    def _furnish(self) -> None:
        self.world = world = _World()
        if self._seed % 3 == 1:
            # It holds nothing whole: each Workload and template is read when its turn comes.
            world.limits = BulkLimits(short=100, whole=0)
        world.kueue = self._kueue = _Kueue()
        world.others[:] = [self._kueue]
        api = world.api
        api.change(RESOURCE_FLAVORS, FLAVOR, lambda it: it["spec"].update(nodeLabels={POOL: "a"}))
        world.furnish(nodes=MANY_NODES, devices=EACH)
        for obj in list(api.of(NODES)):
            api.change(NODES, _key(obj), lambda it: it["metadata"]["labels"].update({POOL: "a"}))
        api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        self.jobs = [f"job-{number}" for number in range(self._count)]
        for number, name in enumerate(self.jobs):
            self._submit(name, number)
        if self._random.random() < 0.7:
            self._kueue.get_check(api)
        self._is_disturbed = True
        self._looked = self._checked = 0
        """Revisions that the last looks at the server were made at."""
        self._labels: dict[str, dict[str, str]] = {}
        """What Kueue has put into the job with that UID when it was admitted."""
        self._takes_for_over = False
        """Whether the clock of this process took promises for over when it started."""
        self._harmed: set[str] = set()
        """UIDs of jobs that may have lost their places since they were promised, or never had a promise."""

    def _submit(self, name: str, number: int) -> None:
        created = f"2026-01-01T00:00:{number:02}Z"
        pods, priority = self._random.randint(1, MANY_NODES * EACH), self._random.choice((0, 0, 1))
        obj = workload(name, pods, priority=priority, created=created)
        self.world.api.add(WORKLOADS, obj)

    def _has_ended(self, name: str) -> bool:
        return is_true(self.world.workload(name), "Finished")

    async def _steps(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self._step()
            if self.world.api.revision != self._checked:
                self._checked = self.world.api.revision
                self.check()
            await asyncio.sleep(STEP_SECONDS)

    def _step(self) -> None:
        world, dice = self.world, self._random.random()
        _ = world.now
        world.bring_events()
        if world.api.revision != self._looked:  # nothing happens in most steps
            self._looked = world.api.revision
            self._look()
        self._make_pods()
        if dice < 0.05:
            self._finish_one()
        elif not self._is_disturbed and dice < 0.06:
            self._time_out()
        elif self._is_disturbed and dice < 0.10:
            world.is_stalled = not world.is_stalled
        elif self._is_disturbed and dice < 0.15:
            world.api.land()
        elif self._is_disturbed and dice < 0.22:
            event = self._random.choice(self._events)
            self._note(event.__name__.strip("_"))
            event(self)

    def _note(self, what: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():.3f} {what}")
        self._looked = self._checked = 0  # it may harm promises without a change

    # --- Kueue's jobs ---

    def _look(self) -> None:
        """Note what Kueue puts into jobs that it admits, and which jobs have a promise without a blemish."""
        for name in self.jobs:
            obj = self.world.workload(name)
            uid = obj["metadata"]["uid"]
            if is_true(obj, "Admitted"):
                known = self.world.api.objects.get((RESOURCE_FLAVORS, "", FLAVOR))
                spec = known["spec"] if known is not None else {}
                self._labels.setdefault(uid, spec.get("nodeLabels") or {})
                # Without a check there was no promise, and the flavor may have changed after it, before the admission.
                if not check_of(obj) or self._labels[uid].get(POOL) == "b":
                    self._harmed.add(uid)
            else:
                self._labels.pop(uid, None)
            if not is_promised(obj) and not (is_true(obj, "Admitted") and is_true(obj, "QuotaReserved")):
                self._harmed.discard(uid)

    def _make_pods(self) -> None:
        """One pod of one job at a time, as its controller makes them, and not at once."""
        if self._is_disturbed and self._random.random() < 0.8:
            return
        for name in self._random.sample(self.jobs, len(self.jobs)):
            obj = self.world.workload(name)
            if not is_true(obj, "Admitted") or is_true(obj, "Evicted") or is_true(obj, "Finished"):
                continue
            there = {it["metadata"]["name"] for it in _pods(self.world.api, _key(obj)) if not _is_done(it)}
            if len(there) >= pods_in(obj):
                continue
            labels = self._labels.get(obj["metadata"]["uid"], {})
            known = {it["metadata"]["name"] for it in self.world.api.of(PODS)}
            pod = next(it for it in pods_of(obj))
            number = next(it for it in range(1000) if f"{name}-main-x{it}" not in known)
            pod["metadata"]["name"] = f"{name}-main-x{number}"
            pod["spec"] = {**pod["spec"], "nodeSelector": labels}
            self.world.api.add(PODS, pod)
            return

    def _finish_one(self) -> None:
        for name in self._random.sample(self.jobs, len(self.jobs)):
            job = self.world.workload(name)
            if not is_true(job, "Finished") and self._running(job) >= pods_in(job):
                self._note(f"{name} finishes")
                finish(self.world.api, f"ns/{name}")
                return

    def _time_out(self) -> None:
        """Evict jobs that did not start in time, as Kueue does. One whose promise nobody has harmed does start."""
        now = datetime.fromisoformat(self.world.now)
        for name in self.jobs:
            job = self.world.workload(name)
            is_waiting = is_true(job, "Admitted") and not is_true(job, "Finished") and self._running(job) < pods_in(job)
            since = self._kueue.admitted.get(_key(job))
            if is_waiting and since is not None and (now - since).total_seconds() > READY_SECONDS:
                uid = job["metadata"]["uid"]
                assert uid in self._harmed, f"{name} was promised a place and does not start: {job['status']}"
                self._kueue.evict(self.world.api, _key(job), "PodsReadyTimeout", wait=1)

    def _running(self, job: Obj) -> int:
        return sum(1 for it in _pods(self.world.api, _key(job)) if it["spec"].get("nodeName") and not _is_done(it))

    def check(self) -> None:
        """Compare what was promised with what there is."""
        held: dict[str, int] = {}
        for name in self.jobs:
            job = self.world.workload(name)
            is_kept = is_promised(job) and job["metadata"]["uid"] not in self._harmed
            held[name] = pods_in(job) if is_kept else self._running(job)
        others = [it for it in self.world.api.of(PODS) if it["metadata"]["name"].startswith("thief")]
        held["others"] = sum(1 for it in others if it["spec"].get("nodeName"))
        held = {name: number for name, number in held.items() if number}
        assert sum(held.values()) <= MANY_NODES * EACH, f"promised at the same time: {held}, harmed: {self._harmed}"

    # --- what disturbs ---

    def _any_job(self) -> Obj | None:
        open_ = [it for name in self.jobs if not is_true(it := self.world.workload(name), "Finished")]
        return self._random.choice(open_) if open_ else None

    def _harm(self) -> None:
        """Say that promises may be broken from now on."""
        self._harmed |= {obj["metadata"]["uid"] for obj in self.world.api.of(WORKLOADS)}

    def _harm_unknown(self) -> None:
        """Say what a new process cannot know: whose a deleted check was, and which labels a flavor had.

        It takes promises for over by the clock, which may have been set, and decides anew only if its check is active.
        """
        objects = self.world.api.objects
        self._takes_for_over = self.world.skew.total_seconds() > self.world.settings.promise
        check = objects.get((ADMISSION_CHECKS, "", CHECK))
        if check is None or "parameters" in check["spec"]:
            self._harm()
        flavor_now = objects.get((RESOURCE_FLAVORS, "", FLAVOR))
        labels = flavor_now["spec"].get("nodeLabels") if flavor_now is not None else None
        self._harmed |= {uid for uid, known in self._labels.items() if known != labels}
        if labels != {POOL: "a"}:  # by which all of them were planned that wait for other checks
            jobs = [it for it in self.world.api.of(WORKLOADS) if is_promised(it)]
            self._harmed |= {uid for it in jobs if (uid := it["metadata"]["uid"]) not in self._labels}

    def _toggle_cordon(self) -> None:
        self._harm()
        self._edit_node(lambda node: node["spec"].update(unschedulable=not node["spec"].get("unschedulable")))

    def _toggle_taint(self) -> None:
        self._harm()
        taint = {"key": "x", "value": "y", "effect": self._random.choice(("NoSchedule", "NoExecute"))}
        self._edit_node(lambda node: node["spec"].update(taints=[] if node["spec"].get("taints") else [taint]))

    def _relabel_node(self) -> None:
        self._harm()
        value = self._random.choice("ab")
        self._edit_node(lambda node: node["metadata"]["labels"].update({POOL: value}))

    def _edit_node(self, edit: Callable[[Obj], object]) -> None:
        nodes = self.world.api.of(NODES)
        if nodes:
            node = self._random.choice(nodes)
            self.world.api.change(NODES, _key(node), lambda it: (it.setdefault("spec", {}), edit(it)))

    def _lose_or_add_node(self) -> None:
        self._harm()
        api, name = self.world.api, f"node-{self._random.randrange(MANY_NODES)}"
        if (NODES, "", name) not in api.objects:
            self._add_node(name)
            return
        api.drop(NODES, name)
        for pod in list(api.of(PODS)):
            if pod["spec"].get("nodeName") == name:
                api.drop(PODS, _key(pod))

    def _add_node(self, name: str) -> None:
        self.world.api.add(NODES, Make.node(name, **{"kubernetes.io/hostname": name, POOL: "a"}))

    def _change_devices(self) -> None:
        self._harm()
        number = self._random.choice((0, 1, EACH))
        taints = self._random.choice(([], [], [{"key": "x", "effect": "NoSchedule"}]))
        self._publish(f"node-{self._random.randrange(MANY_NODES)}", number, taints)

    def _publish(self, node: str, number: int, taints: list[Obj]) -> None:
        spec = Make.slice(node, number)["spec"]
        spec["devices"] = [{**it, "taints": taints} if taints else it for it in spec["devices"]]

        def edit(obj: Obj) -> None:
            spec["pool"]["generation"] = obj["spec"]["pool"]["generation"] + 1
            obj["spec"] = spec

        self.world.api.change(RESOURCE_SLICES, f"{node}-gpu.example.com", edit)

    def _change_class(self) -> None:
        self._harm()
        text = self._random.choice(("true", "device.driver == 'none'"))
        self.world.api.change(DEVICE_CLASSES, "gpu", lambda it: it.update(spec=Make.device_class("gpu", text)["spec"]))

    def _lose_or_add_template(self) -> None:
        self._harm()
        api = self.world.api
        if (RESOURCE_CLAIM_TEMPLATES, "ns", "tmpl") in api.objects:
            api.drop(RESOURCE_CLAIM_TEMPLATES, "ns/tmpl")
        else:
            api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())

    def _change_flavor(self) -> None:
        """No promise is harmed by that."""
        api, dice = self.world.api, self._random.random()
        if (RESOURCE_FLAVORS, "", FLAVOR) not in api.objects:
            api.add(RESOURCE_FLAVORS, flavor(nodeLabels={POOL: "a"}))
        elif dice < 0.5:
            api.drop(RESOURCE_FLAVORS, FLAVOR)
        else:
            value = self._random.choice("ab")
            api.change(RESOURCE_FLAVORS, FLAVOR, lambda it: it["spec"].update(nodeLabels={POOL: value}))

    def _change_check(self) -> None:
        """No promise is harmed by that either, unless it is to be decided anew."""
        if self._takes_for_over:
            self._harm()
        api, dice = self.world.api, self._random.random()
        if self._kueue.check is None:
            self._kueue.get_check(api)
        elif (ADMISSION_CHECKS, "", CHECK) not in api.objects:
            api.add(ADMISSION_CHECKS, admission_check())
        elif dice < 0.5:
            api.drop(ADMISSION_CHECKS, CHECK)
        else:
            parameters = {"apiGroup": "x", "kind": "X", "name": "x"}
            spec = api[ADMISSION_CHECKS, CHECK]["spec"]
            changed = {key: value for key, value in spec.items() if key != "parameters"}
            changed |= {} if "parameters" in spec else {"parameters": parameters}
            api.change(ADMISSION_CHECKS, CHECK, lambda it: it.update(spec=changed))

    def _toggle_job(self) -> None:
        if (job := self._any_job()) is not None:
            is_active = job["spec"].get("active") is not False
            self.world.api.change(WORKLOADS, _key(job), lambda it: it["spec"].update(active=not is_active))

    def _recreate_job(self) -> None:
        if (job := self._any_job()) is not None:
            for pod in _pods(self.world.api, _key(job)):
                self.world.api.drop(PODS, _key(pod))
            self.world.api.drop(WORKLOADS, _key(job))
            self._submit(job["metadata"]["name"], self.jobs.index(job["metadata"]["name"]))

    def _change_priority(self) -> None:
        if (job := self._any_job()) is not None:
            value = self._random.choice((0, 1, 2))
            self.world.api.change(WORKLOADS, _key(job), lambda it: it["spec"].update(priority=value))

    def _preempt_job(self) -> None:
        if (job := self._any_job()) is not None and is_true(job, "QuotaReserved"):
            self._kueue.evict(self.world.api, _key(job), "Preempted", wait=self._random.choice((0, 1, 2)))

    def _toggle_other_checks(self) -> None:
        self._kueue.waits_for_others = not self._kueue.waits_for_others

    def _toggle_queue(self) -> None:
        """Stop the queue, or go on: Kueue admits by an answer that nobody has withdrawn, and its place is gone."""
        self._kueue.is_stopped = not self._kueue.is_stopped
        self._harmed |= self._stale().keys()

    def _stale(self) -> dict[str, Obj]:
        """The jobs by UID that are ready without quota."""
        jobs = [it for it in self.world.api.of(WORKLOADS) if not is_true(it, "QuotaReserved")]
        return {it["metadata"]["uid"]: it for it in jobs if check_of(it).get("state") == "Ready"}

    def _shrink_job(self) -> None:
        """Pods of it are not needed any more, or an elastic job shrinks; or Kueue admits fewer pods than it has."""
        job = self._any_job()
        if job is None or not is_true(job, "QuotaReserved") or pods_in(job) < 2:
            return
        left = pods_in(job) - 1
        if self._random.random() < 0.5:
            ended = [{"name": "main", "count": _asked(job) - left}]
            self.world.api.change(WORKLOADS, _key(job), lambda it: it["status"].update(reclaimablePods=ended))
        else:
            self.world.api.change(WORKLOADS, _key(job), lambda it: it["spec"]["podSets"][0].update(count=left))
            self.world.api.change(WORKLOADS, _key(job), partial(_assign, count=left))
        for pod in _pods(self.world.api, _key(job))[left:]:
            self.world.api.drop(PODS, _key(pod))

    def _fail_pod(self) -> None:
        pods = [it for it in self.world.api.of(PODS) if it["metadata"].get("ownerReferences")]
        if not pods:
            return
        pod = self._random.choice(pods)
        is_dropped = self._random.random() < 0.5
        # Its place is over with a pod that had a node, or is about to be bound.
        if pod["spec"].get("nodeName") or not is_dropped:
            # Someone else may get it. The job then comes before those of its priority that were promised a place later.
            first = self.world.workload(_owner(pod))["spec"]["priority"]
            jobs = [self.world.workload(name) for name in self.jobs]
            self._harmed |= {it["metadata"]["uid"] for it in jobs if it["spec"]["priority"] <= first}
        if is_dropped:
            self.world.api.drop(PODS, _key(pod))
        else:
            self.world.api.change(PODS, _key(pod), lambda it: it["status"].update(phase="Failed"))

    def _steal(self) -> None:
        self._note("a pod without a workload")
        pods = [it for it in self.world.api.of(PODS) if it["metadata"]["name"].startswith("thief")]
        for pod in pods:
            self.world.api.drop(PODS, _key(pod))
        name = f"thief-{len(self.trace)}"
        self.world.api.add(PODS, Make.pod(name, [Make.FROM_TEMPLATE] * self._random.choice((1, 2))))

    def _set_clock(self) -> None:
        self.world.skew = timedelta(seconds=self._random.choice((-3600, 0, 30, 3600)))

    def _calm(self) -> None:
        """Restore everything."""
        self._note("calm")
        world, api = self.world, self.world.api
        _ = world.now
        self._is_disturbed, world.is_stalled, world.skew = False, False, timedelta()
        self._kueue.waits_for_others = False
        api.land()
        for number in range(MANY_NODES):
            name = f"node-{number}"
            if (NODES, "", name) in api.objects:
                api.change(NODES, name, lambda it: (it.update(spec={}), it["metadata"]["labels"].update({POOL: "a"})))
            else:
                self._add_node(name)
            self._publish(name, EACH, [])
        api.change(DEVICE_CLASSES, "gpu", lambda it: it.update(spec={}))
        if (RESOURCE_CLAIM_TEMPLATES, "ns", "tmpl") not in api.objects:
            api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        if (RESOURCE_FLAVORS, "", FLAVOR) in api.objects:
            api.drop(RESOURCE_FLAVORS, FLAVOR)
        api.add(RESOURCE_FLAVORS, flavor(nodeLabels={POOL: "a"}))
        if (ADMISSION_CHECKS, "", CHECK) in api.objects:
            api.drop(ADMISSION_CHECKS, CHECK)
        api.add(ADMISSION_CHECKS, admission_check())
        if self._kueue.check is None:
            self._kueue.get_check(api)
        for pod in list(api.of(PODS)):
            if pod["metadata"]["name"].startswith("thief"):
                api.drop(PODS, _key(pod))
            elif pod["spec"].get("nodeSelector", {}).get(POOL) == "b":  # no node has that any more
                self._kueue.evict(api, f"ns/{_owner(pod)}", "Preempted", wait=0)
        for name in self.jobs:
            api.change(WORKLOADS, f"ns/{name}", lambda it: it["spec"].update(active=True))

    def _fault(self, likelihood: float) -> Callable[[Call], Exception | None]:
        def fault(call: Call) -> Exception | None:
            if not self._is_disturbed or (call.verb, call.plural) != ("patch", WORKLOADS.plural):
                return None
            if self._random.random() >= likelihood:
                return None
            self.faults += 1
            return ERRORS[self._random.choice(("server error", "no answer", "no answer"))]()

        return fault


_HARMLESS: Final[list[Callable[[History], None]]] = [
    *[History._change_flavor] * 2,
    *[History._change_check] * 3,
    History._toggle_job,
    History._recreate_job,
    History._change_priority,
    History._preempt_job,
    *[History._toggle_queue] * 2,
    *[History._toggle_other_checks] * 2,
    *[History._shrink_job] * 2,
    History._fail_pod,
    *[History._steal] * 4,
    History._set_clock,
]
_HARMFUL: Final[list[Callable[[History], None]]] = [
    History._toggle_cordon,
    History._toggle_taint,
    History._relabel_node,
    History._lose_or_add_node,
    History._change_devices,
    History._change_class,
    History._lose_or_add_template,
]


def _key(obj: Obj) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _owner(pod: Obj) -> str:
    name: str = pod["metadata"]["ownerReferences"][0]["name"]
    return name


def _pods(api: FakeApi, key: str) -> list[Obj]:
    """The pods of a job."""
    name = key.partition("/")[2]
    return [it for it in api.of(PODS) if it["metadata"].get("ownerReferences") and _owner(it) == name]


def _is_done(pod: Obj) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def _asked(job: Obj) -> int:
    admission = job.get("status", {}).get("admission")
    count: int = job["spec"]["podSets"][0]["count"]
    return int(admission["podSetAssignments"][0]["count"]) if admission else count


def _assign(job: Obj, count: int) -> None:
    job["status"]["admission"]["podSetAssignments"][0]["count"] = count


def pods_in(job: Obj) -> int:
    """How many pods the job has to have."""
    ended = job.get("status", {}).get("reclaimablePods") or [{"count": 0}]
    return max(_asked(job) - int(ended[0]["count"]), 0)


def is_promised(job: Obj) -> bool:
    """Whether the server says that the job may start, or that it runs."""
    states = [it["state"] for it in job.get("status", {}).get("admissionChecks", [])]
    is_over = is_true(job, "Finished") or is_true(job, "Evicted")
    return states == ["Ready"] and is_true(job, "QuotaReserved") and not is_over


# --- tests ---

FLAVOR_GONE = 71002060
"""A process starts while the flavor is deleted of jobs that are Ready and wait for other checks."""


@pytest.mark.parametrize("seed", [*range(6), FLAVOR_GONE])
def test_no_device_is_promised_twice(seed: int) -> None:
    History(seed).play()
