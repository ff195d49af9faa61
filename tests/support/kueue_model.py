"""What Kueue does with Workloads, and a job controller with their pods: enough for tests of an admission check.

It reserves quota by priority and age, whatever is behind a Workload that does not fit (BestEffortFIFO). As the real one
it does nothing with a Workload until ``requeueAt``, evicts in two steps, and resets a check to Pending in the first. If
it ``overlooks``, it tries a Workload whose wait others have ended when another one ends, or when its check was paused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from dra_api import yaml_text
from dra_api.values import format_time
from dra_kube import ADMISSION_CHECKS, PODS, RESOURCE_FLAVORS, WORKLOADS, Api, Resource
from dra_operator.admission.workloads import CONTROLLER_NAME
from fake_api import FakeApi
from objects import Make, Obj

CHECK = "devices"
FLAVOR = "any"
CRDS = Resource(
    "apiextensions.k8s.io", ("v1",), "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)


async def install_kueue(api: Api) -> None:
    """The definitions of the kinds that the project reads, without Kueue itself."""
    definitions = Path(__file__).with_name("kueue_crds") / "crds.yaml"
    for definition in yaml_text.load_all(definitions.read_text()):
        await api.create(CRDS, definition)


def kueue_assets() -> Path | None:
    """The folder with Kueue, if the environment names one that has it."""
    folder = Path(os.environ.get("KUEUE_ASSETS", ""))
    return folder if (folder / "kueue").exists() and (folder / "components").is_dir() else None


def admission_check(name: str = CHECK, controller: str = CONTROLLER_NAME, **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"controllerName": controller, **spec}}


def flavor(name: str = FLAVOR, **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": spec}


def workload(
    name: str, pods: int = 1, *, template: str = "tmpl", priority: int = 0, created: str = "", **spec: Any
) -> Obj:
    """A Workload with one set of pods, each with a claim from the template."""
    claims = [{"name": "entry-0", "resourceClaimTemplateName": template}]
    pod = {"schedulerName": "dra-scheduler", "containers": [], "resourceClaims": claims, **spec}
    meta = {"name": name, "namespace": "ns", "creationTimestamp": created or "2026-01-01T00:00:00Z"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"job-{name}", "controller": True}
    return {
        "metadata": {**meta, "ownerReferences": [owner]},
        "spec": {"podSets": [{"name": "main", "count": pods, "template": {"spec": pod}}], "priority": priority},
    }


def condition(obj: Obj, kind: str) -> Obj | None:
    return next((it for it in obj.get("status", {}).get("conditions", []) if it["type"] == kind), None)


def is_true(obj: Obj, kind: str) -> bool:
    found = condition(obj, kind)
    return found is not None and found["status"] == "True"


def check_of(obj: Obj, name: str = CHECK) -> Obj:
    """The state of a check; empty before there is one."""
    return next((it for it in obj.get("status", {}).get("admissionChecks", []) if it["name"] == name), {})


class KueueModel:
    """Call it each time the cluster may have changed. ``quota`` is the number of devices; ``cost`` says how many one
    Workload asks for. Without a ``check`` quota alone admits."""

    def __init__(
        self,
        quota: int,
        *,
        check: str | None = CHECK,
        cost: Callable[[Obj], int] | None = None,
        makes_pods: bool = True,
    ) -> None:
        self.quota, self.check, self.makes_pods = quota, check, makes_pods
        self._cost = cost or _pods_in
        self.is_stopped = False
        """Whether the queue is on hold: nobody gets quota, and who waits for its checks loses it."""
        self.waits_for_others = False
        """Whether checks of other controllers, which no Workload here names, keep Workloads from their admission."""
        self.forgets_devices = False
        """Whether it admits Workloads whose wait it ends itself without looking at their devices, as up to 0.19.2."""
        self.forgotten: list[str] = []
        """Keys of such Workloads."""
        self.overlooks = False
        self._waiting: set[str] = set()
        self._ended, self._is_paused = 0, False
        self._seen: object = None
        """What all that it did last depended on."""
        self.admitted: dict[str, datetime] = {}
        self.decided: Counter[str] = Counter()

    def furnish(self, api: FakeApi) -> None:
        if self.check is not None:
            api.add(ADMISSION_CHECKS, admission_check(self.check))
        api.add(RESOURCE_FLAVORS, flavor())

    def __call__(self, api: FakeApi) -> None:
        seen = api.revision, api.now, self.quota, self.check, self.is_stopped, self.waits_for_others
        if seen != self._seen:  # histories call it a thousand times for each change
            self._seen = seen
            self._act(api)

    def _act(self, api: FakeApi) -> None:
        now = datetime.fromisoformat(api.now)
        pending: list[Obj] = []
        used = 0
        ended = sum(is_true(it, "Finished") or it["spec"].get("active") is False for it in api.of(WORKLOADS))
        was_paused, self._is_paused = self._is_paused, self._has_paused_check(api)
        if ended != self._ended or (was_paused and not self._is_paused):
            self._waiting.clear()
        self._ended = ended
        for obj in list(api.of(WORKLOADS)):
            key = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
            if is_true(obj, "Finished"):
                continue
            if obj["spec"].get("active") is False:
                if is_true(obj, "QuotaReserved"):
                    self._evict(api, key, now, "Deactivated")
                    self._release(api, key, now)
            elif is_true(obj, "QuotaReserved") and (
                is_true(obj, "Evicted") or (self.is_stopped and not is_true(obj, "Admitted"))
            ):
                self._release(api, key, now)
            elif (due := _retry_at(obj)) is not None and due > now and due != _requeue_at(obj):
                api.change(WORKLOADS, key, partial(_set_requeue_at, due=due))
                used += self._cost(obj) if is_true(obj, "QuotaReserved") else 0
            elif _backs_off(obj, now):
                self._waiting.add(key)
                used += self._cost(obj) if is_true(obj, "QuotaReserved") else 0
            elif is_true(obj, "QuotaReserved"):
                self._go_on(api, key, obj, now)
                used += self._cost(obj) if is_true(api[WORKLOADS, key], "QuotaReserved") else 0
            elif not (self._is_paused or (self.overlooks and key in self._waiting and _requeue_at(obj) is None)):
                pending.append(obj)
        for obj in [it for it in pending if self.forgets_devices and _requeue_at(it) is not None]:
            pending.remove(obj)
            self._admit_without_devices(api, f"{obj['metadata']['namespace']}/{obj['metadata']['name']}", now)
        for obj in sorted(pending, key=_rank):
            if not self.is_stopped and used + self._cost(obj) <= self.quota:
                used += self._cost(obj)
                self._reserve(api, f"{obj['metadata']['namespace']}/{obj['metadata']['name']}", now)

    def _has_paused_check(self, api: FakeApi) -> bool:
        return any((condition(it, "Active") or {}).get("status") == "False" for it in api.of(ADMISSION_CHECKS))

    def _reserve(self, api: FakeApi, key: str, now: datetime) -> None:
        def edit(obj: Obj) -> None:
            status = obj.setdefault("status", {})
            assigned = [
                {"name": it["name"], "count": it["count"], "flavors": {"gpu": FLAVOR}} for it in obj["spec"]["podSets"]
            ]
            status["admission"] = {"clusterQueue": "team", "podSetAssignments": assigned}
            status.pop("requeueState", None)
            _set(obj, "QuotaReserved", "True", "QuotaReserved", now)
            _set(obj, "Evicted", "False", "QuotaReserved", now)
            if self.check is not None and not check_of(obj, self.check):
                pending = {
                    "name": self.check,
                    "state": "Pending",
                    "message": "",
                    "lastTransitionTime": format_time(now),
                }
                status.setdefault("admissionChecks", []).append(pending)

        self._go_on(api, key, api.change(WORKLOADS, key, edit), now)

    def _admit_without_devices(self, api: FakeApi, key: str, now: datetime) -> None:
        def edit(obj: Obj) -> None:
            assigned = [{"name": it["name"], "count": it["count"]} for it in obj["spec"]["podSets"]]
            obj["status"] |= {"admission": {"clusterQueue": "team", "podSetAssignments": assigned}}
            for name in ("requeueState", "admissionChecks"):
                obj["status"].pop(name, None)
            for kind, status in (("QuotaReserved", "True"), ("Evicted", "False")):
                _set(obj, kind, status, "QuotaReserved", now)

        self.forgotten.append(key)
        self._go_on(api, key, api.change(WORKLOADS, key, edit), now)

    def _go_on(self, api: FakeApi, key: str, obj: Obj, now: datetime) -> None:
        states = {it["state"] for it in obj["status"].get("admissionChecks", [])}
        if "Rejected" in states:
            api.change(WORKLOADS, key, lambda it: it["spec"].update(active=False))
            self._evict(api, key, now, "Deactivated")
        elif "Retry" in states:
            self._evict(api, key, now, "AdmissionCheck")
        elif states <= {"Ready"} and not is_true(obj, "Admitted") and not self.waits_for_others:
            api.change(WORKLOADS, key, lambda it: _set(it, "Admitted", "True", "Admitted", now))
            self.admitted[key] = now
            if self.makes_pods:
                for pod in pods_of(obj):
                    api.add(PODS, pod)

    def evict(self, api: FakeApi, key: str, reason: str, wait: int) -> None:
        """Take the quota back, and keep the Workload out of the queue for a while."""
        now = datetime.fromisoformat(api.now)
        self._evict(api, key, now, reason)
        self._release(api, key, now)
        api.change(WORKLOADS, key, partial(_set_requeue_at, due=now + timedelta(seconds=wait)))

    def _release(self, api: FakeApi, key: str, now: datetime) -> None:
        def edit(obj: Obj) -> None:
            obj["status"].pop("admission", None)
            _set(obj, "QuotaReserved", "False", "Pending", now)
            _set(obj, "Admitted", "False", "NoReservation", now)

        api.change(WORKLOADS, key, edit)

    def _evict(self, api: FakeApi, key: str, now: datetime, reason: str) -> None:
        def edit(obj: Obj) -> None:
            status = obj["status"]
            _set(obj, "Evicted", "True", reason, now)
            for it in status.get("admissionChecks", []):
                self.decided[it["state"]] += 1
                if it["state"] == "Retry":
                    it["retryCount"] = it.get("retryCount", 0) + 1
                if it["state"] != "Pending":
                    text = f"Reset to Pending after eviction. Previously: {it['state']}"
                    it.update(state="Pending", message=text, lastTransitionTime=format_time(now))

        name = key.partition("/")[2]
        for pod in api.of(PODS):
            if any(it["uid"] == f"job-{name}" for it in pod["metadata"].get("ownerReferences", [])):
                api.drop(PODS, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        api.change(WORKLOADS, key, edit)


def pods_of(obj: Obj, names: Iterable[str] | None = None) -> list[Obj]:
    """The pods that a job makes when its Workload is admitted."""
    made, meta = [], obj["metadata"]
    for pod_set in obj["spec"]["podSets"]:
        for number in range(pod_set["count"]):
            pod = Make.pod(f"{meta['name']}-{pod_set['name']}-x{number}")
            pod["spec"] = {**pod_set["template"]["spec"]}
            pod["metadata"] |= {
                "ownerReferences": meta["ownerReferences"],
                "labels": {"kueue.x-k8s.io/podset": pod_set["name"]},
                "creationTimestamp": meta["creationTimestamp"],
            }
            made.append(pod)
    return made


def finish(api: FakeApi, key: str) -> None:
    """The job is done: its pods go, and its quota is free."""
    now, name = datetime.fromisoformat(api.now), key.partition("/")[2]
    for pod in api.of(PODS):
        if any(it["uid"] == f"job-{name}" for it in pod["metadata"].get("ownerReferences", [])):
            api.drop(PODS, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
    api.change(WORKLOADS, key, lambda obj: _set(obj, "Finished", "True", "Succeeded", now))


def _pods_in(obj: Obj) -> int:
    return sum(it["count"] for it in obj["spec"]["podSets"])


def _rank(obj: Mapping[str, Any]) -> tuple[int, str, str]:
    meta = obj["metadata"]
    return -obj["spec"].get("priority", 0), meta["creationTimestamp"], meta["name"]


def _requeue_at(obj: Obj) -> datetime | None:
    due = obj.get("status", {}).get("requeueState", {}).get("requeueAt")
    return datetime.fromisoformat(due) if due is not None else None


def _set_requeue_at(obj: Obj, due: datetime) -> None:
    obj["status"]["requeueState"] = {"requeueAt": format_time(due)}


def _backs_off(obj: Obj, now: datetime) -> bool:
    due = _requeue_at(obj)
    return due is not None and due > now


def _retry_at(obj: Obj) -> datetime | None:
    """When the checks in Retry say that it may be tried again."""
    times = [
        datetime.fromisoformat(it["lastTransitionTime"]) + timedelta(seconds=it["requeueAfterSeconds"])
        for it in obj.get("status", {}).get("admissionChecks", [])
        if it["state"] == "Retry" and it.get("requeueAfterSeconds")
    ]
    return max(times, default=None)


def _set(obj: Obj, kind: str, status: str, reason: str, now: datetime) -> None:
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    made = {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": format_time(now)}
    known = next((at for at, it in enumerate(conditions) if it["type"] == kind), len(conditions))
    conditions[known : known + 1] = [made]  # as Kueue does: each stays in its place
