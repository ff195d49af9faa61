"""The operator on clusters of each age: the API versions that they serve, and no others."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
from bare_client import Client, Json, client_of
from dra_api.gates import TABLE
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer
from dra_operator.app.settings import OperatorSettings
from pages import BY_NAME
from supervised import Supervising, gates_text
from waiting import until

GROUP = "resource.k8s.io"
ALL = ("v1", "v1beta2", "v1beta1", "v1alpha3")


class Server(NamedTuple):
    """A release, and the versions that are switched on: the newest one of claims first."""

    release: Release
    versions: tuple[str, ...]
    rules: str | None
    """The newest version of DeviceTaintRules."""


SERVED = {
    "1.32": Server(Release.V1_32, ("v1beta1",), None),
    "1.33 with beta APIs": Server(Release.V1_33, ("v1beta2", "v1beta1", "v1alpha3"), "v1alpha3"),
    "1.34 and 1.35": Server(Release.V1_35, ("v1",), None),
    "1.34 and 1.35 with all APIs": Server(Release.V1_35, ALL, "v1alpha3"),
    "1.36": Server(Release.V1_36, ("v1", "v1beta2"), "v1beta2"),
    "1.37": Server(Release.V1_37, ("v1",), "v1"),
}


@pytest.fixture(params=list(SERVED.values()), ids=list(SERVED))
def played(request: pytest.FixtureRequest) -> Server:
    server: Server = request.param
    return server


@pytest.fixture
def server_settings(played: Server) -> dict[str, Any]:
    versions = {f"{GROUP}/{version}": version in played.versions for version in ALL}
    return {"api_versions": versions, "release": played.release}


@pytest.mark.rule("K37-TAINT-03")
async def test_a_pod_gets_its_device_and_loses_it_to_a_taint(
    server: DevApiServer, played: Server, supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    """With the gates of taints where the release has them, on by default in 1.37: a server without DeviceTaintRules is
    said to be one, and all else goes on. A rule that is served ends the pod."""
    known = (TABLE["DRADeviceTaintRules"].at(played.release), TABLE["DRADeviceTaints"].at(played.release))
    gates = {} if played.release >= Release.V1_37 else {"DRADeviceTaintRules": True, "DRADeviceTaints": True}
    options = OperatorSettings(feature_gates=gates_text(gates if all(known) else {}))
    async with client_of(server) as client, supervising(options) as site:
        await site.ready()
        is_missing = bool(all(known)) and played.rules is None
        assert ("does not serve devicetaintrules.resource.k8s.io" in caplog.text) == is_missing
        await furnish(client, played.versions[0])
        await client.post("/api/v1/namespaces/default/pods", a_pod())

        async def bound() -> bool:
            return "nodeName" in (await client.get("/api/v1/namespaces/default/pods/p"))["spec"]

        await until("bound", bound)
        claims = f"/apis/{GROUP}/{played.versions[0]}/namespaces/default/resourceclaims"
        (claim,) = (await client.get(claims))["items"]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", "n", "dev")
        assert claim["status"]["reservedFor"][0]["name"] == "p"
        if played.rules is not None and all(known):
            taint = {"key": "broken", "effect": "NoExecute"}
            spec = {"deviceSelector": {"driver": "gpu.example.com"}, "taint": taint}
            await client.post(
                f"/apis/{GROUP}/{played.rules}/devicetaintrules",
                {"kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec},
            )

            async def evicted() -> bool:
                return "deletionTimestamp" in (await client.get("/api/v1/namespaces/default/pods/p"))["metadata"]

            await until("evicted", evicted)
        await client.delete("/api/v1/namespaces/default/pods/p", {"gracePeriodSeconds": 0})

        async def gone() -> bool:
            return not (await client.get(claims))["items"]

        await until("claim gone", gone)


def test_every_row_of_the_page_is_tried() -> None:
    text = BY_NAME["docs/operating.md"].text
    rows = re.findall(r"^\| (1\.\d\d[^|]*) \| ([^|]*) \|", text, re.MULTILINE)
    tried = {tuple(re.findall(r"1\.\d\d", name)): server.versions[0] for name, server in SERVED.items()}
    assert {tuple(re.findall(r"1\.\d\d", of)): re.findall(r"v1\w*", newest)[0] for of, newest in rows} == tried


async def furnish(client: Client, version: str) -> None:
    """One node with one device, a class and a template, in the words of the version."""
    api = f"/apis/{GROUP}/{version}"
    request: Json = {"deviceClassName": "gpu"}
    device: Json = {"attributes": {"model": {"string": "m"}}}
    if version != "v1beta1":
        request = {"exactly": request}
    device = {"name": "dev", **({"basic": device} if version == "v1beta1" else device)}
    spec = {"devices": {"requests": [{"name": "gpu", **request}]}}
    about = {"apiVersion": f"{GROUP}/{version}"}
    selector = {"cel": {"expression": 'device.attributes["gpu.example.com"].model == "m"'}}
    await client.post(
        "/api/v1/nodes", {"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "9", "cpu": "1"}}}
    )
    await client.post(
        f"{api}/deviceclasses",
        {**about, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}},
    )
    await client.post(
        f"{api}/namespaces/default/resourceclaimtemplates",
        {**about, "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": spec}},
    )
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    content = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [device]}
    await client.post(
        f"{api}/resourceslices", {**about, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": content}
    )


def a_pod() -> Json:
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {
        "schedulerName": "dra-scheduler",
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
    }
    return {"metadata": {"name": "p"}, "spec": spec}
