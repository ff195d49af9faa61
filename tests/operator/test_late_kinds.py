"""A server that comes to serve resource.k8s.io only later, as with late aggregated discovery, needs no restart."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from dra_api.meta import Object
from dra_api.releases import Release
from dra_api.resource import FINALIZER
from dra_kube import (
    DEVICE_TAINT_RULES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    NotServed,
    Resource,
    TypedList,
    Unreachable,
)
from dra_operator.app.settings import OperatorSettings
from dra_operator.sources import watches
from dra_operator.sources.kind_table import OF_STORAGE
from dra_operator.sources.kinds import REQUIRED, WATCHED
from dra_operator.sources.malformed import MalformedObjects
from dra_operator.sources.watches import Loader
from faults import FaultProxy, Refuse, Target
from supervised import LiveCluster, Supervising, gates_text
from volume_lab import uses, volume, volume_claim
from waiting import until

GROUP = "/apis/resource.k8s.io/*"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "NEEDED_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(watches, "OTHER_LOOK_SECONDS", 0.2)


async def test_kinds_that_are_served_only_later_are_loaded_and_watched(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish(template=True)
    absent = ExitStack()
    absent.enter_context(proxy.suffering(Refuse(Target(resource=GROUP), code=404)))
    async with supervising() as site:
        await site.unready("resourceclaims.resource.k8s.io: not served", "deviceclasses.resource.k8s.io: not served")
        assert site.is_live()
        assert "the API server does not serve" in caplog.text
        await cluster.heard()  # what needs no devices is placed all the same
        await cluster.add_pod("pod")
        absent.close()
        await cluster.bound("pod")
        await site.ready()
        await cluster.add_node("late", devices=2)  # heard of from the new watches
        for number in range(3):
            await cluster.add_pod(f"pod-{number}")
            await cluster.bound(f"pod-{number}")


class Api:
    """Serves some kinds; each has one object, and lists say in which order they were asked for."""

    def __init__(self, *served: Resource) -> None:
        self.served = set(served)
        self.refusals: list[str] = []
        """Why the next questions are not answered."""

    async def version_of(self, resource: Resource) -> str:
        if self.refusals:
            raise Unreachable(self.refusals.pop(0))
        if resource not in self.served:
            raise NotServed(str(resource))
        return "v1"

    async def list_as(self, resource: Resource, _: type[Object], **_keep: object) -> TypedList:
        return TypedList([resource], [], "5")


OPTIONAL = WATCHED.keys() - REQUIRED - OF_STORAGE.keys()
CORE = {resource for resource in WATCHED if not resource.group}


@pytest.mark.rule("CC-01")
async def test_slices_without_claims_are_not_loaded_or_devices_in_use_would_look_free() -> None:
    """A group that is not served in full is not used at all, and comes into the view in one go."""
    api = Api(*WATCHED.keys() - {RESOURCE_CLAIMS} - OPTIONAL)
    loads: list[set[Resource]] = []
    malformed_objects = MalformedObjects(lambda *_: None)
    loader = Loader(api, WATCHED, lambda objects: loads.append(set(objects)), malformed_objects)  # type: ignore[arg-type]
    await loader.load_all()
    assert loads == [CORE | OF_STORAGE.keys()]
    assert RESOURCE_SLICES in loader.missing()
    api.served.add(RESOURCE_CLAIMS)
    found: list[int] = []
    looking = asyncio.create_task(loader.look_for_missing(lambda: found.append(len(loads))))

    async def loaded() -> bool:
        return found == [2]

    await until("loaded", loaded)
    assert loads[1] == WATCHED.keys() - loads[0] - OPTIONAL
    api.served |= OPTIONAL
    await asyncio.wait_for(looking, 60)
    assert loads[2] == OPTIONAL


async def test_why_kinds_cannot_be_looked_for_is_told_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    api = Api(*WATCHED.keys() - {RESOURCE_CLAIMS})
    loader = Loader(api, WATCHED, lambda _: None, MalformedObjects(lambda *_: None))  # type: ignore[arg-type]
    await loader.load_all()
    caplog.clear()
    api.refusals = ["away 1", "away 2", "still away", "away"]
    api.served.add(RESOURCE_CLAIMS)
    async with asyncio.timeout(60):
        await loader.look_for_missing(lambda: None)
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["away 1", "still away", "away"]


@pytest.mark.parametrize("code", [403, 404])
async def test_only_pods_with_volumes_wait_for_kinds_of_storage(
    code: int, cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish()
    api = cluster.api
    await api.create(PERSISTENT_VOLUMES, volume())
    await api.create(PERSISTENT_VOLUME_CLAIMS, volume_claim(volume="pv"))
    container = {"name": "main", "image": "none"}
    spec = {"schedulerName": "dra-scheduler", "containers": [container], "volumes": uses("data")}
    await api.create(PODS, {"metadata": {"name": "pod", "namespace": "ns"}, "spec": spec})
    absent = ExitStack()
    path = "/apis/storage.k8s.io/*" if code == 404 else "storageclasses"
    absent.enter_context(proxy.suffering(Refuse(Target(resource=path), code=code, reason="Forbidden")))

    async def says() -> bool:
        conditions = (await cluster.pod("pod")).get("status", {}).get("conditions") or [{"message": ""}]
        message = conditions[0]["message"]
        return "storageclasses.storage.k8s.io" in message and "cannot be seen" in message

    async with supervising() as site:
        await site.ready()
        await cluster.heard()
        await until("the pod says why it waits", says)
        assert ("pods that use PersistentVolumeClaims wait" in caplog.text) == (code == 403)
        absent.close()
        await cluster.bound("pod")


async def test_device_taint_rules_are_heard_of_only_with_their_gate(
    cluster: LiveCluster, proxy: FaultProxy, supervising: Supervising
) -> None:
    await cluster.furnish()
    async with supervising(OperatorSettings(feature_gates="DRADeviceTaintRules=false")) as site:
        await site.ready()
        assert DEVICE_TAINT_RULES not in site.operator.kinds
    calls = {entry.call.resource for entry in proxy.journal.entries}
    assert "pods" in calls
    assert "devicetaintrules" not in calls


@pytest.mark.parametrize(
    ("gates", "release", "counts"),
    [
        ({"DRADeviceTaintRules": True}, Release.V1_36, True),
        ({"DRADeviceTaintRules": False}, Release.V1_36, False),
        ({"DRADeviceTaints": True, "DRADeviceTaintRules": True}, Release.V1_35, True),
        ({"DRADeviceTaints": True}, Release.V1_34, False),
    ],
)
async def test_a_device_taint_rule_keeps_pods_away_where_its_gate_and_that_of_taints_are_on(
    cluster: LiveCluster, supervising: Supervising, gates: dict[str, bool], release: Release, counts: bool
) -> None:
    await cluster.furnish(devices=2, template=True)
    taint = {"key": "bad", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}, "taint": taint}
    await cluster.api.create(DEVICE_TAINT_RULES, {"metadata": {"name": "rule"}, "spec": spec})
    async with supervising(OperatorSettings(feature_gates=gates_text(gates), kubernetes_version=str(release))) as site:
        await site.ready()
        await cluster.place("pod")
    (claim,) = await cluster.claims()
    assert FINALIZER in claim["metadata"]["finalizers"]
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == ("dev-1" if counts else "dev-0")
