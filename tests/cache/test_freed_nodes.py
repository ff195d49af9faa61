"""On which nodes room came free since a pod was tried."""

from __future__ import annotations

from dra_api.core import Pod
from dra_api.meta import ObjectMeta
from dra_operator.cache.loads import FreedNodes, NodeLoads
from dra_operator.scheduling.state import PodsByNode
from msgspec.structs import replace as with_
from placement_lab import pod


def test_the_nodes_since_a_moment_come_once_and_the_latest_first() -> None:
    nodes = FreedNodes()
    assert list(nodes.since(0)) == []
    for name in ("a", "b", "c", "a"):
        nodes.freed(name)
    assert list(nodes.since(0)) == ["a", "c", "b"]
    assert list(nodes.since(2)) == ["a", "c"]
    assert list(nodes.since(nodes.number)) == []
    nodes.gone("c")
    assert list(nodes.since(0)) == ["a", "b"]


def loaded(freed: list[str]) -> tuple[NodeLoads, Pod]:
    loads, it = NodeLoads(PodsByNode(), freed.append), pod(cpu="1")
    loads.place(it, "a", {"cpu": 2})
    return loads, it


def test_room_comes_free_where_a_pod_leaves_or_takes_less() -> None:
    freed: list[str] = []
    loads, it = loaded(freed)
    loads.place(it, "a", {"cpu": 3})
    assert freed == []
    loads.place(it, "a", {"cpu": 1})
    loads.place(it, "b", {"cpu": 1})
    loads.forget(it.metadata.uid)
    assert freed == ["a", "a", "b"]
    loads.forget(it.metadata.uid)
    assert freed == ["a", "a", "b"]


def test_priorities_count_as_long_as_a_pod_has_them() -> None:
    loads, it = loaded([])
    low = with_(pod(priority=-1), metadata=ObjectMeta(uid="low"))
    assert not loads.has_lower(0)
    loads.place(low, "a", {})
    loads.place(low, "b", {})
    assert loads.has_lower(0)
    assert not loads.has_lower(-1)
    loads.forget("low")
    assert not loads.has_lower(0)
    loads.forget(it.metadata.uid)
    assert not loads.has_lower(1)


def test_a_pod_that_is_only_left_out_for_its_own_plan_frees_nothing() -> None:
    freed: list[str] = []
    loads, it = loaded(freed)
    held = loads.take_out(it.metadata.uid)
    assert held is not None
    loads.place(it, *held)
    assert freed == []
