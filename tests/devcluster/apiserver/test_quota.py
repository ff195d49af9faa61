"""ResourceQuotas for claims: what is charged, and the refusal of what is too much (E2E-072, E2E-090)."""

from __future__ import annotations

from typing import Any

import pytest
from bare_client import CLAIMS, CONFIG_MAPS, DRA, Client, claim, config_map

Json = dict[str, Any]
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
COUNT, DEVICES = "count/resourceclaims.resource.k8s.io", "gpu.deviceclass.resource.k8s.io/devices"


async def limit(client: Client, **hard: str) -> None:
    await client.post(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}})


async def used(client: Client, expected: Json) -> None:
    await client.until(f"{QUOTAS}/q", lambda answer: answer.json.get("status", {}).get("used") == expected)


async def test_claims_are_counted_and_one_too_many_is_refused(client: Client) -> None:
    await limit(client, **{COUNT: "1"})
    await used(client, {COUNT: "0"})
    await client.post(CLAIMS, claim("first"))
    await used(client, {COUNT: "1"})
    refused = await client.call("POST", CLAIMS, claim("second"))
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.message == (
        f'resourceclaims.resource.k8s.io "second" is forbidden: exceeded quota: q, requested: {COUNT}=1, '
        f"used: {COUNT}=1, limited: {COUNT}=1"
    )
    await client.delete(f"{CLAIMS}/first")
    await used(client, {COUNT: "0"})
    await client.post(CLAIMS, claim("second"))


CHARGED: list[tuple[Json, int]] = [
    ({"exactly": {"deviceClassName": "gpu"}}, 1),
    ({"exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 5}}, 5),
    ({"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}, 32),
    ({"exactly": {"deviceClassName": "other", "count": 5, "allocationMode": "ExactCount"}}, 0),
    ({"firstAvailable": [
        {"name": "a", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
        {"name": "b", "deviceClassName": "other", "allocationMode": "ExactCount", "count": 9},
        {"name": "c", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3}]}, 3),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "devices"), CHARGED)
async def test_a_claim_is_charged_with_the_most_devices_it_may_get(
    client: Client, request_: Json, devices: int
) -> None:
    names = [DEVICES, "requests.deviceclass.resource.kubernetes.io/gpu", "requests.example.com/gpu"]
    spec = {"extendedResourceName": "example.com/gpu"}
    await client.post(f"{DRA}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": spec})
    await limit(client, **dict.fromkeys(names, "40"))
    obj = claim("c")
    obj["spec"]["devices"]["requests"] = [{"name": "r", **request_}]
    await client.post(CLAIMS, obj)
    await used(client, dict.fromkeys(names, str(devices)))
    obj["metadata"]["name"] = "d"
    again = await client.call("POST", CLAIMS, obj)
    assert again.code == (403 if devices > 20 else 201)


async def test_any_kind_can_be_counted_and_what_cannot_be_measured_is_left_out(client: Client) -> None:
    await limit(client, **{"count/configmaps": "1", "configmaps": "5", "requests.cpu": "1"})
    await used(client, {"configmaps": "0", "count/configmaps": "0"})
    await client.post(CONFIG_MAPS, config_map("a"))
    assert (await client.call("POST", CONFIG_MAPS, config_map("b"))).code == 403
    await client.patch(f"{CONFIG_MAPS}/a", {"data": {"a": "changed"}})
    elsewhere = CONFIG_MAPS.replace("/default/", "/kube-public/")
    await client.post(elsewhere, config_map("b"))
    await used(client, {"configmaps": "1", "count/configmaps": "1"})
