"""What a stolen token of the operator is worth: each right of its role is tried, as a thief and as the operator."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from access import Json, single_rules
from bare_client import CLAIMS, PATCH
from kubectl import ROOT
from manifest_accounts import furnish, grant, objects, operator
from rbac_server import RELEASES, ReleaseClient, rbac_server
from thefts import ALLOCATED, GROUPED, GROUPS, HOLDINGS, LEASES, SPOKEN, THEFTS, Theft, lease
from waiting import until

CHECKED_BY_THE_SERVER = {("update", "resourceclaims/binding"), ("patch", "resourceclaims/binding")}
"""Verbs that are asked beside those of a write of a claim's status."""

REFUSED = (403, 422)


async def furnished(client: ReleaseClient) -> ReleaseClient:
    await grant(client)
    await furnish(client)
    for path, obj in HOLDINGS:
        if client.serves(path):
            await client.post(path, obj)
    await client.patch(f"{CLAIMS}/here/status", ALLOCATED)
    await client.patch(f"{CLAIMS}/told/status", {"status": {**ALLOCATED["status"], **SPOKEN["status"]}})
    return client


@pytest.fixture(params=RELEASES)
async def administrator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ReleaseClient]:
    async with rbac_server(request.param, tmp_path) as client:
        await furnished(client)
        thief = operator(client)
        await thief.until(f"{LEASES}/kube-controller-manager", lambda answer: answer.code == 200)

        async def refuses() -> bool:
            return (await thief.call("POST", LEASES, lease("other"), dryRun="All")).code in REFUSED

        await until("the policy is in force", refuses)  # a real server hears of policies by watches
        yield client


async def test_what_a_thief_sends_is_refused_unless_the_operator_sends_the_same(administrator: ReleaseClient) -> None:
    wrong = []
    for theft in thefts_from(administrator):
        body = await body_of(theft, administrator)
        answer = await operator(administrator).call(theft.method, theft.path, body, kind=theft.kind, dryRun="All")
        is_refused = answer.code in REFUSED and any(words in answer.message for words in theft.refusals)
        if not (is_refused if theft.refused else answer.code < 300):
            wrong.append((theft.verb, theft.path, body, theft.refused, answer.body.decode()))
    assert not wrong, "\n".join(map(str, wrong))


def thefts_from(administrator: ReleaseClient) -> list[Theft]:
    """Return the thefts of what the server has."""
    has_groups = administrator.serves(GROUPS)
    return [
        each for each in THEFTS if administrator.serves(each.path) and (has_groups or not each.path.startswith(GROUPED))
    ]


async def body_of(theft: Theft, administrator: ReleaseClient) -> Json | None:
    """What is sent: as written, or the object as it is with a change."""
    if not callable(theft.send):
        return theft.send  # type: ignore[no-any-return]
    body = await administrator.get(theft.path)
    theft.send(body)
    return body


async def test_where_the_server_does_not_ask_who_speaks_of_devices_the_policy_does(tmp_path: Path) -> None:
    async with rbac_server("1.35", tmp_path) as client:
        thief, status = operator(await furnished(client)), f"{CLAIMS}/here/status"
        answer = await thief.call("PATCH", status, SPOKEN, kind=PATCH["merge"])
        assert (answer.code, "not the operator" in answer.message) == (403, True)
        await client.patch(status, SPOKEN)
        freed = {"status": {"devices": None, "allocation": None}}
        assert (await thief.call("PATCH", status, freed, kind=PATCH["merge"])).code == 200


async def test_others_are_not_concerned(administrator: ReleaseClient) -> None:
    for theft in thefts_from(administrator):
        if theft.refused:
            body = await body_of(theft, administrator)
            answer = await administrator.call(theft.method, theft.path, body, kind=theft.kind, dryRun="All")
            assert "ValidatingAdmissionPolicy" not in answer.body.decode(), theft


def test_each_right_to_write_is_tried_and_told_of() -> None:
    rules = single_rules(obj for obj in objects() if obj["metadata"]["name"].startswith("dra-operator"))
    rights = {(rule.verbs[0], rule.resources[0]) for rule in rules if rule.verbs[0] not in ("get", "list", "watch")}
    assert {(theft.verb, theft.resource) for theft in THEFTS} == rights - CHECKED_BY_THE_SERVER
    page = (ROOT / "docs" / "threat-model.md").read_text().partition("## A stolen token of the operator")[2]
    told = re.findall(r"^\| `([a-z/]+)`: ([a-z, ]+) \|", page.partition("\n## ")[0], re.MULTILINE)
    assert {(verb, resource) for resource, verbs in told for verb in verbs.split(", ")} == rights
