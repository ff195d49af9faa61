"""However many objects of a tenant hang on one object, a change of that holds up the event loop for a few of them.

``benchmarks/fan_out.py`` measures the same populations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from controllers_world import World, keys_of
from dra_api.codec import convert
from dra_api.meta import Object
from dra_kube import (
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
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    Resource,
)
from dra_operator.allocator import Features
from dra_operator.cache import Crowd, Hint, Key, Source, crowds, wakeups
from dra_operator.controllers import fairness
from dra_operator.controllers.fairness import Fairness
from dra_operator.controllers.queue import Crowds, WorkQueue, WorkQueues
from dra_operator.sources.kind_table import TABLE
from dra_operator.sources.kinds import WATCHED
from objects import Make, Obj, user

FEATURES: Final = Features(
    device_taints=True, taint_rules=True, generic_workload=True, workload_resource_claims=True, pool_status=True
)
DRIVER: Final = "gpu.example.com"
Item = tuple[Resource, Obj]


@dataclass(frozen=True)
class Population:
    """``many`` makes the objects, by their number. ``one`` makes a version of the object on which they hang."""

    kind: Resource
    one: Callable[[int], Obj]
    many: Callable[[int], list[Item]]
    others: tuple[Item, ...] = ()
    are_short: bool = False
    """The namespace has no room for its objects: little is kept of each."""


def _labelled(obj: Obj, version: int) -> Obj:
    obj["metadata"]["labels"] = {"version": str(version)}
    return obj


def _uses(*names: str, **spec: Any) -> Callable[[int], list[Item]]:
    return lambda number: [(PODS, Make.pod(f"pod-{number}", [Make.use(name) for name in names], **spec))]


def _own_claim(number: int) -> list[Item]:
    """A pod that waits with a claim of its own."""
    name = f"pod-{number}"
    return [(RESOURCE_CLAIMS, Make.claim(f"claim-{number}")), (PODS, Make.pod(name, [Make.use(f"claim-{number}")]))]


def _held(number: int, device: str, *, node: str = "node") -> list[Item]:
    """A pod that runs, with a device."""
    result = {"request": "req", "driver": DRIVER, "pool": "node", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user(f"pod-{number}")]}
    claim = Make.claim(f"claim-{number}", finalizers=["resource.kubernetes.io/delete-protection"])
    pod = Make.pod(f"pod-{number}", [Make.use(f"claim-{number}")], node=node)
    return [(RESOURCE_CLAIMS, {**claim, "status": status}), (PODS, pod)]


def _allocated(version: int) -> Obj:
    """A claim that has a device in every other version."""
    claim = Make.claim("one")
    if version % 2:
        claim["status"] = {
            "allocation": {"devices": {"results": [{"request": "req", "driver": DRIVER, "pool": "p", "device": "d"}]}}
        }
    return claim


def _with_volume(number: int) -> list[Item]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "one"}}
    claim, pod = _own_claim(number)
    pod[1]["spec"]["volumes"] = [volume]
    return [claim, pod]


def _many_claims(number: int) -> list[Item]:
    """A pod that names 175 claims, in 60 KB."""
    pod = Make.pod(f"pod-{number}", [Make.use(f"claim-{it}") for it in range(175)])
    pod["spec"]["tolerations"] = [{"key": f"key-{it}", "value": "x" * 50, "operator": "Equal"} for it in range(600)]
    return [(PODS, pod)]


def _member(number: int) -> list[Item]:
    return [(PODS, Make.pod(f"pod-{number}", [Make.use(f"claim-{number}")], schedulingGroup={"podGroupName": "one"}))]


def _gang_member(number: int) -> list[Item]:
    pod = Make.pod(f"pod-{number}", [Make.use(f"claim-{number}")])
    pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "one", "dra.kopf.dev/gang-size": "1000"}
    return [(PODS, pod)]


def _node(version: int) -> Obj:
    return Make.node("node", version=str(version))


def _group(version: int) -> Obj:
    spec: Obj = {"schedulingPolicy": {"gang": {"minCount": 2 + version}}}
    return {"metadata": {"name": "one", "namespace": "ns"}, "spec": spec}


def _cluster_wide(name: str, **more: Any) -> Callable[[int], Obj]:
    return lambda version: _labelled({"metadata": {"name": name}, **more}, version)


def _in_namespace(**more: Any) -> Callable[[int], Obj]:
    return lambda version: _labelled({"metadata": {"name": "one", "namespace": "ns"}, **more}, version)


def _rule(version: int) -> Obj:
    taint = {"key": "broken", "effect": "NoExecute", "value": str(version)}
    return {"metadata": {"name": "one"}, "spec": {"deviceSelector": {"driver": DRIVER}, "taint": taint}}


def _rules(number: int) -> list[Item]:
    taint = {"key": f"key-{number}", "effect": "NoExecute"}
    selected = {"driver": DRIVER, "pool": "node", "device": f"dev-{number}"}
    return [
        (
            DEVICE_TAINT_RULES,
            {"metadata": {"name": f"rule-{number}"}, "spec": {"deviceSelector": selected, "taint": taint}},
        )
    ]


def _part_of_pool(number: int) -> list[Item]:
    piece = Make.slice("node", 1, name=f"part-{number}")
    piece["spec"]["pool"]["resourceSliceCount"] = 10_000
    piece["spec"]["devices"][0]["name"] = f"dev-{number}"
    return [(RESOURCE_SLICES, piece)]


def _of_pool(version: int) -> Obj:
    piece = Make.slice("node", 1, name="one")
    piece["spec"]["pool"]["resourceSliceCount"] = 10_000 + version % 2
    return piece


def _tainted(version: int) -> Obj:
    slice_ = Make.slice("node", 1)
    slice_["spec"]["devices"][0]["taints"] = [{"key": f"key-{version}", "effect": "NoExecute"}]
    return slice_


def _owned(number: int) -> list[Item]:
    """A claim that says it was made for the pod."""
    return [(RESOURCE_CLAIMS, Make.claim(f"claim-{number}", owner={"name": "one", "uid": "uid-one"}))]


def _running(version: int) -> Obj:
    """A pod that runs, and has ended in every other version."""
    pod = Make.pod("one", node="node")
    pod["metadata"]["uid"] = "uid-one"
    pod["status"]["phase"] = ("Running", "Succeeded")[version % 2]
    return pod


def _apart(number: int) -> list[Item]:
    """A pod that may not be beside the one that comes and goes."""
    term = {
        "labelSelector": {"matchExpressions": [{"key": "version", "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    claim, pod = _own_claim(number)
    pod[1]["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return [claim, pod]


def _from_template(number: int) -> list[Item]:
    return [(PODS, Make.pod(f"pod-{number}", [{"resourceClaimTemplateName": "one"}]))]


POPULATIONS: Final[dict[str, Population]] = {
    "users of a claim": Population(RESOURCE_CLAIMS, _allocated, _uses("one")),
    "running users of a claim": Population(RESOURCE_CLAIMS, _allocated, _uses("one", node="node")),
    "users of a claim that another scheduler places": Population(
        RESOURCE_CLAIMS, _allocated, _uses("one", schedulerName="another")
    ),
    "pods of 175 claims in a namespace with claims that come": Population(
        RESOURCE_CLAIMS,
        lambda version: _labelled(Make.claim(f"other-{version}"), version),
        _many_claims,
        are_short=True,
    ),
    "claims of a device": Population(RESOURCE_SLICES, _tainted, lambda number: _held(number, "dev-0")),
    "claims of a pod": Population(PODS, _running, _owned),
    "claims of a class": Population(
        DEVICE_CLASSES, lambda version: Make.device_class("gpu", f"attribute-{version}"), _own_claim
    ),
    "pods that wait for devices": Population(
        RESOURCE_SLICES, lambda version: Make.slice("node", 1 + version), _own_claim
    ),
    "pods that wait for freed devices": Population(RESOURCE_CLAIMS, _allocated, _own_claim),
    "pods that wait for a node": Population(NODES, _node, _own_claim),
    "pods that wait for room": Population(PODS, _running, _own_claim),
    "pods that keep away from another": Population(PODS, lambda version: _labelled(_running(version), version), _apart),
    "pods of a node": Population(NODES, _node, _uses(node="node")),
    "running pods of a tainted device's driver": Population(
        DEVICE_TAINT_RULES, _rule, lambda number: _held(number, f"dev-{number}")
    ),
    "taint rules of a driver": Population(RESOURCE_CLAIMS, _allocated, _rules),
    "taint rules, and a slice": Population(RESOURCE_SLICES, _tainted, _rules),
    "slices of a pool": Population(RESOURCE_SLICES, _of_pool, _part_of_pool),
    "pods of a template": Population(
        RESOURCE_CLAIM_TEMPLATES, lambda version: Make.template("one", count=version + 1), _from_template
    ),
    "pods of a group": Population(POD_GROUPS, _group, _member),
    "pods of a gang": Population(PODS, lambda version: _labelled(_gang_member(0)[0][1], version), _gang_member),
    "users of a volume claim": Population(PERSISTENT_VOLUME_CLAIMS, _in_namespace(spec={}), _with_volume),
    "pods with volumes, and a volume": Population(PERSISTENT_VOLUMES, _cluster_wide("one", spec={}), _with_volume),
    "pods with volumes, and a storage class": Population(
        STORAGE_CLASSES, _cluster_wide("one", provisioner="none"), _with_volume
    ),
    "pods with volumes, and a CSI driver": Population(CSI_DRIVERS, _cluster_wide("one", spec={}), _with_volume),
    "pods with volumes, and a CSI node": Population(
        CSI_NODES, _cluster_wide("node", spec={"drivers": []}), _with_volume
    ),
    "pods with volumes, and a capacity": Population(
        CSI_STORAGE_CAPACITIES, _in_namespace(storageClassName="one", capacity="1Gi"), _with_volume
    ),
    "pods with volumes, and attachments": Population(
        VOLUME_ATTACHMENTS,
        _cluster_wide("one", spec={"attacher": DRIVER, "nodeName": "node", "source": {}}),
        _with_volume,
    ),
    "pods of a namespace": Population(NAMESPACES, _cluster_wide("ns"), _own_claim),
    "budgets of a namespace": Population(POD_DISRUPTION_BUDGETS, _in_namespace(spec={"minAvailable": 1}), _own_claim),
    "questions about a pool": Population(
        RESOURCE_POOL_STATUS_REQUESTS, _cluster_wide("one", spec={"driver": DRIVER}), _own_claim
    ),
}


class Scene:
    """A cluster with ``number`` objects of a population. The operator knows them, and has looked at them."""

    def __init__(self, population: Population, number: int) -> None:
        self._population, self._revision = population, 1
        self.world = World(FEATURES)
        if population.are_short:
            self.world.limits = self.world.limits._replace(whole=0)
        self.control = self.world.start()
        self._apply((DEVICE_CLASSES, Make.device_class()))
        self._apply((NODES, Make.node("node")))
        self.change(0)
        for it in range(number):
            for item in population.many(it):
                self._apply(item)

    async def gathered(self) -> None:
        """Have the keys of all crowds queued, and the next round put in line."""
        queues = self.control.queues
        lines = [it.fairness for it in queues.all().values()]
        while queues._crowds or any(it._next or it._beginning for it in lines):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def forget_keys(self) -> None:
        """Have all keys handled, without doing anything for them."""
        await self.gathered()
        for queue in self.control.queues.all().values():
            while queue.depth:
                key = await queue.get()
                queue.fairness.looked_at(key, 0.0, 0.0)
                queue.done(key)

    def change(self, version: int) -> None:
        """Bring another version of the object on which all hang."""
        self._apply((self._population.kind, self._population.one(version)))

    def _apply(self, item: Item) -> None:
        kind, obj = item
        self._revision += 1
        meta = {"uid": f"uid-{obj['metadata']['name']}", **obj["metadata"], "resourceVersion": str(self._revision)}
        whole = {**obj, "metadata": meta}
        self.world.api.objects[kind, meta.get("namespace", ""), meta["name"]] = whole
        struct: Object = convert(WATCHED[kind], whole)
        self.control.apply(Source.WATCH, struct)


MANY, PART = 30, 10


class Steps:
    """How many keys were queued in each step of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = [0]
        queued: tuple[tuple[type, str], ...] = (WorkQueue, "_make_ready"), (Fairness, "want")
        for kind, name in queued:
            monkeypatch.setattr(kind, name, self._counting(getattr(kind, name)))
        steps: tuple[tuple[type, str], ...] = (
            (Scene, "change"),
            (Crowds, "_go_on"),
            (Fairness, "_start_round"),
            (Fairness, "_go_on"),
        )
        for kind, name in steps:
            monkeypatch.setattr(kind, name, self._beginning(getattr(kind, name)))

    def _counting(self, real: Callable[..., None]) -> Callable[..., None]:
        def counting(*arguments: object, **more: object) -> None:
            self.counts[-1] += 1
            real(*arguments, **more)

        return counting

    def _beginning(self, real: Callable[..., None]) -> Callable[..., None]:
        def beginning(*arguments: object) -> None:
            self.counts.append(0)
            real(*arguments)
            self.counts.append(0)

        return beginning


