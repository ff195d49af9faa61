"""What is gone is forgotten: an operator that works for months must not grow with each pod."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from controllers_world import HOST, World
from dra_kube import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    Resource,
    Unreachable,
)
from dra_ledger.basics import Journal
from dra_ledger.usage import FreedDevices
from dra_operator.allocator import Allocator, Features
from dra_operator.cache.store import UidMemory
from dra_operator.controllers import PreemptionSettings
from dra_operator.controllers.context import Announced, GrowingPauses
from dra_operator.controllers.fairness import SPARE_ENTRIES
from dra_operator.controllers.scheduling import gangs
from dra_operator.kube import EventRecorder
from dra_operator.kube.client import Fresh
from fake_api import Call, FakeApi
from neighbour_lab import PREFERRED, REQUIRED
from objects import Make, Obj
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from remembered import by_attribute, kept_by_classes, sizes
from waiting import until

LIMITED = (UidMemory, Journal, EventRecorder, Fresh, Announced, Allocator, GrowingPauses, FreedDevices)
"""Each of them has a limit; the allocator for compiled claims, and as many counts as there are nodes.

Freed devices are no more than devices were ever taken: which ones the pods of a run took is chance.
"""
NOT_OURS = (FakeApi, CollectorRegistry, MetricWrapperBase)
DEBTS = (".fairness._paid_at", ".fairness._order", "._backoff._full_at")
GPU = {"deviceclass.resource.kubernetes.io/gpu": "1"}
ROOT = Path(__file__).parents[2]
OPERATOR = ROOT / "operator/dra_operator"
VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}


async def come_and_go(world: World, make: type[Make], name: str) -> None:
    """Pods of all kinds and their claims: some are bound, some wait; then all of them go."""
    gate = [{"name": "dra.kopf.dev/allocate"}]
    for kind, obj in (
        (PODS, make.pod(f"{name}-generated", [make.FROM_TEMPLATE])),
        (PODS, make.pod(f"{name}-extended", containers=[make.asking("main", **GPU)])),
        (RESOURCE_CLAIMS, make.claim(f"{name}-named")),
        (PODS, make.pod(f"{name}-named", [make.use(f"{name}-named")])),
        (RESOURCE_CLAIMS, make.claim(f"{name}-immediate", annotations={"dra.kopf.dev/allocate": "immediate"})),
        (PODS, make.pod(f"{name}-gated", [make.FROM_TEMPLATE], schedulerName="other", schedulingGates=gate)),
        (PODS, make.pod(f"{name}-foreign", [make.FROM_TEMPLATE], schedulerName="other")),
        (PODS, make.pod(f"{name}-without-claim", [make.use("missing")])),
        (PODS, make.pod(f"{name}-without-volume", volumes=[VOLUME])),
        (PODS, make.pod(f"{name}-without-node", [make.FROM_TEMPLATE], nodeSelector={"no": "where"})),
        (PODS, make.pod(f"{name}-without-template", [{"name": "gpu", "resourceClaimTemplateName": "missing"}])),
    ):
        world.api.add(kind, obj)
    async with asyncio.timeout(60):
        while len(world.bound()) < 3:
            world.bring_events()
            await world.tick()
    for pod in list(world.api.of(PODS)):
        world.api.drop(PODS, f"ns/{pod['metadata']['name']}")
    world.bring_events()
    for claim in list(world.api.of(RESOURCE_CLAIMS)):
        world.api.deleted(RESOURCE_CLAIMS, claim["metadata"]["name"], "ns")
    await world.quiet()
    assert world.api.of(RESOURCE_CLAIMS) == []


async def test_the_operator_remembers_no_more_after_many_pods_than_after_some(world: World, make: type[Make]) -> None:
    world.furnish(2, 40)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.start()
    async with world.running() as control:
        for number in range(2):
            await come_and_go(world, make, f"first-{number}")
        before = sizes(control, without=(*LIMITED, *NOT_OURS))
        for number in range(4):
            await come_and_go(world, make, f"second-{number}")
        await until("nothing larger than before", partial(nothing_grew, control, before))


async def nothing_grew(control: object, before: Mapping[str, int]) -> bool:
    """What the line leaves in its heaps is swept with later keys; debts are forgotten by a later decision or failure.

    A pod whose gate is being opened when it goes fails once: whether one does is a matter of the moment.
    """
    after = sizes(control, without=(*LIMITED, *NOT_OURS))
    assert all(size <= SPARE_ENTRIES + 2 for path, size in after.items() if path.endswith(DEBTS))
    after = {path: size for path, size in after.items() if not path.endswith(DEBTS)}
    assert len(after) > 100
    assert {path: (before.get(path), size) for path, size in after.items() if size > before.get(path, size)} == {}
    return True


# --- every memory of the operator ---

ROOMS = ("cache", "controllers", "kube", "scheduling/state")
"""Of the operator: what lives as long as the process, and has an entry for what users make."""
OF_ONE_ATTEMPT = ("BindingCycle", "GangAttempt")
"""Classes of which an object goes with the attempt that made it."""
ELSEWHERE = {
    "tests/cache/test_many_users.py": (
        "Index._late",
        "ClusterState._late_sharing",
    ),
    "tests/cache/test_bulk.py": ("Bulk._sums", "Bulk._whole", "Bulk.pods_aside"),
    "tests/cache/test_shared_drivers.py": ("SharedDrivers._gone_classes",),
    "tests/controllers/test_crowds.py": ("Crowds._begun", "Crowds._lines"),
    "tests/controllers/test_evicting.py": (
        "PodEvictor._planned",
        "RuleReporter._evicted",
        "ClusterState.changed_rules",
    ),
    "tests/controllers/test_gangs.py": (
        "GangProgress.asked",
        "Gangs.in_hand",
    ),
    "tests/controllers/test_hard_pods.py": (
        "Dispatcher._postponed",
        "SchedulingCycle._put_aside",
        "Topologies._growing",
        "WorkQueue._postponed",
    ),
    "tests/controllers/test_immediate_claims.py": ("ClusterState.placeholders",),
    "tests/controllers/test_line.py": (
        "Fairness._aside",
        "Fairness._large",
        "Fairness._large_aside",
    ),
    "tests/controllers/test_large_claims.py": ("ClusterState.large_claims",),
    "tests/controllers/test_mix_learner.py": ("MixLearner._told",),
    "tests/controllers/test_put_off.py": (
        "ClaimGenerator._failed",
        "LateWork._lacking",
        "LateWork._said",
        "LateWork._telling",
        "LateWork._warned",
        "WaitingReport._put_off",
        "WaitingReport._rests",
        "WorkQueue._resting",
    ),
    "tests/controllers/test_pod_groups.py": (
        "GroupConditions._said",
        "NamesBeingWritten._under_way",
        "PodGroupView.releasing",
        "Reservations._gatherings",
    ),
    "tests/controllers/test_pool_status.py": ("PoolReporter._tries",),
    "tests/controllers/test_preempting.py": ("Preemption._outdated",),
    "tests/controllers/test_preemption_turns.py": ("PreemptionTurns._line",),
    "tests/controllers/test_releasing.py": (
        "DelayedDeletion._ending",
        "DelayedDeletion._collectors",
    ),
    "tests/controllers/test_queue.py": ("WorkQueue._again", "WorkQueue._weak"),
    "tests/controllers/test_rounds.py": (
        "Fairness._left",
        "Fairness._next",
    ),
    "tests/controllers/test_shared_drivers.py": (
        "ConflictCheck._former",
        "ConflictCheck._unlisted",
        "ParkedClaims._alone_since",
        "ParkedClaims._asked_at",
        "ClusterState.contested",
        "ClusterState.unparking",
    ),
    "tests/controllers/test_territory.py": (
        "OwnDevices._settling",
        "OwnDevices._trespassed",
    ),
    "tests/controllers/test_violation_log.py": (
        "ViolationLog._since",
        "ViolationLog._told",
    ),
    "tests/controllers/test_volume_binding.py": (
        "StorageView._assumed",
        "StorageView._waits",
    ),
}
"""Memories that the story below does not always fill, by the tests that do."""
BOUNDED = {
    "EventRecorder._allowance": "10,000 objects that had events",
    "GrowingPauses._done": "10,000 UIDs",
    "UidMemory._uids": "10,000 UIDs",
    "Recently._done": "10,000 UIDs",
    "ClaimAccess._unsettled": "10,000 claims",
    "PodWriter._unanswered": "10,000 pods",
    "PodWriter._recorded": "10,000 claims",
    "PodsByNode._counted": "512 selections: tests/scheduling/test_many_rules.py",
    "Anchors._keys": "those of the selections",
    "DomainsByNode.counts": "those of the selections",
    "Deference._doublings": "drivers that lost devices in the last five minutes",
    "Deference._waiting": "pods that came in two minutes",
    "PlacementMetrics._drivers": "names of drivers, of which metrics have so many",
    "PodsByNode.namespaces": "namespaces of the cluster",
    "Fairness._paid_at": "spare entries, swept with later keys",
    "Fairness._order": "spare entries, swept with later keys",
    "KeyBackoff._full_at": "debts, forgotten by a later failure",
}
"""Memories that end by their size, or with what administrators make; the files have the numbers."""


def held(made: Obj) -> Obj:
    """A pod that takes its time to end."""
    made["metadata"]["finalizers"] = ["example.com/held"]
    return made


def of_gang(made: Obj, gang: str, size: int) -> Obj:
    made["metadata"]["annotations"] = {"dra.kopf.dev/gang": gang, "dra.kopf.dev/gang-size": str(size)}
    return made


def rich_world() -> World:
    """A world with all that an operator can be asked for, and a node with one device."""
    world = World(Features(taint_rules=True, pool_status=True))
    world.preemption = PreemptionSettings()
    world.times = replace(world.times, preemption_rest=0.05)
    world.furnish(2, 40)
    world.api.add(NODES, Make.node("small", **{HOST: "small"}))
    world.api.add(RESOURCE_SLICES, Make.slice("small", 1))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return world


def all_kinds(name: str) -> Iterator[tuple[Resource, Obj]]:
    """What comes in one round, beside what ``come_and_go`` brings."""
    own, on_small = [Make.FROM_TEMPLATE], {HOST: "small"}
    labels = {"matchLabels": {"app": "web"}}
    rules: Obj = {
        "podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"labelSelector": labels, "topologyKey": HOST}}]},
        "podAntiAffinity": {REQUIRED: [{"labelSelector": {"matchLabels": {"app": name}}, "topologyKey": HOST}]},
    }
    spread = {"maxSkew": 9, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": labels}
    for number in range(2):
        yield PODS, of_gang(Make.pod(f"{name}-fits-{number}", own), f"{name}-fits", 2)
        yield PODS, of_gang(Make.pod(f"{name}-lacks-{number}", own), f"{name}-lacks", 3)
        yield PODS, of_gang(Make.pod(f"{name}-large-{number}", own, nodeSelector=on_small), f"{name}-large", 2)
        web = Make.pod(f"{name}-web-{number}", own, affinity=rules, topologySpreadConstraints=[spread])
        web["metadata"]["labels"] = {"app": "web"}
        yield PODS, web
    yield PODS, held(Make.pod(f"{name}-low", own, nodeSelector=on_small))
    yield PODS, Make.pod(f"{name}-high", own, nodeSelector=on_small, priority=10)
    yield RESOURCE_POOL_STATUS_REQUESTS, {"metadata": {"name": f"{name}-ask"}, "spec": {"driver": "gpu.example.com"}}


async def rich_round(world: World, name: str, note: Callable[[], None]) -> None:
    """Pods of all kinds come, some writes get no answer, and all go again."""
    lost = {"patch pods status", "create pods binding", "update resourceclaims status"}

    def lose(call: Call) -> Exception | None:
        words = " ".join(filter(None, (call.verb, call.plural, call.sub)))
        if words not in lost:
            return None
        lost.discard(words)
        return Unreachable("connection reset")

    world.api.after, world.api.before = lose, lambda _: note()
    for kind, obj in all_kinds(name):
        world.api.add(kind, obj)
        if obj["metadata"]["name"].endswith("-low"):
            async with asyncio.timeout(60):
                while world.node_of(f"{name}-low") is None:
                    await bring(world, note)
    async with asyncio.timeout(60):
        while "deletionTimestamp" not in world.api[PODS, f"ns/{name}-low"]["metadata"]:
            await bring(world, note)
    world.api.after = world.api.before = lambda _: None
    for pod in list(world.api.of(PODS)):
        world.api.drop(PODS, f"ns/{pod['metadata']['name']}")
    for request in list(world.api.of(RESOURCE_POOL_STATUS_REQUESTS)):
        world.api.drop(RESOURCE_POOL_STATUS_REQUESTS, request["metadata"]["name"])
    await bring(world, note)
    for claim in list(world.api.of(RESOURCE_CLAIMS)):
        world.api.deleted(RESOURCE_CLAIMS, claim["metadata"]["name"], "ns")
    for _ in range(100):
        await bring(world, note)


async def bring(world: World, note: Callable[[], None]) -> None:
    world.bring_events()
    await asyncio.sleep(0.1)  # each note looks at everything, so that there are few of them
    note()


async def test_each_memory_is_filled_by_what_comes_and_released_when_it_goes(
    make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new memory fails until it is in the story, or in a table with the test that fills it or its bound."""
    monkeypatch.setattr(gangs, "REMEMBERED_GANGS", 1)
    listed = set().union(*(kept_by_classes(OPERATOR / room) for room in ROOMS))
    most: Counter[str] = Counter()
    world = rich_world()
    world.start()
    async with world.running() as control:

        def note() -> None:
            for name, size in by_attribute(control, NOT_OURS).items():
                most[name] = max(most[name], size)

        await come_and_go(world, make, "simple")
        await rich_round(world, "first", note)
        before = by_attribute(control, NOT_OURS)
        for number in range(2):
            await rich_round(world, f"more-{number}", lambda: None)
        after = by_attribute(control, NOT_OURS)
    filled, elsewhere = {name for name in listed if most[name]}, set(chain.from_iterable(ELSEWHERE.values()))
    lasting = {name for name in listed if name.partition(".")[0] not in OF_ONE_ATTEMPT}
    assert lasting - filled - elsewhere - BOUNDED.keys() == set(), "never filled"
    assert (elsewhere | BOUNDED.keys()) - listed == set(), "gone"
    assert [file for file in ELSEWHERE if not (ROOT / file).is_file()] == []
    grew = {name: (before.get(name, 0), after.get(name, 0)) for name in lasting - BOUNDED.keys()}
    assert {name: it for name, it in grew.items() if it[1] > it[0] + 1} == {}
