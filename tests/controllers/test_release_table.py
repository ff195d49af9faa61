"""Each row of the table in docs/releasing.md, played on the development server.

There is one claim, the controllers beside it, and what each of their requests takes from the claim. A state of the
claim is a text of words, as ``docs/releasing.md`` writes it: *devices, finalizer, for A, deleting*.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from controllers_world import TinyLanguage
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_devcluster.apiserver import DevApiServer, serve_in_thread
from dra_kube import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    ApiError,
    NotFound,
    Resource,
    Unreachable,
    connection,
)
from dra_operator.allocator import Allocator, Inventory
from dra_operator.cache import Cluster, Source
from dra_operator.controllers import Control
from dra_operator.controllers.errors import ControllerError
from dra_operator.controllers.workers import Postponed
from dra_operator.scheduling.state import ANNOTATION, HOLD, IMMEDIATE, is_parked
from dra_operator.sources.kinds import WATCHED
from objects import Make, Obj
from pages import Page
from waiting import until

FINALIZER = "resource.kubernetes.io/delete-protection"
FINALIZERS = {"finalizer": FINALIZER, "hold": HOLD}
ENTRY = "resource.kubernetes.io/pod-claim-name"


class Watched:
    """The client of the controllers: notes what each request takes from the claim, and lets single ones fail."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self.losses: list[set[str]] = []
        self.fails: Callable[[str, str | None], Exception | None] = lambda _plural, _sub: None

    def __getattr__(self, verb: str) -> Any:
        async def call(resource: Resource, *args: Any, **options: Any) -> Obj:
            sub = options.get("subresource") or next((it for it in args[1:2] if isinstance(it, str)), None)
            if verb != "get" and (error := self.fails(resource.plural, sub)) is not None:
                raise error
            before = await self.claim() if resource is RESOURCE_CLAIMS and verb != "get" else None
            answer: Obj = await getattr(self._api, verb)(resource, *args, **options)
            if before is not None and (loss := _loss(before, await self.claim())):
                self.losses.append(loss)
            return answer

        return call

    async def claim(self) -> Obj | None:
        """The claim as the server has it."""
        try:
            return await self._api.get(RESOURCE_CLAIMS, "c", self._namespace)
        except NotFound:
            return None


def _is_parked(claim: Obj) -> bool:
    return any(it["resource"] == "contests" for it in claim.get("status", {}).get("reservedFor") or ())


def _loss(before: Obj, after: Obj | None) -> set[str]:
    if after is None:
        return {"release" if before["metadata"].get("finalizers") else "delete"}
    found = set()
    status = before.get("status", {}), after.get("status", {})
    if len(status[0].get("reservedFor", ())) > len(status[1].get("reservedFor", ())):
        found.add("unreserve")
    if not _is_parked(before) and _is_parked(after):
        found.add("park")
    if status[0].get("allocation") and not status[1].get("allocation"):
        found.add("deallocate")
    if set(before["metadata"].get("finalizers", ())) - set(after["metadata"].get("finalizers", ())):
        found.add("release")
    if after["metadata"].get("deletionTimestamp") and not before["metadata"].get("deletionTimestamp"):
        found.add("delete")
    return found


