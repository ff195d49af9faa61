"""What ``/metrics`` of the server counts."""

from __future__ import annotations

import re

import pytest
from bare_client import CONFIG_MAPS, PATCH, PODS, Client, config_map

CASES = [
    ("POST", CONFIG_MAPS, config_map("a"), "", "POST configmaps  201"),
    ("POST", CONFIG_MAPS, config_map("first"), "", "POST configmaps  409"),
    ("GET", f"{CONFIG_MAPS}/first", None, "", "GET configmaps  200"),
    ("GET", CONFIG_MAPS, None, "", "LIST configmaps  200"),
    ("GET", f"{PODS}/none/status", None, "", "GET pods status 404"),
    ("PATCH", f"{CONFIG_MAPS}/first", {"data": {"a": "c"}}, PATCH["merge"], "PATCH configmaps  200"),
    ("PATCH", f"{CONFIG_MAPS}/first?fieldManager=me", config_map("first"), PATCH["apply"], "APPLY configmaps  200"),
    ("DELETE", f"{CONFIG_MAPS}/first", None, "", "DELETE configmaps  200"),
    ("DELETE", CONFIG_MAPS, None, "", "DELETECOLLECTION configmaps  200"),
]


@pytest.mark.parametrize(("method", "path", "body", "kind", "counted"), CASES, ids=[case[-1] for case in CASES])
async def test_requests_are_counted_by_verb_resource_and_code(
    client: Client, method: str, path: str, body: object, kind: str, counted: str
) -> None:
    await client.post(CONFIG_MAPS, config_map("first"))
    before = await _counts(client)
    await client.call(method, path, body, kind=kind or "application/json")
    after = await _counts(client)
    assert {what: number - before.get(what, 0) for what, number in after.items() if number != before.get(what)} == {
        counted: 1
    }


async def _counts(client: Client) -> dict[str, int]:
    text = (await client.call("GET", "/metrics")).body.decode()
    found = {}
    for labels, value in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found[" ".join(label[name] for name in ("verb", "resource", "subresource", "code"))] = int(float(value))
    return found
