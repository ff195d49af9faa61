"""``kubectl dra doctor --fix`` on a live server: it repairs what is safe after a yes, and nothing that has changed."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.resource import FINALIZER, ResourceClaim
from dra_devcluster.apiserver import DevApiServer
from dra_kube import PODS, RESOURCE_CLAIMS, Api, connection
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.doctor.claims import claim_troubles
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.repair.rights import missing_rights
from dra_operator.kubectl.repair.write import repaired
from fake_api import FakeApi

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
GONE = {"resource": "pods", "name": "gone", "uid": "uid-gone"}
ALSO_GONE = {"resource": "pods", "name": "gone-as-well", "uid": "uid-gone-as-well"}
ALLOCATION = {"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "p", "device": "x"}]}}


async def claim_of(api: Any, name: str, consumers: list[dict[str, str]]) -> dict[str, Any]:
    body = {"metadata": {"name": name, "namespace": "default", "finalizers": [FINALIZER]}, "spec": SPEC}
    made = await api.create(RESOURCE_CLAIMS, body)
    made["status"] = {"allocation": ALLOCATION, "reservedFor": consumers} if consumers else {}
    return dict(await api.update(RESOURCE_CLAIMS, made, "status"))


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


@pytest.mark.parametrize(("fix", "told"), [(False, []), (True, ["patch"])])
async def test_a_viewer_lacks_the_right_to_repair_only_if_he_wants_to(fix: bool, told: list[str]) -> None:
    missing = await missing_rights(Refusing(), fix=fix)  # type: ignore[arg-type]
    assert [one.trouble.message.split()[2] for one in missing] == told
