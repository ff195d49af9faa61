"""API servers with RBAC for the same test: the development cluster's, and a real one from ``KUBEBUILDER_ASSETS``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import envtest
import pytest
import yaml
from bare_client import Client, client_of
from dra_devcluster.apiserver import DevApiServer

_needs_real = pytest.mark.skipif(envtest.assets() is None, reason="no KUBEBUILDER_ASSETS: NOT compared with a real one")
SERVERS = ["development", pytest.param("real", marks=_needs_real)]
"""The kinds of servers, as parameters of a test."""

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
_REVIEWS = "authentication.k8s.io/v1"


@asynccontextmanager
async def rbac_server(kind: str, folder: Path) -> AsyncIterator[Client]:
    """An administrator's client of such a server; it has the namespace ``default`` with its service account."""
    async with _development() if kind == "development" else _real(folder) as client:
        await client.until(f"{ACCOUNTS}/default", lambda answer: answer.code == 200)
        yield client


@asynccontextmanager
async def _development() -> AsyncIterator[Client]:
    gates = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
    async with DevApiServer(authorization="rbac", feature_gates=gates) as server, client_of(server) as client:
        yield client


@asynccontextmanager
async def _real(folder: Path) -> AsyncIterator[Client]:
    binaries = envtest.assets()
    assert binaries is not None
    with envtest.real_api_server(binaries, folder) as kubeconfig:
        config = yaml.safe_load(kubeconfig.read_text())
        url, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"}) as session:
            yield Client(session, url)


async def new_account(client: Client, name: str) -> None:
    """A service account in the namespace ``default``."""
    await client.post(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})


async def token_of(client: Client, name: str, **spec: Any) -> str:
    """A token of the service account; ``spec`` is that of the TokenRequest."""
    request = {"apiVersion": _REVIEWS, "kind": "TokenRequest", "spec": spec}
    return str((await client.post(f"{ACCOUNTS}/{name}/token", request))["status"]["token"])


async def whoami(client: Client) -> dict[str, Any]:
    """``userInfo`` of the client's user."""
    review = {"apiVersion": _REVIEWS, "kind": "SelfSubjectReview"}
    info: dict[str, Any] = (await client.post(f"/apis/{_REVIEWS}/selfsubjectreviews", review))["status"]["userInfo"]
    return info
