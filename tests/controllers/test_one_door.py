"""Whatever brings objects, and in whatever order: in the end the cache is as one list of all of them would make it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

from controllers_world import TinyLanguage
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceSlice
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import Cluster, Source, check
from dra_operator.controllers import Control
from fake_api import FakeApi
from hypothesis import given, settings
from hypothesis import strategies as st
from objects import Make, Obj
from rounds import fewer

KINDS: tuple[type[Object], ...] = (Pod, ResourceClaim, Node, ResourceSlice)
NAMES = ("a", "b")
BRINGS = [Source.LIST, Source.WATCH, Source.ANSWER, Source.CONFLICT_CHECK]
REPORTS_END = [Source.WATCH, Source.ANSWER, Source.AUDIT]


class Version(NamedTuple):
    """An object as the server had it, or its end (``obj`` is the last version then)."""

    obj: Object
    raw: Obj
    is_end: bool


def pod(name: str, last: Obj | None, draw: st.DrawFn) -> Obj:
    """A pod keeps the node that it has, and the claims that it names, and does not begin again."""
    made = Make.pod(name, [{"resourceClaimName": draw(st.sampled_from(NAMES))}], draw(st.sampled_from(["", *NAMES])))
    made["status"] = {"phase": draw(st.sampled_from(["Pending", "Pending", "Running", "Succeeded"]))}
    made["spec"]["schedulerName"] = draw(st.sampled_from(["dra-scheduler", "dra-scheduler", "default-scheduler"]))
    if last is not None:
        made["spec"]["resourceClaims"] = last["spec"]["resourceClaims"]
        made["spec"]["schedulerName"] = last["spec"]["schedulerName"]
        if node := last["spec"].get("nodeName"):
            made["spec"]["nodeName"] = node
        if last["status"]["phase"] == "Succeeded":
            made["status"] = last["status"]
    made["metadata"]["labels"] = {"app": draw(st.sampled_from(NAMES))}
    return made


def claim(name: str, _: Obj | None, draw: st.DrawFn) -> Obj:
    made = Make.claim(name)
    if draw(st.booleans()):
        device = f"dev-{draw(st.integers(0, 2))}"
        held = {"request": "req", "driver": "gpu.example.com", "pool": "a", "device": device}
        made["status"] = {"allocation": {"devices": {"results": [held]}}}
        made["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    return made


def node(name: str, _: Obj | None, draw: st.DrawFn) -> Obj:
    made = Make.node(name, zone=draw(st.sampled_from(NAMES)))
    made["spec"] = {"unschedulable": draw(st.booleans())}
    return made


def resource_slice(name: str, _: Obj | None, draw: st.DrawFn) -> Obj:
    return Make.slice(name, draw(st.integers(1, 3)))


MAKERS = {Pod: pod, ResourceClaim: claim, Node: node, ResourceSlice: resource_slice}


@st.composite
def histories(draw: st.DrawFn) -> list[Version]:
    """Versions in the order in which the server had them. An object that is made again has another UID."""
    alive: dict[tuple[type[Object], str], Version] = {}
    history: list[Version] = []
    for revision in range(1, draw(st.integers(2, 14))):
        kind, name = draw(st.sampled_from(KINDS)), draw(st.sampled_from(NAMES))
        last = alive.get((kind, name))
        if last is not None and draw(st.integers(0, 2)) == 0:
            history.append(last._replace(is_end=True))
            del alive[(kind, name)]
            continue
        raw: dict[str, Any] = MAKERS[kind](name, last.raw if last is not None else None, draw)
        uid = last.obj.metadata.uid if last is not None else f"{kind.__name__}-{name}-{revision}"
        raw["metadata"] |= {"uid": uid, "resourceVersion": str(revision)}
        alive[(kind, name)] = Version(convert(kind, raw), raw, is_end=False)
        history.append(alive[(kind, name)])
    return history


Told = tuple[list[tuple[Source, Version]], list[Version]]


@st.composite
def deliveries(draw: st.DrawFn) -> Told:
    """What the sources bring, each late, never or several times, and what the server has in the end."""
    history = draw(histories())
    brought: list[tuple[int, int, Source, Version]] = []
    for at, version in enumerate(history):
        for number in range(draw(st.integers(0, 2))):
            source = draw(st.sampled_from(REPORTS_END if version.is_end else BRINGS))
            brought.append((at + draw(st.integers(0, 6)), number, source, version))
    brought.sort(key=lambda it: it[:2])
    last: dict[tuple[type[Object], str], Version] = {}
    for version in history:
        last[(type(version.obj), version.obj.key)] = version
    final = [version for version in last.values() if not version.is_end]
    return [(source, version) for _, _, source, version in brought], draw(st.permutations(final))


def fresh() -> Control:
    inventory = Inventory(Features(), language=TinyLanguage())
    allocator = Allocator(inventory, new_share_id=lambda: "share")
    return Control(Cluster(inventory), FakeApi(), allocator)


def bring(control: Control, source: Source, version: Version) -> None:
    if version.is_end:
        control.delete(source, type(version.obj), version.obj.key, version.obj.metadata.uid)
    else:
        control.apply(source, version.obj, version.raw if source is Source.WATCH else None)


def end_others(control: Control, final: list[Version]) -> None:
    """What an audit does: all that the server does not have is gone."""
    present = {(type(it.obj), it.obj.key): it.obj.metadata.uid for it in final}
    for kind in KINDS:
        for obj in list(control.cluster.store_of(kind)):
            if present.get((kind, obj.key)) != obj.metadata.uid:
                control.delete(Source.AUDIT, kind, obj.key, obj.metadata.uid)


def observed(cluster: Cluster) -> Iterator[tuple[str, object]]:
    """Everything that decisions look at, whatever the order in which it came."""
    for kind in KINDS:
        yield kind.__name__, {obj.key: obj for obj in cluster.store_of(kind)}
    yield "waiting", set(cluster.waiting)
    yield "devices", dict(cluster.allocated_devices.holders())
    yield "others decide", cluster.others_decide(frozenset({"gpu.example.com"}))[:3]
    yield "loads", {state.name: dict(state.used) for state in cluster.loaded_nodes()}
    yield "best first", list(cluster.loaded_nodes().best_first())
    for name in ("pods_by_claim", "claims_by_class", "claims_by_owner", "claims_by_device"):
        index = getattr(cluster, name)
        yield name, {key: index.values_of(key) for key in index}


@settings(max_examples=fewer(150), deadline=None)
@given(deliveries())
def test_all_sources_together_tell_what_one_list_tells(
    told: tuple[list[tuple[Source, Version]], list[Version]],
) -> None:
    brought, final = told

    async def compare() -> None:
        control, listed = fresh(), fresh()
        for source, version in brought:
            bring(control, source, version)
            if not _shares_devices(control):
                check(control.cluster)
        for version in final:
            bring(control, Source.LIST, version)
        end_others(control, final)
        listed.load(version.obj for version in final)
        assert dict(observed(control.cluster)) == dict(observed(listed.cluster))
        loaded = fresh().cluster
        loaded.load(version.obj for version in final)
        assert dict(observed(loaded)) == dict(observed(listed.cluster))

    asyncio.run(compare())


def _shares_devices(control: Control) -> bool:
    """Two claims of this history may name one device, which is no fault here."""
    return any(control.cluster.allocated_devices.clashes(claim) for claim in control.cluster.claims)
