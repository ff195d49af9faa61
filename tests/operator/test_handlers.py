"""What happens in the cluster comes in by the handlers, under Kopf as under ``dra-operator run``, each change once."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kopf
import pytest
from dra_api.releases import Release
from dra_kube import (
    ADMISSION_CHECKS,
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    WORKLOADS,
    Change,
    Resource,
)
from dra_operator.app import probes as health
from dra_operator.app import run as supervisor
from dra_operator.app.operator import Operator
from dra_operator.app.settings import OperatorSettings
from dra_operator.sources import handlers, watches
from dra_operator.sources.handlers import HANDLERS
from dra_operator.sources.kinds import WATCHED
from kopf._core.intents.causes import Activity
from kueue_model import install_kueue
from objects import Obj
from supervised import LiveCluster, Supervising, kopf_run
from waiting import becomes

GPU: Obj = {"deviceClassName": "gpu"}
SPEC: Obj = {"devices": {"requests": [{"name": "r", "exactly": GPU}]}}
CONTAINER = {"name": "main", "image": "none"}
ELSEWHERE: Obj = {
    "metadata": {"name": "elsewhere", "namespace": "ns"},
    "spec": {"schedulerName": "another", "containers": [CONTAINER]},
}
EVERY_KIND = OperatorSettings(
    controllers="auto,admission",
    feature_gates="DRADeviceTaintRules=true,DRAResourcePoolStatus=true,GenericWorkload=true",
    kubernetes_version="1.37",
    preemption=True,
)
"""With each kind that an operator can watch."""
ONE_OF_EACH: dict[Resource, Obj] = {
    NAMESPACES: {},
    NODES: {},
    DEVICE_CLASSES: {"spec": {}},
    DEVICE_TAINT_RULES: {"spec": {"deviceSelector": {"driver": "d.io"}, "taint": {"key": "k", "effect": "NoSchedule"}}},
    RESOURCE_SLICES: {
        "spec": {
            "driver": "d.io",
            "allNodes": True,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d"}],
        }
    },
    RESOURCE_CLAIM_TEMPLATES: {"spec": {"spec": SPEC}},
    RESOURCE_CLAIMS: {"spec": SPEC},
    RESOURCE_POOL_STATUS_REQUESTS: {"spec": {"driver": "d.io"}},
    POD_GROUPS: {"spec": {"schedulingPolicy": {"basic": {}}}},
    STORAGE_CLASSES: {"provisioner": "d.io"},
    CSI_DRIVERS: {"spec": {}},
    CSI_NODES: {"spec": {"drivers": []}},
    CSI_STORAGE_CAPACITIES: {"storageClassName": "late"},
    VOLUME_ATTACHMENTS: {
        "spec": {"attacher": "d.io", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    },
    PERSISTENT_VOLUMES: {
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    },
    PERSISTENT_VOLUME_CLAIMS: {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    },
    POD_DISRUPTION_BUDGETS: {"spec": {"minAvailable": 1, "selector": {}}},
    ADMISSION_CHECKS: {"spec": {"controllerName": "example.com/another"}},
    RESOURCE_FLAVORS: {"spec": {}},
    WORKLOADS: {"spec": {"podSets": []}},
    PODS: {"spec": ELSEWHERE["spec"]},
}
"""A new object of each kind, by another client, for which the operator has no work."""


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"release": Release.V1_37, "feature_gates": {"GenericWorkload": True}}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Counter[Resource]:
    """How often each handler was called, of the very functions in ``HANDLERS``."""
    calls: Counter[Resource] = Counter()

    def counting(resource: Resource, handler: handlers.Handler) -> handlers.Handler:
        @functools.wraps(handler)
        async def call(*arguments: Any, **options: Any) -> None:
            calls[resource] += 1
            await handler(*arguments, **options)

        return call

    for resource, handler in list(HANDLERS.items()):
        monkeypatch.setitem(HANDLERS, resource, counting(resource, handler))
    return calls


async def handlers_of_each_kind_are_called(cluster: LiveCluster, called: Counter[Resource]) -> None:
    await cluster.heard()
    before = called.copy()
    for resource, body in ONE_OF_EACH.items():
        meta: Obj = {"name": "new-one"} | ({"namespace": "ns"} if resource.namespaced else {})
        await cluster.api.create(resource, {"metadata": meta, **body})
    missing: list[str] = []

    def heard() -> bool:
        missing[:] = [str(resource) for resource in WATCHED if called[resource] == before[resource]]
        return not missing

    try:
        await becomes(heard, 30)
    finally:
        assert missing == []


async def test_dra_operator_run_and_kopf_run_call_the_same_handler_of_each_kind(
    cluster: LiveCluster,
    kubeconfig: Path,
    supervising: Supervising,
    called: Counter[Resource],
) -> None:
    assert HANDLERS.keys() == WATCHED.keys() == ONE_OF_EACH.keys()
    await install_kueue(cluster.api)
    await cluster.furnish(nodes=1)
    with kopf_run(kubeconfig, timeout=90, settings=EVERY_KIND):
        await handlers_of_each_kind_are_called(cluster, called)
    for resource in ONE_OF_EACH:
        namespace = "ns" if resource.namespaced else None
        await cluster.api.delete(resource, "new-one", namespace, grace_seconds=0 if resource == PODS else None)
    await cluster.api.delete(PODS, "heard", "ns", grace_seconds=0)
    called.clear()
    async with supervising(EVERY_KIND) as site:
        await site.ready()
        await handlers_of_each_kind_are_called(cluster, called)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each start-up, clean-up and probe function was called."""
    seen: Counter[str] = Counter()
    for name in ("start", "stop", "running"):
        function = getattr(handlers, name)
        monkeypatch.setattr(handlers, name, counted(function, seen, name))
        for module in (supervisor, health):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, counted(function, seen, name))
    return seen


