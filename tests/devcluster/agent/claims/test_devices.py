"""Which devices a container gets (KM-17): from the claims on the node to the container itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_devcluster.agent.checkpoint import ClaimCache, ClaimInfo
from dra_devcluster.agent.claims import cdi_devices
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.plugin import PreparedDevice
from fake_plugin import FakePlugin, MakePlugin
from one_node import OneNode
from waiting import becomes

Json = dict[str, Any]

CACHE = ClaimCache(
    [
        ClaimInfo(
            "u1",
            "one",
            "default",
            drivers={
                "a": (
                    PreparedDevice("p", "0", requests=("x",), cdi_ids=("a/x=0",)),
                    PreparedDevice("p", "1", requests=("x", "y"), cdi_ids=("a/x=1", "a/x=1b")),
                ),
                "b": (PreparedDevice("p", "0", requests=(), cdi_ids=("b/x=0",)),),
            },
        ),
        ClaimInfo("u2", "two", "default", drivers={"a": (PreparedDevice("p", "2", cdi_ids=("a/x=2",)),), "b": ()}),
    ]
)

REFERENCES: dict[str, tuple[list[Json], list[str]]] = {
    "no claims": ([], []),
    "a whole claim": ([{"name": "one"}], ["a/x=0", "a/x=1", "a/x=1b", "b/x=0"]),
    "one request": ([{"name": "one", "request": "y"}], ["a/x=1", "a/x=1b", "b/x=0"]),
    "a request that only devices for every request serve": ([{"name": "one", "request": "z"}], ["b/x=0"]),
    "a sub-request is not a request": ([{"name": "one", "request": "x/sub"}], ["b/x=0"]),
    "the same device through two requests": (
        [{"name": "one", "request": "x"}, {"name": "one", "request": "y"}],
        ["a/x=0", "a/x=1", "a/x=1b", "b/x=0"],
    ),
    "two claims, in the order of the references": (
        [{"name": "two"}, {"name": "one", "request": "z"}],
        ["a/x=2", "b/x=0"],
    ),
    "an entry that needs no claim": ([{"name": "none"}, {"name": "two"}], ["a/x=2"]),
}


def pod_with(references: list[Json]) -> Pod:
    entries = [{"name": name, "resourceClaimName": name} for name in ("one", "two", "missing")]
    entries.append({"name": "none", "resourceClaimTemplateName": "template"})
    return convert(
        Pod,
        {
            "metadata": {"name": "pod", "namespace": "default", "uid": "uid"},
            "spec": {"resourceClaims": entries, "containers": [{"name": "c", "resources": {"claims": references}}]},
            "status": {"resourceClaimStatuses": [{"name": "none"}]},
        },
    )


def ids(references: list[Json]) -> list[str]:
    pod = pod_with(references)
    assert pod.spec.containers is not None
    return cdi_devices(pod, pod.spec.containers[0], CACHE)


@pytest.mark.rule("KM-17")
@pytest.mark.parametrize("case", REFERENCES)
def test_the_cdi_ids_of_a_container(case: str) -> None:
    references, expected = REFERENCES[case]
    assert ids(references) == expected


@pytest.mark.rule("KM-17")
def test_a_claim_that_the_node_does_not_hold_is_an_error() -> None:
    with pytest.raises(ClaimError, match="ResourceClaim missing is not prepared on this node"):
        ids([{"name": "missing"}])
    with pytest.raises(ClaimError, match="unknown claim other"):
        ids([{"name": "other"}])


# --- down to the process ---


def using(name: str, *references: Json, script: str = "env | grep ^CLAIM | sort") -> Json:
    command = ["sh", "-c", script]
    return {"name": name, "image": "busybox", "command": command, "resources": {"claims": list(references)}}


async def test_e2e015_each_container_sees_exactly_the_environment_of_its_claims(
    node: OneNode, plugin: FakePlugin
) -> None:
    await node.pod(
        "pod-a",
        containers=[using("both", {"name": "x"}, {"name": "y"}), using("one", {"name": "y"}), using("none")],
        claims=("x", "y", "z"),
    )
    for claim in ("x", "y", "z"):
        await node.claim(claim, "pod-a")
    await node.phase("pod-a", "Succeeded")
    logs = [await node.log("pod-a", container=name) for name in ("both", "one", "none")]
    assert logs == ["CLAIM_x=true\nCLAIM_y=true\n", "CLAIM_y=true\n", ""]


async def test_e2e015_a_container_that_refers_to_one_request_gets_only_its_devices(
    node: OneNode, plugin: FakePlugin
) -> None:
    plugin.devices["gpu"] = [
        {"pool_name": "p", "device_name": name, "request_names": [name], "cdi_device_ids": [f"vendor/dev={name}"]}
        for name in ("first", "second")
    ]
    devices = [{"name": name, "containerEdits": {"env": [f"CLAIM_{name}=true"]}} for name in ("first", "second")]
    write_spec(node, devices)
    await node.pod("pod-a", containers=[using("c", {"name": "gpu", "request": "second"})], claims=("gpu",))
    await node.claim("gpu", "pod-a")
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a") == "CLAIM_second=true\n"


def write_spec(node: OneNode, devices: list[Json], version: str = "0.5.0") -> None:
    spec = {"cdiVersion": version, "kind": "vendor/dev", "devices": devices}
    (node.cdi_root / "vendor.json").write_text(json.dumps(spec))


async def test_a_device_without_a_cdi_file_holds_its_container_up_until_the_file_is_there(
    node: OneNode, plugin: FakePlugin
) -> None:
    plugin.devices["gpu"] = [{"pool_name": "p", "device_name": "d", "cdi_device_ids": ["vendor/dev=late"]}]
    await node.pod("pod-a", "echo $LATE", claims=("gpu",))
    await node.claim("gpu", "pod-a")
    event = await node.event("pod-a", "Failed")
    assert event["message"] == "Error: failed to inject CDI devices: unresolvable CDI devices vendor/dev=late"
    state = (await node.get("pod-a"))["status"]["containerStatuses"][0]["state"]
    assert state["waiting"]["reason"] == "CreateContainerError"
    write_spec(node, [{"name": "late", "containerEdits": {"env": ["LATE=here"]}}])
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a") == "here\n"


async def test_device_nodes_and_mounts_are_described_to_the_container(
    node: OneNode, plugin: FakePlugin, tmp_path: Path
) -> None:
    plugin.devices["gpu"] = [{"pool_name": "p", "device_name": "d", "cdi_device_ids": ["vendor/dev=0"]}]
    edits = {
        "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}],
        "mounts": [{"hostPath": str(tmp_path), "containerPath": "/data", "options": ["ro"]}],
    }
    write_spec(node, [{"name": "0", "containerEdits": edits}])
    await node.pod("pod-a", 'cat "$CDI_FACTS"', claims=("gpu",))
    await node.claim("gpu", "pod-a")
    await node.phase("pod-a", "Succeeded")
    facts = json.loads(await node.log("pod-a"))
    assert facts == {"devices": ["vendor/dev=0"], "containerEdits": edits}


async def test_a_device_whose_device_node_does_not_exist_is_an_error(node: OneNode, plugin: FakePlugin) -> None:
    plugin.devices["gpu"] = [{"pool_name": "p", "device_name": "d", "cdi_device_ids": ["vendor/dev=0"]}]
    write_spec(node, [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/no-such-gpu"}]}}])
    await node.pod("pod-a", claims=("gpu",))
    await node.claim("gpu", "pod-a")
    event = await node.event("pod-a", "Failed")
    lacking = "device node /dev/no-such-gpu: No such file or directory"
    assert event["message"] == f"Error: failed to inject CDI devices, for which this host lacks: {lacking}"


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({}, "device '0': the containerEdits are empty: add at least one variable in env"),
        ({"deviceNodes": [{"path": "/dev/null", "permissions": "xyz"}]}, "permissions 'xyz' of device node /dev/null"),
        ({"deviceNodes": [{"path": "/dev/null", "mode": 438}]}, "unknown field mode: remove it, or correct its name"),
        (
            {"deviceNodes": [{"path": "/dev/null", "hostPath": "/dev/zero"}]},
            "cdiVersion 0.3.0 lacks what the file uses",
        ),
    ],
)
async def test_a_device_that_real_runtimes_refuse_is_refused(
    edits: Json, message: str, node: OneNode, plugin: FakePlugin
) -> None:
    plugin.devices["gpu"] = [{"pool_name": "p", "device_name": "d", "cdi_device_ids": ["vendor/dev=0"]}]
    write_spec(node, [{"name": "0", "containerEdits": edits}], version="0.3.0")
    await node.pod("pod-a", claims=("gpu",))
    await node.claim("gpu", "pod-a")
    event = await node.event("pod-a", "Failed")
    assert event["message"].startswith("Error: failed to inject CDI devices: unresolvable CDI devices vendor/dev=0; ")
    assert message in event["message"]


async def test_edits_that_a_plain_process_cannot_have_are_reported_and_described(
    node: OneNode, plugin: FakePlugin
) -> None:
    plugin.devices["gpu"] = [{"pool_name": "p", "device_name": "d", "cdi_device_ids": ["vendor/dev=0"]}]
    edits = {"hooks": [{"hookName": "prestart", "path": "/bin/true"}], "additionalGids": [44]}
    write_spec(node, [{"name": "0", "containerEdits": edits}], version="1.1.0")
    await node.pod("pod-a", 'cat "$CDI_FACTS"', claims=("gpu",))
    await node.claim("gpu", "pod-a")
    await node.phase("pod-a", "Succeeded")
    assert json.loads(await node.log("pod-a")) == {"devices": ["vendor/dev=0"], "containerEdits": edits}
    event = await node.event("pod-a", "NotCarriedOut")
    assert event["message"].endswith("as plain processes, without their CDI hooks, CDI additionalGids")


async def test_e2e042_pods_share_a_claim_and_the_last_one_gives_it_back(node: OneNode, plugin: FakePlugin) -> None:
    names = [f"pod-{index}" for index in range(5)]
    for name in names:
        await node.pod(name, claims=("gpu",))
    await node.claim("gpu", *names)
    for name in names:
        await node.phase(name, "Running")
    assert plugin.prepared == [["gpu"]]
    for name in names:
        assert plugin.unprepared == []
        await node.delete(name)
        await node.gone(name)
    assert plugin.unprepared == [["gpu"]]
    assert list(node.cdi_root.iterdir()) == []


async def test_nod030_a_claim_with_devices_of_two_drivers_is_prepared_by_both(
    node: OneNode, plugin: FakePlugin, make_plugin: MakePlugin
) -> None:
    async with make_plugin("nic.example.com", root=node.root, services=("v1beta1.DRAPlugin",)) as other:
        other.cdi_root = node.cdi_root
        await becomes(lambda: other.statuses)
        await node.pod("pod-a", claims=("gpu",))
        await node.claim("gpu", "pod-a", drivers=("gpu.example.com", "nic.example.com"))
        await node.phase("pod-a", "Running")
        await node.delete("pod-a")
        await node.gone("pod-a")
        assert (plugin.prepared, plugin.unprepared) == ([["gpu"]], [["gpu"]])
        assert (other.prepared, other.unprepared) == ([["gpu"]], [["gpu"]])
