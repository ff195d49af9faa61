"""The operator on clusters of each age: the API versions that they serve, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from bare_client import Client, Json, client_of
from dra_devcluster.apiserver import DevApiServer
from dra_operator.allocator import Features
from dra_operator.app.operator import Options
from pages import BY_NAME
from supervised import QUICK, Supervising
from waiting import until

GROUP = "resource.k8s.io"
ALL = ("v1", "v1beta2", "v1beta1", "v1alpha3")
SERVED = {  # the newest version of claims first; v1alpha3 and, from 1.36 on, v1beta2 have the DeviceTaintRules
    "1.32": ("v1beta1",),
    "1.33 with beta APIs": ("v1beta2", "v1beta1", "v1alpha3"),
    "1.34 and 1.35": ("v1",),
    "1.34 and 1.35 with all APIs": ("v1", "v1beta2", "v1beta1", "v1alpha3"),
    "1.36": ("v1", "v1beta2"),
    "1.37 without betas": ("v1",),
}


@pytest.fixture(params=list(SERVED.values()), ids=list(SERVED))
def server_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"api_versions": {f"{GROUP}/{version}": version in request.param for version in ALL}}


async def test_a_pod_gets_its_device_and_gives_it_back(
    server: DevApiServer, server_settings: dict[str, Any], supervising: Supervising, caplog: pytest.LogCaptureFixture
) -> None:
    """With the gate of DeviceTaintRules, too: a server without them is said to be one, and all else goes on."""
    served = next(version for version in ALL if server_settings["api_versions"][f"{GROUP}/{version}"])
    options = Options(features=Features(taint_rules=True), limits=QUICK)
    async with client_of(server) as client, supervising(options) as site:
        await site.ready()
        has_rules = any(server_settings["api_versions"][f"{GROUP}/{version}"] for version in ("v1alpha3", "v1beta2"))
        assert ("does not serve devicetaintrules.resource.k8s.io" in caplog.text) == (not has_rules)
        await furnish(client, served)
        await client.post("/api/v1/namespaces/default/pods", a_pod())

        async def bound() -> bool:
            return "nodeName" in (await client.get("/api/v1/namespaces/default/pods/p"))["spec"]

        await until("bound", bound)
        claims = f"/apis/{GROUP}/{served}/namespaces/default/resourceclaims"
        (claim,) = (await client.get(claims))["items"]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", "n", "dev")
        assert claim["status"]["reservedFor"][0]["name"] == "p"
        await client.delete("/api/v1/namespaces/default/pods/p", {"gracePeriodSeconds": 0})

        async def gone() -> bool:
            return not (await client.get(claims))["items"]

        await until("claim gone", gone)


def test_every_row_of_the_page_is_tried() -> None:
    text = BY_NAME["docs/operating.md"].text
    rows = re.findall(r"^\| (1\.\d\d[^|]*) \| ([^|]*) \|", text, re.MULTILINE)
    tried = {tuple(re.findall(r"1\.\d\d", name)): versions[0] for name, versions in SERVED.items()}
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
