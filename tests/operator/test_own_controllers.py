"""``--controllers auto`` beside a controller manager that comes and goes, and ``--controllers`` as an option."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import envtest
import pytest
from command import running
from dra_kube import LEASES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, NotFound, connection
from dra_operator.app import control_plane as controller_manager
from dra_operator.controllers import UnknownController, controllers_of, names_admission, own_controllers
from supervised import LiveCluster, Supervising
from waiting import until

ANNOTATION = "resource.kubernetes.io/pod-claim-name"


class ControllerManager:
    """What the operator sees of kube-controller-manager: its Lease, and the claims that it makes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def start(self) -> None:
        spec = {"holderIdentity": "cp-1", "leaseDurationSeconds": 60, "renewTime": "2026-01-01T00:00:00.000000Z"}
        meta = {"name": controller_manager.NAME, "namespace": controller_manager.NAMESPACE}
        await self._api.create(LEASES, {"metadata": meta, "spec": spec})

    async def die(self) -> None:
        """It renews no more; the Lease stays, and is over soon."""
        soon = {"spec": {"leaseDurationSeconds": 1}}
        await self._api.patch(LEASES, controller_manager.NAME, soon, controller_manager.NAMESPACE)

    async def make_claim(self, pod: str, name: str) -> None:
        """A claim from the template for the pod's entry, recorded as the controller does it."""
        uid = (await self._api.get(PODS, pod, "ns"))["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}
        meta = {"name": name, "namespace": "ns", "annotations": {ANNOTATION: "gpu"}, "ownerReferences": [owner]}
        requests = [{"name": "req", "exactly": {"deviceClassName": "gpu"}}]
        await self._api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": requests}}})
        await self.record(pod, name)

    async def record(self, pod: str, claim: str) -> None:
        status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]}
        manager = "ResourceClaimController"
        await self._api.patch(
            PODS,
            pod,
            {"metadata": {"name": pod, "namespace": "ns"}, "status": status},
            "ns",
            kind="apply",
            subresource="status",
            field_manager=manager,
            force=True,
        )


@pytest.fixture
async def manager(api: Api, monkeypatch: pytest.MonkeyPatch) -> ControllerManager:
    monkeypatch.setattr(controller_manager, "GONE_SECONDS", 1.0)
    monkeypatch.setattr(controller_manager, "LOOK_SECONDS_WHILE_THEIRS", 0.1)
    monkeypatch.setattr(controller_manager, "LOOK_SECONDS_WHILE_OURS", 0.1)
    return ControllerManager(api)