async def queued_by_a_change(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[Key], list[int]]:
    """Return the keys to which a change of the object leads in the end, and how many were queued in each step."""
    scene = Scene(POPULATIONS[name], MANY)
    await scene.forget_keys()
    with monkeypatch.context() as patch:
        steps = Steps(patch)
        scene.change(1)
        await scene.gathered()
    return {it for queue in scene.control.queues.all().values() for it, _ in queue.ready()}, steps.counts


@pytest.mark.parametrize("name", POPULATIONS)
async def test_a_change_queues_few_keys_at_once_and_in_the_end_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, _ = await queued_by_a_change(name, monkeypatch)
    for module in (wakeups, crowds, fairness):
        monkeypatch.setattr(module, "HINTS_AT_ONCE", PART)
    in_parts, steps = await queued_by_a_change(name, monkeypatch)
    assert in_parts == at_once
    assert max(steps) <= 2 * PART


def test_every_kind_that_is_watched_has_a_crowd() -> None:
    assert {it.kind for it in POPULATIONS.values()} == TABLE.keys()


class Line:
    """Keys in the order in which a line of crowds queued them."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.asked: list[str] = []
        self.crowds = Crowds(asyncio.get_running_loop(), self._queue, lambda key: (key.object.rpartition("-")[2],))

    def _queue(self, hints: Iterable[Hint]) -> None:
        self.keys += [key.object for key in keys_of(hints)]

    def add(self, about: str, namespace: str, *objects: str) -> None:
        self.crowds.add(Crowd((about,), namespace, lambda: objects, self._hints))

    def _hints(self, name: str) -> tuple[Key, ...]:
        self.asked.append(name)
        return (Key("placement", name),)

    async def worked_off(self) -> list[str]:
        while self.crowds:  # noqa: ASYNC110 - nothing tells of that moment
            await asyncio.sleep(0.001)
        assert not self.crowds._begun
        return self.keys


async def test_equal_changes_are_looked_at_once_and_the_newest_counts() -> None:
    line = Line()
    line.add("claim", "a", "a/old-1")
    line.add("claim", "a", "a/new-1")
    assert await line.worked_off() == ["a/new-1"]


async def test_a_change_while_its_crowd_is_asked_has_it_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "HINTS_AT_ONCE", 1)
    line = Line()
    line.add("claim", "a", "a/x-1", "a/y-1")
    while not line.asked:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    line.add("claim", "a", "a/x-1", "a/y-1")
    assert await line.worked_off() == ["a/x-1", "a/y-1"] * 2


async def test_the_crowds_of_one_namespace_delay_those_of_another_by_a_part_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crowds, "HINTS_AT_ONCE", 1)
    line = Line()
    for number in range(10):
        line.add(f"claim {number}", "a", *(f"a/{number}{it}-1" for it in range(10)))
    line.add("claim", "b", "b/one-1")
    keys = await line.worked_off()
    assert len(keys) == 101
    assert keys.index("b/one-1") < 3


async def test_the_most_urgent_keys_of_a_crowd_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "HINTS_AT_ONCE", 2)
    line = Line()
    line.add("room", "", "a/x-3", "a/y-2", "b/z-3", "b/w-1")
    assert await line.worked_off() == ["b/w-1", "a/y-2", "a/x-3", "b/z-3"]


@pytest.mark.real_time
async def test_an_error_about_one_object_loses_its_crowd_alone() -> None:
    line, told = Line(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    line.crowds.add(Crowd(("broken",), "a", lambda: ["a/broken"], dict[str, tuple[Key, ...]]().__getitem__))
    line.add("claim", "a", "a/pod-1")
    line.add("claim", "b", "b/pod-1")
    assert sorted(await line.worked_off()) == ["a/pod-1", "b/pod-1"]
    assert [type(it) for it in told] == [KeyError]


@pytest.mark.real_time
async def test_an_error_in_one_round_does_not_end_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "HINTS_AT_ONCE", 1)
    begun, told = list[Key](), list[object]()

    def begin(keys: Sequence[Key]) -> Iterable[Key]:
        begun.extend(keys)
        if told or not keys:
            return ()
        raise LookupError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    rounds = Fairness(loop, begin)
    for _ in range(2):
        for name in ("a", "b"):
            rounds.want(Key("placement", name))
        await asyncio.sleep(0.02)
    assert [type(it) for it in told] == [LookupError]
    assert len(begun) == 4


async def test_nothing_is_queued_after_the_end() -> None:
    line = Line()
    line.add("claim", "a", "a/x-1")
    line.crowds.close()
    line.add("claim", "a", "a/x-1")
    await asyncio.sleep(1)
    assert not line.keys


async def test_a_pod_that_is_being_tried_is_asked_at_once_for_what_it_waits() -> None:
    """When its attempt ends it waits for less, and the attempt may have looked before the change."""
    queues = WorkQueues({"placement": WorkQueue()})
    queues.add((Key("placement", "a/tried"), Key("placement", "a/other")))
    key = await queues.of("placement").get()
    waits = {"a/tried", "a/other"}
    many = Crowd(
        ("devices",),
        "",
        lambda: sorted(waits),
        lambda it: (Key("placement", it),) if it in waits else (),
        are_waiting=True,
    )
    queues.add((many,))
    waits.clear()
    queues.of("placement").done(key)
    assert key in dict(queues.of("placement").ready())
    queues.close()