class Stage:
    """``claim`` and ``pods`` bring the state before; ``begin`` has the controllers know all of it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace, self.client = api, namespace, Watched(api, namespace)
        self.pods: dict[str, Obj] = {}
        self.control: Control

    async def pod(self, name: str, entry: Obj, *, scheduler: str = "dra-scheduler", node: str = "") -> None:
        """A pod that uses the claim, and waits if it has no node."""
        body = Make.pod(name.lower(), [entry], node, schedulerName=scheduler)
        body["metadata"]["namespace"] = self.namespace
        body["spec"]["containers"] = [{"name": "main", "image": "none"}]
        self.pods[name] = await self.api.create(PODS, body)
        if "resourceClaimTemplateName" in entry:
            await self.records(name, "c")

    async def records(self, name: str, claim: str) -> None:
        """The pod records the claim that was made for its entry."""
        pod = await self.api.get(PODS, name.lower(), self.namespace)
        pod["status"]["resourceClaimStatuses"] = [{"name": "entry-0", "resourceClaimName": claim}]
        await self.api.update(PODS, pod, "status")

    async def claim(self, state: str, device: str = "dev-0", node: str = "node-0", name: str = "c") -> None:
        """A claim in this state."""
        words = {part.split()[0]: part.split()[1:] for part in state.split(", ")}
        body = Make.claim(name)
        body["metadata"] |= {
            "namespace": self.namespace,
            "finalizers": [FINALIZERS[word] for word in words if word in FINALIZERS],
            "annotations": {ANNOTATION: IMMEDIATE} if {"hold", "deleting"} <= words.keys() else {},
        }
        if "of" in words:
            owner = self.pods[words["of"][0]]["metadata"]
            ref = {"apiVersion": "v1", "kind": "Pod", "name": owner["name"], "uid": owner["uid"], "controller": True}
            body["metadata"] |= {"ownerReferences": [ref], "annotations": {ENTRY: "entry-0"}}
        made = await self.api.create(RESOURCE_CLAIMS, body)
        if "devices" in words:
            result = {"request": "req", "driver": "gpu.example.com", "pool": node, "device": device}
            match = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            selector = {"nodeSelectorTerms": [match]}
            made["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}
        if "for" in words:
            made["status"]["reservedFor"] = [_consumer(self.pods[it]) for it in words["for"]]
        made = await self.api.update(RESOURCE_CLAIMS, made, "status")
        if "deleting" in words:
            await self.api.delete(RESOURCE_CLAIMS, name, self.namespace)

    async def begin(self) -> None:
        """The controllers see what is on the server."""
        inventory = Inventory(language=TinyLanguage())
        allocator = Allocator(inventory, new_share_id=lambda: "share")
        self.control = Control(Cluster(inventory), self.client, allocator)
        for kind in (NODES, DEVICE_CLASSES, RESOURCE_SLICES):
            self.control.load(convert(WATCHED[kind], it) for it in (await self.api.list(kind))[0])
        await self.look()

    async def look(self) -> None:
        """They see what has changed since."""
        for kind in (PODS, RESOURCE_CLAIMS):
            for it in (await self.api.list(kind, self.namespace))[0]:
                self.control.apply(Source.WATCH, convert(WATCHED[kind], it), it)

    async def ends(self, name: str) -> None:
        """A pod is done."""
        pod = await self.api.get(PODS, name.lower(), self.namespace)
        pod["status"]["phase"] = "Succeeded"
        await self.api.update(PODS, pod, "status")
        await self.look()

    def is_gone(self, name: str) -> None:
        """The controllers hear that a pod is gone. The server keeps it, or its garbage collector would act as well."""
        meta = self.pods[name]["metadata"]
        self.control.delete(Source.WATCH, Pod, f"{self.namespace}/{meta['name']}", meta["uid"])

    async def tried(self, name: str) -> None:
        """One attempt to place a pod."""
        while isinstance(decided := await self.control.placer.decide(f"{self.namespace}/{name.lower()}"), Postponed):
            pass
        if decided.follow_up is not None:
            await decided.follow_up()

    async def released(self) -> None:
        """One look of the controller that releases claims."""
        await self.control.releaser.handle(f"{self.namespace}/c")

    async def state(self) -> str:
        """The claim in words."""
        raw = await self.client.claim()
        if raw is None:
            return "gone"
        claim = convert(ResourceClaim, raw)
        names = {pod["metadata"]["uid"]: name for name, pod in self.pods.items()}
        users = () if is_parked(claim) else claim.status.reserved_for or ()
        of = [f"of {names[it.uid]}" for it in claim.metadata.owner_references or ()]
        consumers = " ".join(names[it.uid] for it in users)
        found = [
            "devices" if claim.status.allocation is not None else "",
            *(word for word, name in FINALIZERS.items() if name in (claim.metadata.finalizers or ())),
            f"for {consumers}" if consumers else "",
            "parked" if is_parked(claim) else "",
            *of,
            "deleting" if claim.metadata.deletion_timestamp is not None else "",
        ]
        return ", ".join(filter(None, found)) or "unused"


def _consumer(pod: Obj) -> Obj:
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


async def furnish(api: Api) -> None:
    """A node with four devices."""
    await api.create(DEVICE_CLASSES, Make.device_class())
    await api.create(NODES, Make.node("node-0"))
    await api.create(RESOURCE_SLICES, Make.slice("node-0", 4))


class Event(NamedTuple):
    """What happens, and which pods there are before, apart from those that the state names: those run on the node."""

    happens: Callable[[Stage], Awaitable[object]]
    waiting: tuple[str, ...] = ()
    where: str = "node-0"
    """The node of the devices."""
    scheduler: str = "dra-scheduler"


async def looked_at(stage: Stage) -> None:
    await stage.released()


async def ends(stage: Stage) -> None:
    await stage.ends("A")
    await stage.released()


async def ends_beside(stage: Stage) -> None:
    await stage.pod("B", Make.use("c"), scheduler="another")
    await stage.look()
    await ends(stage)


async def gone(stage: Stage) -> None:
    """The garbage collector has its moment."""
    stage.is_gone("A")

    async def is_gone() -> bool:
        await stage.released()
        return await stage.state() == "gone"

    await until("the claim gone", is_gone)


async def gone_beside_another(stage: Stage) -> None:
    await stage.claim("unused", name="theirs")
    await stage.pod("B", Make.use("theirs"), scheduler="another")
    await stage.look()
    stage.is_gone("A")
    await stage.released()


async def tried(stage: Stage) -> None:
    with suppress(ControllerError):
        await stage.tried("A")


async def stolen(stage: Stage) -> None:
    await stage.claim("devices", name="theirs")
    await stage.look()
    await tried(stage)


def fails(plural: str, sub: str, error: Exception) -> Callable[[Stage], Awaitable[None]]:
    """An attempt in which requests for a subresource fail."""

    async def attempt(stage: Stage) -> None:
        stage.client.fails = lambda *what: error if what == (plural, sub) else None
        await tried(stage)
        stage.client.fails = lambda *_: None

    return attempt


async def unanswered(stage: Stage) -> None:
    await fails("resourceclaims", "status", Unreachable("connection reset"))(stage)
    await tried(stage)


async def records_another(stage: Stage) -> None:
    await stage.claim("of A", name="recorded")
    await stage.records("A", "recorded")
    await stage.look()
    await stage.control.generator.handle(f"{stage.namespace}/a")


EVENTS: dict[str, Event] = {
    "the claim is looked at": Event(looked_at),
    "A ends": Event(ends),
    "A, which the operator placed, ends": Event(ends),
    "A, which another scheduler placed, ends": Event(ends, scheduler="another"),
    "A ends while B waits with the claim": Event(ends_beside),
    "A is gone": Event(gone),
    "A is gone, and another scheduler gives such devices away too": Event(gone_beside_another),
    "A is tried": Event(tried, ("A",)),
    "A cannot run where the devices are": Event(tried, ("A",), where="elsewhere"),
    "another claim has the device, and A waits": Event(stolen, ("A",)),
    "another claim has the device, and A and B wait": Event(stolen, ("A", "B")),
    "A cannot be bound": Event(fails("pods", "binding", ApiError(422, "Invalid", "no")), ("A",)),
    "the allocation for A was not answered and never came": Event(unanswered, ("A",)),
    "A records another claim for the entry": Event(records_another, ("A",)),
}


class Row(NamedTuple):
    before: str
    event: str
    requests: str
    after: str


def rows() -> Iterator[Row]:
    """The lines of the page's last table."""
    listed = [line.strip("| ").split(" | ") for line in Page("docs/releasing.md").text.splitlines() if "| " in line]
    return (Row(*cells) for cells in listed if len(cells) == 4 and cells[0] not in ("State before", "---"))


