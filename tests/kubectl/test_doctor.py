"""``kubectl dra doctor --fix`` on a live server: it repairs what is safe after a yes, and nothing that has changed."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import envtest
import pytest
import yaml
from command import ROOT, kubectl_for
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.leases import SETTINGS, Lease
from dra_api.releases import BUILT, NEWEST
from dra_api.resource import FINALIZER, ResourceClaim, ResourceSlice
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.rbac import Attributes, User
from dra_kube import PODS, RESOURCE_CLAIMS, Api, Forbidden, NotFound, connection
from dra_operator.app.control_plane import MANIFEST, MANIFEST_OF_ADMISSION, RULES, Right, lease_rights
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.doctor.answer import diagnose, repaired
from dra_operator.kubectl.doctor.claims import claim_troubles
from dra_operator.kubectl.doctor.schedulers import missing_rights, needed_rights, operator_lacks
from dra_operator.kubectl.observed import Observed
from dra_operator.scheduling.state import HOLD
from fake_api import FakeApi
from manifest_accounts import rules_of
from objects import owner, user
from rbac_cases import SERVERS
from waiting import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
GONE = user("gone")
ALSO_GONE = user("gone-as-well")
ALIVE = user("alive")
PLAIN = {"containers": [{"name": "main", "image": "busybox:1.37"}]}


def allocation_of(name: str) -> dict[str, Any]:
    """Of a device of its own: doctor advises first about a device that two claims hold, and chooses one by its age."""
    return {"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "p", "device": name}]}}


async def claim_of(api: Any, name: str, consumers: list[dict[str, str]], **meta: Any) -> dict[str, Any]:
    body = {"metadata": {"name": name, "namespace": "default", "finalizers": [FINALIZER], **meta}, "spec": SPEC}
    made: dict[str, Any] = await api.create(RESOURCE_CLAIMS, body)
    if not consumers:
        return made
    status = {"status": {"allocation": allocation_of(name), "reservedFor": consumers}}
    return dict(await api.patch(RESOURCE_CLAIMS, name, status, "default", subresource="status"))


@pytest.mark.parametrize(
    ("words", "typed", "is_repaired"), [(["--yes"], "", True), ([], "y\nn\n", False), ([], "", False)]
)
async def test_what_is_safe_is_repaired_after_a_yes(
    words: list[str],
    typed: str,
    is_repaired: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with DevApiServer() as server:
        server.write_kubeconfig(kubeconfig)
        async with Api(connection(str(kubeconfig))) as api:
            await claim_of(api, "ending", [])
            await claim_of(api, "reserved", [GONE, ALSO_GONE])
            await api.delete(RESOURCE_CLAIMS, "ending", "default")
            monkeypatch.setattr("sys.stdin", io.StringIO(typed))
            await asyncio.to_thread(main, ["doctor", "--fix", *words, "--kubeconfig", str(kubeconfig)])
            left = {claim["metadata"]["name"]: claim for claim in (await api.list(RESOURCE_CLAIMS))[0]}
    assert ("ending" not in left) is bool(words or typed)
    reserved = [entry["name"] for entry in left["reserved"]["status"].get("reservedFor") or []]
    assert reserved == ([] if is_repaired else ["gone", "gone-as-well"])
    assert ("claim default/ending: repaired" in capsys.readouterr().err) is bool(words or typed)


def made_by(kind: str, folder: Path) -> AbstractAsyncContextManager[Path]:
    """A server of the kind with a garbage collector, as the path of its kubeconfig; only ``stock`` frees claims."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[Path]:
        if kind in ("real", "stock"):
            binaries = envtest.assets()
            assert binaries is not None
            with envtest.real_api_server(binaries, folder, stock=kind == "stock") as kubeconfig:
                yield kubeconfig
        else:
            async with DevApiServer(release=BUILT.get(kind, NEWEST)) as server:
                yield server.write_kubeconfig(folder / "kubeconfig")

    return serving()


STAYS = {"kept-by-a-pod": [ALIVE], "kept-by-its-holder": []}
"""Claims that keep their devices, and their consumers after a repair."""


