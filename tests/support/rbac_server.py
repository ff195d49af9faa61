"""API servers with RBAC for the same test: the development cluster's, and a real one from ``KUBEBUILDER_ASSETS``.

The development cluster plays each release. Requests name the newest versions of the API; to an older server a client
speaks the newest that it serves.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import envtest
import pytest
import yaml
from bare_client import Answer, Client, client_of
from dra_api.conversion import VERSIONS, convert
from dra_api.releases.release import BUILT, NEWEST, Release
from dra_devcluster.apiserver import DevApiServer
from rounds import LONG

_needs_real = pytest.mark.skipif(envtest.assets() is None, reason="no KUBEBUILDER_ASSETS: NOT compared with a real one")
SERVERS = ["development", pytest.param("real", marks=_needs_real)]
"""The kinds of servers, as parameters of a test."""
_BEFORE_1_36 = "real-before-1.36"
_LESS_OFTEN = ("1.33", "1.34")  # between two that are asked, and no different
RELEASES = [
    *(pytest.param(name, marks=LONG if name in _LESS_OFTEN else ()) for name in BUILT),
    *(pytest.param(kind, marks=_needs_real) for kind in ("real", _BEFORE_1_36)),
]
"""The same, with the development cluster in each release, and a real server that asks no driver for its rights."""
_VERSIONED = re.compile(r"^/apis/(resource|scheduling)\.k8s\.io/(\w+)(?=/(?:namespaces/[^/]+/)?([a-z]+(/[^/]+/\w+)?))")

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
_REVIEWS = "authentication.k8s.io/v1"


class ReleaseClient(Client):
    """A client of a server that may not have the versions of the API that a path or object names."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: Sequence[tuple[str, str]],
        served: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(session, url, headers)
        self._served = served

    def _with(self, headers: Sequence[tuple[str, str]]) -> Client:
        return ReleaseClient(self._session, self._url, headers, self._served)

    def serves(self, path: str) -> bool:
        """Return whether the server has the kind, and the part of it, that the path names in some version."""
        found = _VERSIONED.match(path)
        return found is None or re.sub("/[^/]+/", "/", found[3]) in self._served

    async def call(self, method: str, path: str, body: object = None, **options: Any) -> Answer:
        found = _VERSIONED.match(path)
        served = self._served.get(re.sub("/[^/]+/", "/", found[3])) if found else None
        if found and served and found[2] not in served:
            version = f"{found[1]}.k8s.io/{served[0]}"
            path = f"/apis/{version}{path[found.end() :]}"
            if isinstance(body, dict) and body.get("kind") in VERSIONS:
                body = convert(body, version)
        return await super().call(method, path, body, **options)


async def _served(client: Client) -> dict[str, list[str]]:
    """Return the versions of each kind of the versioned groups, and of their parts, the newest first."""
    served: dict[str, list[str]] = {}
    for group in ("resource.k8s.io", "scheduling.k8s.io"):
        for line in (await client.get(f"/apis/{group}"))["versions"]:
            for resource in (await client.get(f"/apis/{group}/{line['version']}"))["resources"]:
                served.setdefault(resource["name"], []).append(line["version"])
    return served


@asynccontextmanager
async def rbac_server(kind: str, folder: Path) -> AsyncIterator[ReleaseClient]:
    """An administrator's client of a server: ``development``, or one of ``RELEASES``.

    It has the namespace ``default`` with its service account.
    """
    gates = {"DRAResourceClaimGranularStatusAuthorization": False} if kind == _BEFORE_1_36 else {}
    is_real = kind.startswith("real")
    async with _real(folder, gates) if is_real else _development(BUILT.get(kind, NEWEST)) as client:
        await client.until(f"{ACCOUNTS}/default", lambda answer: answer.code == 200)
        yield ReleaseClient(client._session, client._url, client._headers, await _served(client))


@asynccontextmanager
async def _development(release: Release) -> AsyncIterator[Client]:
    groups = ("GenericWorkload", "DRAWorkloadResourceClaims") if release >= Release.V1_36 else ()
    gates = dict.fromkeys(("DRAResourceClaimDeviceStatus", *groups), True)  # the former is off in 1.32
    async with (
        DevApiServer(release=release, authorization="rbac", feature_gates=gates) as server,
        client_of(server) as client,
    ):
        yield client


@asynccontextmanager
async def _real(folder: Path, gates: Mapping[str, bool]) -> AsyncIterator[Client]:
    binaries = envtest.assets()
    assert binaries is not None
    with envtest.real_api_server(binaries, folder, gates=gates) as kubeconfig:
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