@pytest.fixture(scope="module")
def server() -> Iterator[DevApiServer]:
    with serve_in_thread() as running:
        yield running


NUMBERS = count()


@pytest.fixture
async def stage(server: DevApiServer, tmp_path: Path) -> AsyncIterator[Stage]:
    """A namespace of its own for each row."""
    number = next(NUMBERS)
    async with Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        if number == 0:
            await furnish(api)
        await api.create(NAMESPACES, {"metadata": {"name": f"row-{number}"}})
        yield Stage(api, f"row-{number}")


@pytest.mark.real_time
@pytest.mark.rule("CC-05", "CC-06", "SC-01")
@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row.before}: {row.event}")
async def test_a_row_of_the_table_is_what_happens(row: Row, stage: Stage) -> None:
    event = EVENTS[row.event]
    named = set(re.findall(r"\b[AB]\b", row.before))
    for name in sorted(named.union(event.waiting)):
        node = "" if name in event.waiting else "node-0"
        entry = Make.FROM_TEMPLATE if f"of {name}" in row.before else Make.use("c")
        await stage.pod(name, entry, node=node, scheduler=event.scheduler)
    await stage.claim(row.before, node=event.where)
    assert await stage.state() == row.before
    await stage.begin()
    await event.happens(stage)
    assert [" and ".join(sorted(loss, key=ORDER.index)) for loss in stage.client.losses] == [
        part for part in row.requests.split("; ") if part != "nothing"
    ]
    assert await stage.state() == row.after


ORDER = ["unreserve", "park", "deallocate", "release", "delete"]


def test_each_event_has_a_row() -> None:
    assert {row.event for row in rows()} == set(EVENTS)
