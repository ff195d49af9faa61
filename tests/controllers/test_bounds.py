"""Each memory with a limit is filled beyond it: what was used the longest time ago goes first."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from controllers_world import TinyLanguage
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.resource import ResourceClaim
from dra_kube import Unreachable
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import Cluster, Key, state
from dra_operator.cache.shared_drivers import OthersDecide
from dra_operator.cache.store import ObjectChange, UidMemory
from dra_operator.controllers import context, metrics
from dra_operator.controllers.claims import delayed_deletion
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.context import GrowingPauses, Recently
from dra_operator.controllers.metrics import ClaimMetrics, PlacementMetrics
from dra_operator.controllers.queue import KeyBackoff
from dra_operator.controllers.scheduling import mix, other_schedulers, report, victims
from dra_operator.controllers.scheduling.mix import MixLearner
from dra_operator.controllers.scheduling.other_schedulers import Deference
from dra_operator.controllers.scheduling.report import WaitingReport
from dra_operator.controllers.settings import BackoffSettings
from dra_operator.kube import EventReason, EventRecorder, PodWriter, writers
from dra_operator.kube import claims as kube_claims
from dra_operator.kube import pods as kube_pods
from dra_operator.scheduling.claims.readiness import Readiness
from dra_operator.scheduling.pieces import decided
from dra_operator.scheduling.state import pods_by_node, topology
from dra_operator.scheduling.state.pods_by_node import Carriers, PodsByNode
from dra_operator.scheduling.state.topology import Selection, Topologies, anti_affinity
from objects import Make
from prometheus_client import CollectorRegistry

LIMIT = 3
NOW = datetime(2026, 11, 1, tzinfo=UTC)
USED = "abcade"
"""One letter for each use: of three, the first is used once more before two others come."""
ROOT = Path(__file__).parents[2]
OPERATOR = ROOT / "operator/dra_operator"
ROOMS = ("cache", "controllers", "kube", "scheduling/state")

Use = Callable[[str], object]


class Memory(NamedTuple):
    """``use`` one thing by its letter; it may be awaited. ``kept`` has an entry for each that is remembered."""

    use: Use
    kept: Callable[[], Collection[Any]]


def pod(name: str, **more: Any) -> Pod:
    return convert(Pod, {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}, **more})


class Silent:
    """A server that carries out no write and answers none."""

    def __init__(self) -> None:
        self.obj: dict[str, Any] = {}

    async def get(self, *_: object) -> dict[str, Any]:
        return {**self.obj, "status": dict(self.obj.get("status", {}))}

    async def _write(self, *_: object, **__: object) -> None:
        raise Unreachable("no answer")

    update = create_subresource = _write


def recently() -> Memory:
    memory = Recently(itertools.count().__next__)
    return Memory(memory.add, lambda: memory._done)


def growing_pauses() -> Memory:
    memory = GrowingPauses(itertools.count().__next__, BackoffSettings(), lambda *_: None)
    return Memory(memory.did, lambda: memory._done)


def uids() -> Memory:
    memory = UidMemory(LIMIT)
    return Memory(memory.add, lambda: [*memory])


def event_recorder() -> Memory:
    recorder = EventRecorder(cast(Any, None), "", clock=itertools.count().__next__, now=str)
    return Memory(lambda it: recorder.post(pod(it), EventReason.PREEMPTED, ""), lambda: recorder._allowance)


def claims_without_answer() -> Memory:
    server = Silent()
    writer = kube_claims.ClaimReleases(cast(Any, server), lambda _: None, lambda _: None)

    async def use(name: str) -> None:
        server.obj = {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}}
        server.obj["status"] = {"allocation": {}}
        with suppress(Unreachable):
            await writer.deallocate(convert(ResourceClaim, server.obj))

    return Memory(use, lambda: writer._unsettled)


def pod_writer(server: Silent) -> PodWriter:
    return PodWriter(cast(Any, server), lambda _: None, lambda _: None, str)


def bindings_without_answer() -> Memory:
    writer = pod_writer(Silent())

    async def use(name: str) -> None:
        with suppress(Unreachable):
            await writer.bind(pod(name), "node")

    return Memory(use, lambda: writer._unanswered)


def names_without_answer() -> Memory:
    server = Silent()
    writer = pod_writer(server)

    async def use(name: str) -> None:
        server.obj = {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}}
        with suppress(Unreachable):
            await writer.record_claims(pod(name), {"entry": "claim"})

    return Memory(use, lambda: [uid for uid, _ in writer._recorded])


def waiting_report() -> WaitingReport:
    """The report of an operator whose pods show no reason, with a clock that stands still."""

    async def waiting(*_: object) -> None:
        """Write the condition."""

    said = SimpleNamespace(
        cluster=SimpleNamespace(pods={}, claims={}),
        clock=lambda: 0.0,
        times=SimpleNamespace(silence=10.0, late_writes=60.0),
        queues=SimpleNamespace(add_after=lambda *_: None),
        group_waits=lambda *_: None,
        events=SimpleNamespace(post=lambda *_: None),
        pods=SimpleNamespace(report_waiting=waiting),
    )
    return WaitingReport(cast(Any, said))


def rests_of_pods() -> Memory:
    told = waiting_report()

    def use(name: str) -> None:
        told.begin(pod(name))
        told.rests(pod(name), 1.0)

    return Memory(use, lambda: told._rests)


def reasons_put_off() -> Memory:
    told, numbers = waiting_report(), itertools.count()

    async def use(name: str) -> None:
        for _ in range(3):  # the third reason has to wait
            await told.waits(pod(name), "Unschedulable", f"reason {next(numbers)}")

    return Memory(use, lambda: told._put_off)


def pods_of_the_mix() -> Memory:
    features = Features()
    cluster = Cluster(Inventory(features, language=TinyLanguage()))
    cluster.apply(convert(Node, Make.node("node")))
    learner = MixLearner(cluster, Allocator(cluster.inventory, new_share_id=str))
    claim = convert(ResourceClaim, Make.claim("claim"))
    return Memory(lambda it: learner.see(pod(it), [claim]), lambda: learner._told)


def drivers_of_metrics() -> Memory:
    registry = CollectorRegistry()
    counted = PlacementMetrics(ClaimMetrics(registry), "dra-scheduler")

    def use(name: str) -> None:
        claim = Make.claim(name)
        results = [{"driver": name, "pool": "p", "device": "d", "request": "r", "bindingConditions": ["ready"]}]
        claim["status"] = {"allocation": {"devices": {"results": results}}}
        counted.awaited(convert(ResourceClaim, claim), Readiness.READY, NOW)

    return Memory(use, lambda: sorted(counted._drivers))


def topologies() -> Memory:
    memory = Topologies(lambda *_: [], lambda _: None)
    return Memory(memory.get, lambda: [key for key, _ in memory._kept])


def answers_about_carriers(kind: Callable[[str], dict[str, Any]]) -> Memory:
    """Where the pods are that keep another one away; ``kind`` is the metadata of the one that asks."""
    labelled = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "zone"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [labelled]}}
    memory = Carriers()
    for term in anti_affinity(pod("carrier", spec={"affinity": apart})):
        memory.add(term, "node", 1)

    def use(name: str) -> None:
        decided(memory.finding(convert(Pod, {"metadata": {"name": name, **kind(name)}}), {}, ["zone"]))

    return Memory(use, lambda: [max(dict(labels).values(), default=space) for space, labels in memory._kept])


def selections(requirement: str) -> Memory:
    """Pods that are counted by one label, or by the lack of one."""
    memory = PodsByNode()

    def use(name: str) -> None:
        listed = {"key": "app", "operator": "In", "values": [name]} if requirement == "In" else {"key": name}
        term = {"labelSelector": {"matchExpressions": [{"operator": requirement, **listed}]}, "topologyKey": "zone"}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        (one,) = anti_affinity(pod("p", spec={"affinity": apart}))
        memory.count(Selection((one.pods({}),)))

    def names() -> list[str]:
        found = [it for selection in memory._counted for it in selection.sets[0].selector.requirements or ()]
        return [min(it.values, default=it.key) for it in found]

    return Memory(use, names)


def pods_in_line() -> Memory:
    turns = victims.PreemptionTurns(lambda: 0.0, 10.0, lambda *_: None, lambda _: True)
    turns.may_try(pod("called"))
    return Memory(lambda it: turns.may_try(pod(it)), lambda: [key[3:] for key in turns._line["ns"]])


def deference_to_others(clock: Callable[[], float]) -> Deference:
    decide = OthersDecide(present=True, waiting=True, queued=True, cluster_events=1)
    own = SimpleNamespace(contested=lambda drivers: drivers)
    cluster = SimpleNamespace(others_decide=lambda _: decide, own_devices=own)
    return Deference(cast(Any, cluster), clock, 1.0)


def drivers_with_others() -> Memory:
    deference = deference_to_others(itertools.count().__next__)
    return Memory(lambda it: deference.wait(pod(it), frozenset(it)), lambda: [*map(min, deference._met)])


def drivers_with_events() -> Memory:
    deference = deference_to_others(itertools.count().__next__)
    return Memory(lambda it: deference.wait(pod(it), frozenset(it)), lambda: [*map(min, deference._events)])


def late_changes() -> Memory:
    cluster = Cluster(Inventory(Features(), language=TinyLanguage()))
    return Memory(
        lambda it: cluster._note_sharing(lambda *_: None, [ObjectChange(None, pod(it))], late=True),
        lambda: [change.new.key[3:] for _, (change,) in cluster._late_sharing if change.new is not None],
    )


OVERFILLED: dict[str, tuple[ModuleType | None, str, Callable[[], Memory], str]] = {
    "Carriers._kept": (
        pods_by_node,
        "KEPT_ANSWERS",
        lambda: answers_about_carriers(lambda it: {"namespace": it}),
        "ade",
    ),
    "Carriers._kept of a namespace": (
        pods_by_node,
        "KEPT_ANSWERS_OF_NAMESPACE",
        lambda: answers_about_carriers(lambda it: {"namespace": "ns", "labels": {"app": it}}),
        "ade",
    ),
    "ClaimAccess._unsettled": (kube_claims, "UNSETTLED_CLAIMS", claims_without_answer, "ade"),
    "ClusterState._late_sharing": (state, "_MOST_LATE_CHANGES", late_changes, "de"),
    "Deference._events": (other_schedulers, "KEPT_DRIVER_SETS", drivers_with_events, "ade"),
    "Deference._met": (other_schedulers, "KEPT_DRIVER_SETS", drivers_with_others, "ade"),
    "EventRecorder._allowance": (writers, "REMEMBERED_OBJECTS", event_recorder, "ade"),
    "GrowingPauses._done": (context, "REMEMBERED_THINGS", growing_pauses, "ade"),
    "MixLearner._told": (mix, "REMEMBERED_PODS", pods_of_the_mix, "cde"),  # told once, it is not told again
    "PlacementMetrics._drivers": (metrics, "NAMED_DRIVERS", drivers_of_metrics, "abc"),  # no series changes its name
    "PodsByNode._counted": (pods_by_node, "KEPT_SELECTIONS", lambda: selections("In"), "ade"),
    "PodsByNode._counted without a label": (
        pods_by_node,
        "KEPT_SELECTIONS_WITHOUT_ANCHOR",
        lambda: selections("DoesNotExist"),
        "ade",
    ),
    "PodWriter._recorded": (kube_pods, "RECORDED_CLAIMS", names_without_answer, "ade"),
    "PodWriter._unanswered": (kube_pods, "UNANSWERED_PODS", bindings_without_answer, "ade"),
    "PreemptionTurns._line": (victims, "MOST_PODS_IN_LINE", pods_in_line, "abc"),  # the others ask again
    "Recently._done": (context, "KEPT_RECENT_THINGS", recently, "ade"),
    "Topologies._kept": (topology, "KEPT_TOPOLOGIES", topologies, "ade"),
    "UidMemory._uids": (None, "", uids, "ade"),
    "WaitingReport._put_off": (report, "REMEMBERED_THINGS", reasons_put_off, "ade"),
    "WaitingReport._rests": (report, "REMEMBERED_THINGS", rests_of_pods, "ade"),
}
"""The constant that bounds a memory, and the things that it has in the end, by the name of the memory."""
ELSEWHERE = {
    "tests/controllers/test_driver_memory.py": {"DriverMemory._met"},
    "tests/controllers/test_gangs.py": {"Gangs._gangs"},
    "tests/controllers/test_line.py": {"Fairness._order", "Fairness._use"},
    "tests/controllers/test_releasing.py": {"DelayedDeletion._collectors"},
}
"""Memories that other tests fill beyond their bound."""
OF_ONE_ATTEMPT = {"GangAttempt"}


@pytest.mark.parametrize("name", OVERFILLED)
async def test_what_was_used_the_longest_time_ago_is_forgotten_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, constant, make, left = OVERFILLED[name]
    if module is not None:
        monkeypatch.setattr(module, constant, LIMIT)
    memory = make()
    for letter in USED:
        if isinstance(used := memory.use(letter), Awaitable):
            await used
        assert len(memory.kept()) <= LIMIT
    assert sorted(memory.kept()) == sorted(left)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def pods_that_defer(clock: Clock) -> Memory:
    deference = deference_to_others(clock)
    return Memory(lambda it: deference.wait(pod(it), frozenset("d")), lambda: deference._waiting)


def drivers_with_contests(clock: Clock) -> Memory:
    deference = deference_to_others(clock)
    return Memory(deference.clashed, lambda: deference._doublings)


def namespaces_with_failures(clock: Clock) -> Memory:
    waits = KeyBackoff(clock, BackoffSettings())
    return Memory(lambda it: waits.failed(Key("placement", f"{it}/pod")), lambda: waits._full_at)


def claims_without_pods(clock: Clock) -> Memory:
    late = DelayedDeletion(cast(Any, SimpleNamespace(add_after=lambda *_: None)), clock)
    use = lambda it: late.has_time(convert(ResourceClaim, Make.claim(it)))  # noqa: E731
    return Memory(use, lambda: [key.partition("/")[2] for key in late._ending])


TIMED: dict[str, tuple[float, Callable[[Clock], Memory]]] = {
    "Deference._waiting": (other_schedulers.MET_OTHERS_SECONDS, pods_that_defer),
    "Deference._doublings": (other_schedulers.HALVED_SECONDS, drivers_with_contests),
    "DelayedDeletion._ending": (delayed_deletion.FORGOTTEN_SECONDS, claims_without_pods),
    "KeyBackoff._full_at": (1.0, namespaces_with_failures),
}
"""The seconds after which the next use of a memory forgets an entry, by the name of the memory."""


@pytest.mark.parametrize("name", TIMED)
def test_what_was_used_long_ago_is_forgotten_with_the_next_use(name: str) -> None:
    seconds, make = TIMED[name]
    clock = Clock()
    memory = make(clock)
    memory.use("a")
    clock.now += seconds / 2
    memory.use("b")
    clock.now += seconds / 2 + 0.1
    memory.use("c")
    assert "a" not in memory.kept()
    assert "c" in memory.kept()


def test_a_pod_that_had_its_turn_defers_anew_the_next_time() -> None:
    clock = Clock()
    deference, drivers = deference_to_others(clock), frozenset("d")
    for _ in range(2):
        assert deference.wait(pod("a"), drivers) > 0
        clock.now += 1.0  # more than three pauses
        assert deference.wait(pod("a"), drivers) == 0


def test_others_that_are_gone_are_deferred_to_for_a_minute() -> None:
    clock = Clock()
    deference, drivers = deference_to_others(clock), frozenset("d")
    assert deference.wait(pod("a"), drivers) > 0
    nobody = OthersDecide(present=False, waiting=False, queued=False, cluster_events=1)
    deference._cluster = cast(Any, SimpleNamespace(**{**vars(deference._cluster), "others_decide": lambda _: nobody}))
    clock.now += other_schedulers.MET_OTHERS_SECONDS - 1
    assert deference.wait(pod("b"), drivers) > 0
    clock.now += 2
    assert deference.wait(pod("c"), drivers) == 0


def test_each_memory_whose_size_is_compared_is_filled_beyond_its_bound() -> None:
    """A new one fails until it is in a table."""
    found = {name for room in ROOMS for path in (OPERATOR / room).rglob("*.py") for name in compared(path)}
    found = {name for name in found if name.partition(".")[0] not in OF_ONE_ATTEMPT}
    assert found - OVERFILLED.keys() - set(chain.from_iterable(ELSEWHERE.values())) == set()
    assert [file for file in ELSEWHERE if not (ROOT / file).is_file()] == []


def compared(path: Path) -> Iterator[str]:
    """The containers whose length an ``if`` or a ``while`` of their class compares with a constant or an attribute."""
    for class_ in (it for it in ast.walk(ast.parse(path.read_text())) if isinstance(it, ast.ClassDef)):
        for test in (it.test for it in ast.walk(class_) if isinstance(it, ast.If | ast.While)):
            for it in ast.walk(test):
                if isinstance(it, ast.Compare) and isinstance(it.ops[0], ast.Gt | ast.GtE | ast.Lt):
                    match it.left, it.comparators[0]:
                        case (
                            ast.Call(ast.Name("len"), [ast.Attribute(ast.Name("self"), memory)]),
                            ast.Name() | ast.Attribute() | ast.BinOp(),
                        ):
                            yield f"{class_.name}.{memory}"