async def test_claims_are_left_to_a_controller_manager_until_it_dies(
    manager: ControllerManager, cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish(devices=4, template=True)
    await manager.start()
    async with supervising() as site:
        await site.ready()
        await cluster.add_pod("theirs")
        await cluster.heard()
        assert await cluster.claims() == []
        await manager.make_claim("theirs", "made-by-them")
        await cluster.bound("theirs")

        await cluster.add_pod("ours")
        await manager.die()
        await cluster.bound("ours")
        assert len(await cluster.claims()) == 2


async def test_a_controller_manager_that_comes_is_noticed(
    manager: ControllerManager, cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish(devices=4, template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.place("ours")
        await manager.start()

        async def is_left_to_it() -> bool:
            return not site.operator.control.controllers.templates

        await until("the claims are left to it", is_left_to_it)
        await cluster.add_pod("theirs")
        await cluster.heard()
        assert len(await cluster.claims()) == 1
        await manager.die()


async def test_a_controller_manager_without_a_lease_shows_by_its_first_claim(
    manager: ControllerManager, cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish(devices=0, template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.add_pod("first")
        await manager.make_claim("first", "made-by-them")

        async def is_left_to_it() -> bool:
            return not site.operator.control.controllers.templates

        await until("the claims are left to it", is_left_to_it)
        before = {claim["metadata"]["name"] for claim in await cluster.claims()}
        await cluster.add_pod("second")
        await cluster.heard()
        left = {claim["metadata"]["name"] for claim in await cluster.claims()}
        assert left <= before, "of two claims for the first pod one goes; the second pod has none"
        assert left


async def test_a_claim_recorded_in_place_of_the_allocated_one_is_put_right(
    manager: ControllerManager, cluster: LiveCluster, supervising: Supervising, api: Api
) -> None:
    await cluster.furnish(devices=4, template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.place("pod")
        (claim,) = await cluster.claims()
        await manager.make_claim("pod", "one-too-many")

        async def is_repaired() -> bool:
            pod = await cluster.pod("pod")
            (status,) = pod["status"]["resourceClaimStatuses"]
            return bool(status["resourceClaimName"] == claim["metadata"]["name"])

        await until("the claim is repaired", is_repaired)
        await cluster.gone(RESOURCE_CLAIMS, "one-too-many")


async def test_eviction_is_left_to_a_controller_manager_until_it_dies(
    manager: ControllerManager, cluster: LiveCluster, supervising: Supervising, api: Api
) -> None:
    await cluster.furnish(devices=1, template=True)
    async with supervising() as site:
        await site.ready()
        await cluster.place("victim")
        await manager.start()

        async def is_left_to_it() -> bool:
            return not site.operator.control.controllers.eviction

        await until("eviction is left to it", is_left_to_it)
        (slice_,), _ = await api.list(RESOURCE_SLICES)
        slice_["spec"]["devices"][0]["taints"] = [{"key": "broken", "effect": "NoExecute"}]
        await api.update(RESOURCE_SLICES, slice_)
        await cluster.heard()
        assert "deletionTimestamp" not in (await cluster.pod("victim"))["metadata"]
        await manager.die()

        async def is_evicted() -> bool:
            return "deletionTimestamp" in (await cluster.pod("victim"))["metadata"]

        await until("the pod is evicted", is_evicted)


@pytest.mark.parametrize(
    ("text", "names"),
    [("auto", None), ("placement", {"placement"}), ("templates, release,", {"templates", "release"})],
)
def test_concerns_as_they_are_written(text: str, names: set[str] | None) -> None:
    assert controllers_of(text) == names


@pytest.mark.parametrize(
    ("text", "is_ours", "others"),
    [
        ("auto", False, None),
        ("auto,admission", True, None),
        ("admission", True, frozenset()),
        ("placement", False, frozenset()),
        ("admission, placement", True, frozenset({"placement"})),
    ],
)
def test_the_controller_admission_is_ours_only_if_it_is_named(
    text: str, is_ours: bool, others: frozenset[str] | None
) -> None:
    ours = own_controllers(text)
    assert ours.admission is is_ours is names_admission(text)
    assert ours.templates is (others is None)
    assert (controllers_of(text) is None) is (others is None)


def test_an_unknown_concern_is_refused() -> None:
    with pytest.raises(UnknownController, match="preemption"):
        controllers_of("placement,preemption")
    with pytest.raises(UnknownController, match="no controller is named"):
        controllers_of(" , ")


async def says_which_controller_is_missing(config: Path) -> None:
    """A pod whose claim nobody makes names the controller of kube-controller-manager, and our flag, within 10 s."""
    async with Api(connection(config)) as api:
        cluster = LiveCluster(api)
        await cluster.furnish(devices=1, template=True)
        async with running(("dra-operator", "run", "--kubeconfig", str(config))) as operator:
            await operator.says("left to kube-controller-manager: templates, release")
            await operator.says("in sync")
            await cluster.add_pod("pod")

            async def is_named() -> bool:
                conditions = (await cluster.pod("pod"))["status"].get("conditions") or ()
                said = next((it["message"] for it in conditions if it["type"] == "PodScheduled"), "")
                ours = "start dra-operator with --controllers templates,release,placement,"
                return "its resourceclaim-controller does not run" in said and ours in said

            async with asyncio.timeout(10):
                await until("the controller is named", is_named)


async def test_a_controller_manager_with_a_lease_and_without_claims_is_named(kubeconfig: Path, api: Api) -> None:
    await ControllerManager(api).start()
    await says_which_controller_is_missing(kubeconfig)


@pytest.mark.skipif(envtest.assets() is None, reason="no KUBEBUILDER_ASSETS: NOT tried with a real controller manager")
async def test_a_real_controller_manager_without_its_claim_controller_is_named(tmp_path: Path) -> None:
    binaries = envtest.assets()
    assert binaries is not None
    with envtest.real_api_server(binaries, tmp_path, collector=["--leader-elect=true"]) as config:
        async with Api(connection(config)) as api:
            await until("it has its Lease", lambda: has_lease(api))
        await says_which_controller_is_missing(config)


async def has_lease(api: Api) -> bool:
    with suppress(NotFound):
        lease = await api.get(LEASES, controller_manager.NAME, controller_manager.NAMESPACE)
        return bool(lease["spec"].get("holderIdentity"))
    return False
