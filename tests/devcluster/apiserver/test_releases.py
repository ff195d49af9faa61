"""What the server takes over from the release that it plays: version, versions of the API, gates, warnings."""

from __future__ import annotations

import pytest
from bare_client import Json, client_of
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer

GROUP = "/apis/resource.k8s.io"
SLICE: Json = {
    "metadata": {"name": "s"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "taints": [{"key": "k", "effect": "NoSchedule"}]}],
    },
}


@pytest.mark.rule("K37-TAINT-01")
@pytest.mark.parametrize(
    ("release", "served"),
    [
        (Release.V1_32, {"v1beta1": 4}),
        (Release.V1_33, {"v1beta2": 4, "v1beta1": 4, "v1alpha3": 1}),
        (Release.V1_34, {"v1": 4, "v1beta2": 4, "v1beta1": 4, "v1alpha3": 1}),
        (Release.V1_36, {"v1": 4, "v1beta2": 5, "v1beta1": 4, "v1alpha3": 2}),
        (Release.V1_37, {"v1": 5, "v1beta2": 5, "v1beta1": 4, "v1alpha3": 2}),
    ],
    ids=str,
)
async def test_a_release_serves_its_versions_of_the_api(release: Release, served: dict[str, int]) -> None:
    async with DevApiServer(release=release) as server, client_of(server) as client:
        version = await client.get("/version")
        assert (version["minor"], version["gitVersion"]) == (str(release.value), f"v{release}.0+dra-devcluster")
        group = await client.get(GROUP)
        found: dict[str, int] = {}
        for line in group["versions"]:
            resources = (await client.get(f"{GROUP}/{line['version']}"))["resources"]
            found[line["version"]] = sum("/" not in resource["name"] for resource in resources)
        assert found == served


@pytest.mark.parametrize(
    ("release", "gates", "is_kept"),
    [
        (Release.V1_36, {}, True),
        (Release.V1_36, {"DRADeviceTaints": False}, False),
        (Release.V1_35, {}, False),
        (Release.V1_35, {"DRADeviceTaints": True}, True),
    ],
)
async def test_fields_exist_where_the_gates_of_the_release_say_so(
    release: Release, gates: dict[str, bool], is_kept: bool
) -> None:
    async with DevApiServer(release=release, feature_gates=gates) as server, client_of(server) as client:
        made = await client.post(f"{GROUP}/v1/resourceslices", SLICE)
        assert ("taints" in made["spec"]["devices"][0]) == is_kept


@pytest.mark.parametrize(("release", "warns"), [(Release.V1_34, False), (Release.V1_35, True)], ids=str)
async def test_a_version_is_deprecated_from_its_release_on(release: Release, warns: bool) -> None:
    async with DevApiServer(release=release) as server, client_of(server) as client:
        answer = await client.call("GET", f"{GROUP}/v1beta1/deviceclasses")
        assert ("Warning" in answer.headers) == warns


@pytest.mark.parametrize(
    ("release", "version"), [(Release.V1_35, None), (Release.V1_36, "v1alpha2"), (Release.V1_37, "v1beta1")], ids=str
)
async def test_pod_groups_have_one_version_in_each_release(release: Release, version: str | None) -> None:
    """Those of 1.36 are gone in 1.37: they have to be deleted before the upgrade. Without the gate there are none."""
    for is_on in (True, False):
        gates = {"GenericWorkload": is_on}
        async with DevApiServer(release=release, feature_gates=gates) as server, client_of(server) as client:
            group = await client.get("/apis/scheduling.k8s.io")
            found = [each["version"] for each in group["versions"]]
            assert found == ["v1", *filter(None, [version if is_on else None])]


async def test_a_field_that_another_release_has_is_unknown() -> None:
    """1.37 renamed what devices bring to their nodes; an unknown field is dropped with a warning."""
    old = {"nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "1"}}}
    new = {"nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}}
    on = {"DRANodeAllocatableResources": True}
    for release, known, unknown in ((Release.V1_36, old, new), (Release.V1_37, new, old)):
        async with DevApiServer(release=release, feature_gates=on) as server, client_of(server) as client:
            device = {"name": "d", **old, **new}
            answer = await client.call("POST", f"{GROUP}/v1/resourceslices", _slice(device))
            assert answer.code == 201, answer.message
            assert answer.json["spec"]["devices"] == [{"name": "d", **known}]
            assert f"spec.devices[0].{next(iter(unknown))}" in answer.headers["Warning"]


def _slice(device: Json) -> Json:
    """For all nodes, of which there are none: a named one would have to declare a feature."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": "s"}, "spec": {"driver": "d.io", "pool": pool, "allNodes": True, "devices": [device]}}