@pytest.mark.parametrize("kind", [each for each in SERVERS if each != "development"] + ["1.34", "1.37"])
async def test_a_repair_leaves_nothing_that_no_controller_takes_away(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kube-controller-manager frees devices together with the last consumer of a claim, and in no other write."""
    async with made_by(kind, tmp_path) as kubeconfig, Api(connection(str(kubeconfig))) as api:
        pod = await api.create(PODS, {"metadata": {"name": "alive", "namespace": "default"}, "spec": PLAIN})
        alive = {**ALIVE, "uid": pod["metadata"]["uid"]}
        await claim_of(api, "alone", [GONE])
        await claim_of(api, "of-two", [GONE, ALSO_GONE])
        await claim_of(api, "kept-by-a-pod", [GONE, alive])
        await claim_of(api, "in-deletion", [GONE])
        await api.delete(RESOURCE_CLAIMS, "in-deletion", "default")
        await claim_of(api, "made-for-it", [GONE])
        owned = {"metadata": {"ownerReferences": [owner("gone")]}}
        await api.patch(RESOURCE_CLAIMS, "made-for-it", owned, "default")
        await claim_of(api, "kept-by-its-holder", [GONE], finalizers=[HOLD])

        async def in_deletion() -> bool:
            return "deletionTimestamp" in (await api.get(RESOURCE_CLAIMS, "made-for-it", "default"))["metadata"]

        await until("the claim of a pod that is gone is in deletion", in_deletion)  # later it may change no more
        words = ["doctor", "--kubeconfig", str(kubeconfig)]
        assert await asyncio.to_thread(main, [*words, "--fix", "--yes"]) in (0, 3)
        assert "not repaired" not in capsys.readouterr().err

        async def without_those_of_nobody() -> dict[str, Any] | None:
            """The garbage collector has taken away what belongs to a pod that is gone."""
            left = {it["metadata"]["name"]: it for it in (await api.list(RESOURCE_CLAIMS, "default"))[0]}
            return left if left.keys() == {"alone", "of-two", *STAYS} else None

        left = await until("claims of pods that are gone are gone", without_those_of_nobody)
        for name in ("alone", "of-two"):
            assert left[name].get("status", {}) == {}, name
            assert not left[name]["metadata"].get("finalizers"), name
        for name, consumers in STAYS.items():
            assert "allocation" in left[name]["status"]
            names = [one["name"] for one in left[name]["status"].get("reservedFor") or ()]
            assert names == [one["name"] for one in consumers]
        await asyncio.to_thread(main, words)
        said = capsys.readouterr().out
        assert not [name for name in ("alone", "of-two") if f"default/{name} " in said]


async def test_the_printed_commands_repair_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with DevApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with Api(connection(str(kubeconfig))) as api:
            await claim_of(api, "alone", [GONE])
            await asyncio.to_thread(main, ["doctor", "--kubeconfig", str(kubeconfig)])
            said = capsys.readouterr().out
            run = kubectl_for(kubeconfig, tmp_path)
            (line,) = (line for line in said.splitlines() if line.startswith("  $ kubectl patch"))
            for command in line.removeprefix("  $ ").split(" && "):
                assert "patched" in await run(*shlex.split(command)[1:])
            claim = await api.get(RESOURCE_CLAIMS, "alone", "default")
    assert claim.get("status", {}) == {}
    assert not claim["metadata"].get("finalizers")


@pytest.mark.parametrize(("words", "typed"), [(["--yes"], ""), ([], "y\n")])
async def test_a_claim_that_loses_several_devices_is_repaired_and_asked_about_once(
    words: list[str], typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [{"request": "gpu", "driver": "d", "pool": "p", "device": f"gpu-{number}"} for number in range(3)]
    async with DevApiServer() as server, Api(connection(str(server.write_kubeconfig(tmp_path / "k")))) as api:
        for name in ("first", "second"):
            await claim_of(api, name, [])
            status = {"status": {"allocation": {"devices": {"results": results}}, "reservedFor": [GONE]}}
            await api.patch(RESOURCE_CLAIMS, name, status, "default", subresource="status")
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        await asyncio.to_thread(main, ["doctor", "--fix", *words, "--kubeconfig", str(tmp_path / "k")])
        claims = {it["metadata"]["name"]: it.get("status", {}) for it in (await api.list(RESOURCE_CLAIMS))[0]}
    said = capsys.readouterr()
    assert claims["second"] == {}, "of two claims as old the second loses its devices"
    assert "not repaired" not in said.err
    assert said.err.count("[y/N]") == (2 if typed else 0), "about this claim, and the reservation of the other one"
    assert "device d/p/gpu" not in said.out, "no device is in two claims any more"


LONG_AGO = "2029-12-31T00:00:00Z"


async def unused(api: Any, name: str, **meta: Any) -> Any:
    """A claim with devices and without consumers, as a scheduler leaves it that ends between two of its writes."""
    await claim_of(api, name, [], **meta)
    status = {"status": {"allocation": allocation_of(name)}}
    return await api.patch(RESOURCE_CLAIMS, name, status, "default", subresource="status")


STOCK = pytest.param("stock", marks=pytest.mark.skipif(envtest.assets() is None, reason="no KUBEBUILDER_ASSETS"))


@pytest.mark.parametrize("kind", [*(each for each in SERVERS if each != "development"), STOCK, "1.34", "1.37"])
async def test_devices_that_no_controller_frees_are_freed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No controller frees the devices of an unused claim: --fix ends those of gone pods, a printed command the rest."""
    async with made_by(kind, tmp_path) as kubeconfig, Api(connection(str(kubeconfig))) as api:
        await unused(api, "made-by-hand")
        await claim_of(api, "never-used", [])
        await unused(api, "made-for-a-pod", ownerReferences=[owner("gone")])
        words = ["doctor", "--kubeconfig", str(kubeconfig)]

        async def in_deletion() -> bool:
            """Or gone, if its devices are freed in deletion."""
            claims = (await api.list(RESOURCE_CLAIMS, "default"))[0]
            found = [it["metadata"] for it in claims if it["metadata"]["name"] == "made-for-a-pod"]
            return not found if kind == "stock" else "deletionTimestamp" in found[0]

        await until("the claim of a pod that is gone is in deletion", in_deletion)
        await asyncio.to_thread(main, [*words, "--fix", "--yes"])
        assert "not repaired" not in capsys.readouterr().err
        with pytest.raises(NotFound):
            await api.get(RESOURCE_CLAIMS, "made-for-a-pod", "default")
        claim = await api.get(RESOURCE_CLAIMS, "made-by-hand", "default")
        assert "allocation" in claim["status"]
        (found,) = (one for one in diagnose(long_ago(claim)) if one.trouble.kind == "unused")
        assert found.repair is None
        run = kubectl_for(kubeconfig, tmp_path)
        for command in found.trouble.command.split(" && "):
            assert "patched" in await run(*shlex.split(command)[1:])
        claims = [await api.get(RESOURCE_CLAIMS, name, "default") for name in ("made-by-hand", "never-used")]
        assert [claim.get("status", {}) for claim in claims] == [{}, {}]
        for claim in claims:
            for one in diagnose(long_ago(claim)):
                assert one.repair is not None
                assert await repaired(api, one.repair) == ""
        claims = [await api.get(RESOURCE_CLAIMS, name, "default") for name in ("made-by-hand", "never-used")]
        assert [list(diagnose(long_ago(claim))) for claim in claims] == [[], []]
        assert not any(claim["metadata"].get("finalizers") for claim in claims)


def long_ago(claim: dict[str, Any], *others: Any) -> Observed:
    """As it is seen long after it was made."""
    claim = {**claim, "metadata": {**claim["metadata"], "creationTimestamp": LONG_AGO}}
    if "allocation" in (status := claim.get("status") or {}):
        claim["status"] = {**status, "allocation": {**status["allocation"], "allocationTimestamp": LONG_AGO}}
    return Observed([convert(ResourceClaim, claim), *others], NOW)


USES = {**PLAIN, "resourceClaims": [{"name": "gpu", "resourceClaimName": "orphan"}]}


@pytest.mark.parametrize(
    ("meta", "others", "is_safe"),
    [
        ({}, [], True),
        ({"finalizers": [FINALIZER, "example.com/audit"]}, [], False),
        ({"ownerReferences": [owner("gone"), {**owner("other"), "controller": False}]}, [], False),
        ({}, [{"metadata": {"name": "gone", "namespace": "default", "uid": "uid-gone"}, "spec": PLAIN}], None),
        ({}, [{"metadata": {"name": "gone", "namespace": "default", "uid": "uid-new"}, "spec": PLAIN}], True),
        ({}, [{"metadata": {"name": "another", "namespace": "default", "uid": "uid-a"}, "spec": USES}], False),
    ],
    ids=["its pod is gone", "finalizer of others", "two owners", "its pod is there", "another pod", "a pod uses it"],
)
async def test_a_claim_of_a_gone_pod_is_deleted_only_when_nothing_else_needs_it(
    meta: dict[str, Any], others: list[Any], is_safe: bool | None
) -> None:
    api = FakeApi()
    claim = await unused(api, "orphan", **{"ownerReferences": [owner("gone")], **meta})
    pods = [convert(Pod, one) for one in others]
    found = [one for one in diagnose(long_ago(claim, *pods)) if one.trouble.kind == "orphan"]
    assert [one.repair is not None for one in found] == ([] if is_safe is None else [is_safe])
    if is_safe:
        (repair,) = (one.repair for one in found if one.repair is not None)
        assert repair.command == "kubectl delete resourceclaim -n default -- orphan"
        assert await repaired(api, repair) == ""  # type: ignore[arg-type]
        assert api.of(RESOURCE_CLAIMS) == []


async def test_a_claim_whose_pod_exists_after_all_or_that_has_changed_is_not_deleted() -> None:
    api = FakeApi()
    claim = await unused(api, "orphan", ownerReferences=[owner("gone")])
    (repair,) = (one.repair for one in diagnose(long_ago(claim)) if one.trouble.kind == "orphan")
    assert repair is not None
    api.add(PODS, {"metadata": {"name": "gone", "namespace": "default", "uid": "uid-gone"}})
    assert await repaired(api, repair) == "not repaired: pod gone exists"  # type: ignore[arg-type]
    api.drop(PODS, "default/gone")
    await api.patch(RESOURCE_CLAIMS, "orphan", {"metadata": {"labels": {"a": "b"}}}, "default")
    assert "may have changed" in await repaired(api, repair)  # type: ignore[arg-type]
    kept = await api.get(RESOURCE_CLAIMS, "orphan", "default")
    assert "allocation" in kept["status"]
    assert "deletionTimestamp" not in kept["metadata"]


async def troubled(api: FakeApi) -> Any:
    claim = convert(ResourceClaim, await claim_of(api, "reserved", [GONE]))
    return next(claim_troubles(Observed([claim], NOW))).repair


async def test_a_claim_that_changed_since_it_was_looked_at_is_left_alone() -> None:
    api = FakeApi()
    repair = await troubled(api)
    await api.patch(RESOURCE_CLAIMS, "reserved", {"metadata": {"labels": {"a": "b"}}}, "default")
    assert "may have changed" in await repaired(api, repair)  # type: ignore[arg-type]
    assert (await api.get(RESOURCE_CLAIMS, "reserved", "default"))["status"]["reservedFor"] == [GONE]


async def test_the_reservation_of_a_pod_that_exists_after_all_is_kept() -> None:
    api = FakeApi()
    repair = await troubled(api)
    api.add(PODS, {"metadata": {"name": "gone", "namespace": "default", "uid": "uid-gone"}})
    assert await repaired(api, repair) == "not repaired: pod gone exists"  # type: ignore[arg-type]
    assert (await api.get(RESOURCE_CLAIMS, "reserved", "default"))["status"]["reservedFor"] == [GONE]


async def test_a_claim_that_is_gone_needs_no_repair() -> None:
    api = FakeApi()
    repair = await troubled(api)
    await api.patch(RESOURCE_CLAIMS, "reserved", {"metadata": {"finalizers": []}}, "default")
    await api.delete(RESOURCE_CLAIMS, "reserved", "default")
    assert "gone" in await repaired(api, repair)  # type: ignore[arg-type]


class Refusing:
    """An API server that allows this viewer to list, and nothing else."""

    async def create(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        return {"status": {"allowed": body["spec"]["resourceAttributes"]["verb"] == "list"}}


@pytest.mark.parametrize(("fix", "told"), [(False, []), (True, ["patch", "delete"])])
async def test_a_viewer_lacks_the_right_to_repair_only_if_he_wants_to(fix: bool, told: list[str]) -> None:
    missing = await missing_rights(Refusing(), fix=fix)  # type: ignore[arg-type]
    assert [one.trouble.message.split()[2] for one in missing] == told


OBJECTS = list(yaml.safe_load_all((ROOT / MANIFEST).read_text()))
OF_ADMISSION = list(yaml.safe_load_all((ROOT / MANIFEST_OF_ADMISSION).read_text()))
"""The first role is that of the operator."""


def observed(**published: Any) -> Observed:
    """With the Lease of an operator that says this of itself."""
    said = {SETTINGS: json.dumps({"kubernetesVersion": "1.36", **published})}
    meta = {"name": "dra-operator-dra-scheduler", "namespace": "kube-system", "annotations": said}
    return Observed([convert(Lease, {"metadata": meta})], NOW)


class Authorizer:
    """An API server with these roles."""

    def __init__(self, roles: list[dict[str, Any]], *, refuses: bool = False) -> None:
        self._rbac, self._refuses = rules_of(roles), refuses

    async def create(self, resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        if self._refuses:
            raise Forbidden(403, "Forbidden", "no")
        asked, spec = body["spec"]["resourceAttributes"], body["spec"]
        assert resource.plural == "subjectaccessreviews"
        user = User(spec["user"], tuple(spec["groups"]))
        where = {name: asked[name] for name in ("resource", "subresource", "namespace", "name")}
        attributes = Attributes(user, asked["verb"], asked["group"], "*", **where)
        return {"status": {"allowed": self._rbac.decide(attributes).allowed}}


def test_the_table_of_rights_is_that_of_the_manifests() -> None:
    def granted(role: dict[str, Any]) -> set[Right]:
        return {
            Right(verb, group, resource, name, role["metadata"].get("namespace", ""))
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames", [""])
            for verb in rule["verbs"]
        }

    of_cluster, of_leases = (granted(it) for it in OBJECTS if it["kind"] in ("ClusterRole", "Role"))
    granting = {MANIFEST: of_cluster, MANIFEST_OF_ADMISSION: granted(OF_ADMISSION[0])}
    for manifest, rights in granting.items():
        assert {right for rule in RULES if rule.manifest == manifest for right in rule.rights()} == rights
    assert {rule.manifest for rule in RULES} == granting.keys()
    assert set(lease_rights("dra-operator-dra-scheduler")) == of_leases


def test_an_operator_needs_the_rights_of_what_it_does() -> None:
    assert needed_rights(Observed([], NOW)) == {}
    every = needed_rights(observed(preemption=True, featureGates="DRAResourcePoolStatus=true,DRADeviceTaintRules=true"))
    few = needed_rights(observed(controllers="placement", featureGates="DRADeviceTaintRules=false"))
    assert {str(right) for right in every.keys() - few.keys()} == {
        "delete pods", "update pods", "list poddisruptionbudgets.policy", "watch poddisruptionbudgets.policy",
        *(f"{verb} devicetaintrules.resource.k8s.io" for verb in ("list", "watch")),
        "patch devicetaintrules/status.resource.k8s.io",
        *(f"{verb} resourcepoolstatusrequests.resource.k8s.io" for verb in ("get", "list", "watch", "delete")),
        "update resourcepoolstatusrequests/status.resource.k8s.io",
    }  # fmt: skip


async def test_rights_that_the_operator_lacks_are_told_with_what_they_are_for() -> None:
    needed = needed_rights(observed())

    async def lacks(roles: list[dict[str, Any]], **options: bool) -> tuple[list[str], list[str]]:
        api: Any = Authorizer(roles, **options)
        found, notes = await operator_lacks(api, "dra-system/dra-operator", needed)
        return [f"{one.trouble.object} {one.trouble.message}" for one in found], notes

    assert await lacks(OBJECTS) == ([], [])
    role = next(it for it in OBJECTS if it["kind"] == "ClusterRole")
    rules = [it for it in role["rules"] if it["resources"] != ["pods/binding"]]
    fewer = [{**role, "rules": rules}, *(it for it in OBJECTS if it["kind"] in ("ClusterRoleBinding",))]
    assert await lacks(fewer) == (
        [
            "serviceaccount dra-system/dra-operator may not do what the operator has to: "
            "to give pods their nodes: create pods/binding; to lead: get leases.coordination.k8s.io "
            "dra-operator-dra-scheduler, update leases.coordination.k8s.io dra-operator-dra-scheduler, "
            "get leases.coordination.k8s.io kube-controller-manager, create leases.coordination.k8s.io"
        ],
        [],
    )
    found, notes = await lacks(OBJECTS, refuses=True)
    assert (found, len(notes)) == ([], 1)
    assert notes[0].startswith("not looked at: rights of the operator")


async def test_rights_for_admission_checks_are_asked_for_where_the_controller_is_on() -> None:
    needed, without = needed_rights(observed(controllers="auto,admission")), needed_rights(observed(controllers="auto"))
    assert needed.keys() >= without.keys()
    assert {right.group for right in needed.keys() - without.keys()} >= {"kueue.x-k8s.io"}
    assert "kueue.x-k8s.io" not in {right.group for right in without}
    account = "dra-system/dra-operator"
    both: Any = Authorizer([*OBJECTS, *OF_ADMISSION])
    assert await operator_lacks(both, account, needed) == ([], [])
    default: Any = Authorizer(OBJECTS)
    assert await operator_lacks(default, account, without) == ([], [])
    [one], _ = await operator_lacks(default, account, needed)
    assert "to answer admission checks: " in one.trouble.message
    assert one.trouble.command == f"kubectl apply --filename={MANIFEST_OF_ADMISSION}"
    nothing: Any = Authorizer([])
    found, _ = await operator_lacks(nothing, account, needed)
    assert [it.trouble.command.partition("=")[2] for it in found] == [MANIFEST, MANIFEST_OF_ADMISSION]


def waits(scheduler: str, *conditions: dict[str, str], **spec: Any) -> Pod:
    metadata = {"name": f"of-{scheduler}", "namespace": "default", "uid": f"uid-{scheduler}"}
    return convert(
        Pod,
        {"metadata": metadata, "spec": {"schedulerName": scheduler, **spec}, "status": {"conditions": [*conditions]}},
    )


def lease(name: str, renewed: str) -> Lease:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 10, "renewTime": renewed}
    return convert(Lease, {"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec})


SAID = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
GATED = {"schedulingGates": [{"name": "dra.kopf.dev/allocate"}]}
OURS = "dra-operator-dra-scheduler"


@pytest.mark.parametrize(
    ("objects", "found"),
    [
        pytest.param([waits("dra-scheduler")], ["dra-scheduler has no operator"], id="no-lease"),
        pytest.param([waits("dra-scheduler", SAID)], [], id="looked-at-without-a-lease"),
        pytest.param([waits("dra-scheduler"), lease(OURS, "2029-12-31T23:59:55Z")], [], id="led"),
        pytest.param(
            [waits("dra-scheduler", SAID), lease(OURS, "2029-12-31T23:58:00Z")], ["has no leader"], id="not-renewed"
        ),
        pytest.param([lease(OURS, "2030-01-01T00:59:00Z")], [], id="of-a-clock-that-is-ahead"),
        pytest.param(
            [lease(OURS, "9999-12-31T23:59:59Z")],
            ["was renewed at 9999-12-31T23:59:59Z, which is in the future"],
            id="renewed-at-the-end-of-time",
        ),
        pytest.param([lease(OURS, "2029-12-31T23:58:00Z")], ["dra-scheduler has no leader"], id="nobody-waits"),
        pytest.param(
            [waits("default-scheduler", **GATED), lease(OURS, "2029-12-31T23:58:00Z")],
            ["dra-scheduler has no leader"],
            id="at-our-gate",
        ),
        pytest.param(
            [waits("default-scheduler"), lease("kube-scheduler", "2029-12-31T23:58:00Z")],
            ["default-scheduler has no leader"],
            id="kube-scheduler",
        ),
        pytest.param([waits("volcano"), lease(OURS, "2029-12-31T23:59:55Z")], [], id="of-which-nothing-is-known"),
        pytest.param(
            [waits("volcano"), lease("kube-scheduler", "2029-12-31T23:58:00Z")],
            ["default-scheduler has no leader: Lease kube-system/kube-scheduler of x was renewed 2m ago, and no pod"],
            id="kube-scheduler-for-which-nobody-waits",
        ),
        pytest.param([waits("default-scheduler"), lease(OURS, "2029-12-31T23:59:55Z")], [], id="kube-scheduler-hidden"),
        pytest.param(
            [waits("default-scheduler"), lease("kube-scheduler", "2029-12-31T23:59:55Z")], [], id="kube-scheduler-led"
        ),
        pytest.param(
            [waits("dra-scheduler"), waits("default-scheduler", SAID, **GATED)], [], id="one-of-two-was-looked-at"
        ),
        pytest.param(
            [waits("b"), lease("dra-operator-b", "2029-12-31T23:58:00Z")],
            ["scheduler b has no leader: Lease kube-system/dra-operator-b of x was renewed 2m ago, and 1 pod waits"],
            id="of-another-name",
        ),
        pytest.param([lease("cert-manager", "2029-12-31T23:58:00Z")], [], id="a-lease-of-others"),
        pytest.param(
            [waits("dra-scheduler", schedulingGates=[{"name": "example.com/quota"}])], [], id="at-a-gate-of-others"
        ),
        pytest.param([waits("dra-scheduler", nodeName="n")], [], id="has-its-node"),
    ],
)
def test_a_scheduler_that_nobody_leads_is_a_trouble(objects: list[Any], found: list[str]) -> None:
    troubles = [f"{it.trouble.object} {it.trouble.message}" for it in diagnose(Observed(objects, NOW, is_whole=True))]
    assert len(troubles) == len(found)
    assert all(words in text for words, text in zip(found, troubles, strict=True))


async def test_devices_of_a_claim_that_somebody_else_keeps_are_not_taken_from_it() -> None:
    claim = await unused(FakeApi(), "kept", finalizers=[FINALIZER, "example.com/keep"])
    (found,) = (one for one in diagnose(long_ago(claim)) if one.trouble.kind == "unused")
    assert found.trouble.remedy.endswith("To free them now, delete the claim; example.com/keep keeps it")
    assert not found.trouble.command


@pytest.mark.parametrize(("kind", "is_told"), [("Node", True), ("DaemonSet", False)])
def test_a_slice_of_an_earlier_node_is_known_by_its_owner(kind: str, is_told: bool) -> None:
    node = convert(Node, {"metadata": {"name": "n", "uid": "new"}})
    owners = [{"apiVersion": "v1", "kind": kind, "name": "n", "uid": "old"}]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n", "pool": pool, "devices": [{"name": "a"}]}
    slice_ = convert(ResourceSlice, {"metadata": {"name": "s", "ownerReferences": owners}, "spec": spec})
    found = [one.trouble.message for one in diagnose(Observed([node, slice_], NOW))]
    assert found == (["belongs to an earlier node of the name n (UID old)"] if is_told else [])
