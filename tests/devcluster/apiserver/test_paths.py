"""What is answered at paths and by methods that are not served; the same on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_client import DRA, PODS, Client, pod
from rbac_cases import SERVERS, rbac_server


async def _shown(client: Client, method: str, path: str) -> tuple[int, str]:
    answer = await client.call(method, path)
    is_text = answer.headers["Content-Type"].startswith("text/plain")
    return answer.code, answer.body.decode() if is_text else answer.message


@pytest.mark.parametrize("kind", SERVERS)
async def test_what_is_not_served_is_not_found_or_not_allowed(kind: str, tmp_path: Path) -> None:
    page, resource = (404, "404 page not found\n"), (404, "the server could not find the requested resource")
    method = (405, "the server does not allow this method on the requested resource")
    absent = "/apis/absent.example.com"
    expected = {
        **dict.fromkeys(("/nope", absent, f"{absent}/v1", f"{absent}/v1/things", f"{absent}/v1/things/x"), page),
        **dict.fromkeys(("/api/v9", "/apis/apps/v9", "/apis/apps/v9/x", f"{DRA}/nope", f"{PODS}/p/nope"), resource),
    }
    async with rbac_server(kind, tmp_path) as client:
        assert {path: await _shown(client, "GET", path) for path in expected} == expected
        await client.post(PODS, pod("p", schedulerName="none"))
        refused = [("log", verb) for verb in ("POST", "PUT", "PATCH", "DELETE")]
        refused += [(name, verb) for name in ("exec", "attach", "portforward") for verb in ("PUT", "PATCH", "DELETE")]
        found = {(name, verb): await _shown(client, verb, f"{PODS}/p/{name}") for name, verb in refused}
        assert found == dict.fromkeys(refused, method)