def counted(function: Callable[..., Any], seen: Counter[str], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        seen[name] += 1
        return function(*arguments, **options)

    return call


async def test_both_start_stop_and_probe_by_the_same_functions(
    cluster: LiveCluster, kubeconfig: Path, supervising: Supervising, calls: Counter[str]
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
    assert (calls["start"], calls["stop"], calls["running"] > 0) == (1, 1, True)
    calls.clear()
    with kopf_run(kubeconfig, timeout=90):
        await cluster.heard()
    assert (calls["start"], calls["stop"]) == (1, 1)
    registry = kopf.OperatorRegistry()
    handlers.register(Operator(), registry)
    probes = list(registry._activities.get_handlers(activity=Activity.PROBE))
    assert [probe.fn for probe in probes] == [handlers.running]


# --- what is news ---


def pod_change(name: str, number: int, event: str = "MODIFIED", uid: str = "", **spec: Any) -> Change:
    meta = {"name": name, "namespace": "ns", "uid": uid or name, "resourceVersion": str(number)}
    return Change.of(event, {"metadata": meta, "spec": ELSEWHERE["spec"] | spec}, PODS)


async def test_what_others_write_is_decoded_and_what_the_operator_wrote_is_not(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.furnish(nodes=3, template=True)
    decoded: list[str] = []
    known = Change.decoded

    def listening(change: Change, type_: Any) -> Any:
        decoded.append(f"{change.resource} {change.version.name}")
        return known(change, type_)

    async with supervising() as site:
        await site.ready()
        monkeypatch.setattr(watches, "ANSWER_SECONDS", 0.5)  # a busy machine may answer late
        monkeypatch.setattr(Change, "decoded", listening)
        await cluster.place("pod")
        name = (await cluster.claims())[0]["metadata"]["name"]
        await asyncio.sleep(1.0)
        assert f"{PODS} pod" in decoded
        assert f"{RESOURCE_CLAIMS} {name}" not in decoded
        await cluster.api.patch(RESOURCE_CLAIMS, name, {"metadata": {"labels": {"by": "another"}}}, "ns")
        await becomes(lambda: f"{RESOURCE_CLAIMS} {name}" in decoded)
        assert not [what for what in decoded if what.startswith((str(NODES), str(RESOURCE_SLICES)))]


async def test_older_versions_and_known_ends_are_dropped_whatever_their_order(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster

        def known(name: str) -> str:
            found = view.pods.get(f"ns/{name}")
            return found.metadata.resource_version if found is not None else ""

        for number, newest in ((9010, 9010), (9012, 9012), (9011, 9012), (9012, 9012)):
            site.operator.take(pod_change("new", number))
            assert known("new") == str(newest)
        site.operator.take(pod_change("new", 9020, "DELETED", uid="a predecessor"))
        assert known("new") == "9012"
        site.operator.take(pod_change("new", 9021, "DELETED"))
        site.operator.take(pod_change("new", 9013, "LISTED"))  # of a list that was late
        assert known("new") == ""
        site.operator.take(pod_change("new", 9022, "ADDED", uid="a successor"))
        assert known("new") == "9022"
        site.operator.take(pod_change("odd", 9030, nodeName=7))
        assert known("odd") == ""


@pytest.mark.parametrize(
    ("event", "source"), [("ADDED", "watch"), ("LISTED", "list"), ("DELETED", "watch"), ("MISSED", "list")]
)
async def test_the_metric_names_what_brought_a_change(
    cluster: LiveCluster, supervising: Supervising, event: str, source: str
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()

        def counts() -> dict[str, float]:
            names = ("list", "watch", "answer", "audit", "conflict check")
            return {it: site.metric("dra_operator_cache_changes_total", source=it) for it in names}

        if event in ("DELETED", "MISSED"):
            site.operator.take(pod_change("new", 9009))
        before = counts()
        site.operator.take(pod_change("new", 9010, event))
        site.operator.take(pod_change("new", 9010, event))
        assert counts() == before | {source: before[source] + 1}


async def test_the_node_that_a_binding_gave_a_pod_is_taken_in_from_its_event(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    """Unlike other answers that of a binding does not hold the object."""
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster
        site.operator.take(pod_change("p", 9010))
        view.bound.add("p")
        site.operator.take(pod_change("p", 9011))  # another change, which came before
        assert "p" in view.bound
        site.operator.take(pod_change("p", 9012, nodeName="node-1"))
        found = view.pods.get("ns/p")
        assert found is not None
        assert (found.spec.node_name, "p" in view.bound) == ("node-1", False)


async def test_an_error_while_a_change_is_taken_in_is_logged_and_the_watch_goes_on(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        with monkeypatch.context() as patch:
            patch.setattr(site.operator.control, "apply", lambda *_: 1 // 0)
            await cluster.api.create(PODS, ELSEWHERE)
            await becomes(lambda: "Pod ns/elsewhere of resourceVersion" in caplog.text)
        assert "was not taken in whole" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        await cluster.heard()
        await site.ready()


@pytest.mark.parametrize("kind", ["pod", "claim"])
async def test_a_large_object_is_kept_without_its_bulk(
    cluster: LiveCluster, supervising: Supervising, kind: str
) -> None:
    await cluster.furnish()
    labels = {f"l{number}": "x" * 60 for number in range(15_000)}
    resource, meta = (PODS if kind == "pod" else RESOURCE_CLAIMS), {"name": "big", "namespace": "ns", "labels": labels}
    body = ELSEWHERE if kind == "pod" else {"spec": SPEC}
    async with supervising() as site:
        await site.ready()
        view = site.operator.control.cluster
        await cluster.api.create(resource, body | {"metadata": meta})
        store = view.pods if kind == "pod" else view.claims
        await becomes(lambda: store.get("ns/big") is not None)
        found = store.get("ns/big")
        assert found is not None
        assert set(found.metadata.labels or {}) <= {"dra.kopf.dev/large"}  # the mark of a large claim


async def test_a_new_pod_does_not_wait_for_answers_to_writes(
    cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.furnish(template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.heard()
        pods = site.operator.control.cluster.pods
        await becomes(lambda: (seen := pods.get("ns/heard")) is not None and seen.spec.node_name)  # the last event
        monkeypatch.setattr(watches, "ANSWER_SECONDS", 3600.0)
        await cluster.place("pod")
