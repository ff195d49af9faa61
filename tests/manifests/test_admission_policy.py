"""Of Kueue's objects the operator writes what its policy says, and a thief of its token no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from bare_client import Client
from dra_api import yaml_text
from manifest_accounts import grant, objects
from rbac_cases import SERVERS, rbac_server
from waiting import until

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOAD: Final = f"{KUEUE}/namespaces/default/workloads/train"
CRDS: Final = Path(__file__).parents[1] / "support" / "kueue_crds" / "crds.yaml"
OPERATOR: Final = "system:serviceaccount:dra-system:dra-operator"
GROUPS: Final = ("system:serviceaccounts", "system:serviceaccounts:dra-system", "system:authenticated")
VERSION: Final = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
NOW: Final = "2026-01-01T00:00:00Z"
MERGE: Final = "application/merge-patch+json"
COMPONENT: Final = ("components/admission/rbac", "components/admission/policy")


def check(state: str, name: str = "devices", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "message": "", "lastTransitionTime": NOW, **more}


def condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "x", "message": "", "lastTransitionTime": NOW}


RESERVED: Final = {
    "admission": {"clusterQueue": "team"},
    "conditions": [condition("QuotaReserved", "True")],
    "admissionChecks": [check("Pending")],
    "requeueState": {"count": 1, "requeueAt": NOW},
}


@pytest.fixture(params=SERVERS)
async def operator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """The operator's account, beside a Workload with quota and two checks, of which one is another controller's."""
    kind = "1.36" if request.param == "development" else request.param
    async with rbac_server(kind, tmp_path) as client:
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for definition in yaml_text.load_all(CRDS.read_text()):
            await client.post(definitions, definition)
        await grant(client, *objects(COMPONENT))
        account = client.impersonating(OPERATOR, *GROUPS)

        async def is_served() -> bool:
            return (await account.call("GET", f"{KUEUE}/workloads")).code == 200

        await until("Kueue's kinds are served", is_served)
        for name, controller in (("devices", "dra.kopf.dev/fit"), ("other", "example.com/other")):
            body = {"metadata": {"name": name}, "spec": {"controllerName": controller}}
            await client.post(f"{KUEUE}/admissionchecks", body | {"kind": "AdmissionCheck"} | VERSION)
        train = {"metadata": {"name": "train"}, "spec": {"podSets": []}, "kind": "Workload"}
        await client.post(f"{KUEUE}/namespaces/default/workloads", train | VERSION)
        await client.ok("PATCH", f"{WORKLOAD}/status", {"status": RESERVED}, kind=MERGE)

        async def in_force() -> bool:
            return bool(await refusal(account, f"{WORKLOAD}/status", {"admission": None}, dryRun="All"))

        await until("the policy is in force", in_force)
        yield account


async def refusal(client: Client, path: str, status: dict[str, Any], **options: str) -> str:
    """Why the policy refuses the status; empty if it does not."""
    answer = await client.call("PATCH", path, {"status": status}, kind=MERGE, **options)
    if answer.code < 300:
        return ""
    assert answer.code == 403, answer.body
    assert "'dra-operator-admission'" in answer.message, answer.message
    return answer.message.rpartition("denied request: ")[2]


STOLEN = [
    ("quota is taken", {"admission": None}, "changes admissionChecks and requeueState"),
    ("it is finished", {"conditions": [condition("Finished", "True")]}, "changes admissionChecks and requeueState"),
    ("a check is gone", {"admissionChecks": []}, "adds and removes no admission check"),
    ("one is new", {"admissionChecks": [check("Pending"), check("Ready", "x")]}, "adds and removes no admission check"),
    ("a back-off", {"requeueState": {"requeueAt": "2036-01-01T00:00:00Z"}}, "ends the back-off of a Workload"),
]


@pytest.mark.parametrize(("status", "why"), [it[1:] for it in STOLEN], ids=[it[0] for it in STOLEN])
async def test_a_thief_decides_about_nobodys_quota(status: dict[str, Any], why: str, operator: Client) -> None:
    assert why in await refusal(operator, f"{WORKLOAD}/status", status)


async def test_a_thief_says_nothing_of_checks_of_other_controllers(operator: Client) -> None:
    active = {"conditions": [condition("Active", "True")]}
    assert "controllerName dra.kopf.dev/fit" in await refusal(operator, f"{KUEUE}/admissionchecks/other/status", active)
    ready = {"conditions": [condition("Ready", "True")]}
    assert "the condition Active" in await refusal(operator, f"{KUEUE}/admissionchecks/devices/status", ready)


async def test_the_operator_decides_and_ends_back_offs(operator: Client) -> None:
    retry = {"admissionChecks": [check("Retry", requeueAfterSeconds=60)]}
    assert not await refusal(operator, f"{WORKLOAD}/status", retry)
    assert not await refusal(operator, f"{WORKLOAD}/status", {"requeueState": {"requeueAt": None}})
    active = {"conditions": [condition("Active", "True")]}
    assert not await refusal(operator, f"{KUEUE}/admissionchecks/devices/status", active)


async def test_nothing_but_the_status_may_be_written(operator: Client) -> None:
    answer = await operator.call("PATCH", WORKLOAD, {"spec": {"active": False}}, kind=MERGE)
    assert answer.code == 403
