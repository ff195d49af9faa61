"""``kubectl apply -k manifests`` on a development cluster: what is applied runs, as it is, within its permissions.

Deployment and DaemonSet get their pods from the cluster's controllers and run on its nodes, with the command lines and
environments that they name, their volumes, tokens and probes; tests/support/deployment_site.py stands for the image.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from command import ROOT
from deployment_site import (
    NODES,
    WORKLOADS,
    Site,
    a_pod_is_moved_for_a_large_one,
    an_urgent_pod_ends_a_patient_one,
    calls,
    deployment_site,
    gangs_start_together,
)
from dra_api import yaml_text
from dra_kube import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Api
from dra_kubeletplugin.settings import PLUGINS_DIR, REGISTRY_DIR
from pages import BY_NAME
from rounds import LONG
from waiting import becomes, until

KUBELET_DIR, CDI_DIR = "/var/lib/kubelet", "/var/run/cdi"
INSTALL, DRIVER, LABEL, REMOVE = range(4)  # the blocks of docs/operating.md
EXAMPLES = {pod["metadata"]["name"] for path in sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
            for pod in yaml_text.load_all(path.read_text()) if pod["kind"] == "Pod"}  # fmt: skip


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with deployment_site() as made:
        yield made


@LONG
async def test_what_is_applied_runs_and_goes_again(site: Site) -> None:
    kubectl = site.kubectl
    await site.deploy()
    for block in (INSTALL, DRIVER, LABEL):
        await as_the_page_says(site, block)
    await programs_were_called_as_written(site)

    await kubectl("apply", "--validate=strict", "-f", "manifests/examples")
    await kubectl("wait", "--for=condition=Ready", "pod", *sorted(EXAMPLES), "--timeout=120s")
    for pod in EXAMPLES:
        seen = await kubectl("logs", pod, "--all-containers")
        assert "claim_" in seen, f"pod {pod} saw no device: {seen}"
    assert "user_a=b" in await kubectl("logs", "external-claim", "-c", "with-device")

    await the_plugins_are_replaced_without_a_gap(site)
    await kubectl("delete", "-f", "manifests/examples", "--timeout=120s")
    async with Api(site.cluster.connection()) as api:
        await until("no claim left", lambda: _none(api, RESOURCE_CLAIMS))
    assert [list(node.cdi_dir.glob("*.json")) for node in site.cluster.nodes] == [[]] * NODES
    await as_the_page_says(site, REMOVE)
    async with Api(site.cluster.connection()) as api:
        await until("no pod left", lambda: _none(api, PODS))
    for namespace in ("dra-system", "dra-plugins"):
        assert "NotFound" in await kubectl("get", "namespace", namespace, code=1)
    lease = ("lease", "dra-operator-dra-scheduler", "--namespace", "kube-system")
    assert "NotFound" in await kubectl("get", *lease, code=1), "the next operator would stand by until its time is over"


@LONG
async def test_the_examples_run_that_need_gates(site: Site) -> None:
    kubectl, more = site.kubectl, "manifests/examples/more"
    gates = ("DRADeviceTaintRules", "DRAResourcePoolStatus", *WORKLOADS)
    await site.deploy([f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"], components=["preemption"])
    await site.runs()
    await gangs_start_together(site)
    await a_pair_shares_a_device(site)
    await an_urgent_pod_ends_a_patient_one(site)
    await a_pod_is_moved_for_a_large_one(site)
    for example in ("two-claims", "tolerated-taint"):
        await kubectl("apply", "--validate=strict", "-f", f"{more}/{example}.yaml")
    await kubectl("wait", "--for=condition=Ready", "pod", "two-claims", "tolerated-taint", "--timeout=120s")
    seen = [await kubectl("logs", "two-claims", "-c", container) for container in ("with-one", "with-the-other")]
    assert all(one.count("claim_") == 1 for one in seen)
    assert seen[0] != seen[1]

    await kubectl("apply", "--validate=strict", "-f", f"{more}/unhealthy.yaml")
    await kubectl("wait", "--for=delete", "pod", "two-claims", "--timeout=60s")
    assert await kubectl("get", "pod", "tolerated-taint", "-o", "jsonpath={.status.phase}") == "Running"

    await kubectl("apply", "--validate=strict", "-f", f"{more}/pool-status.yaml")
    request = ("resourcepoolstatusrequest", "pool-status")
    await kubectl("wait", "--for=condition=Complete", *request, "--timeout=60s")
    tainted = await kubectl("get", *request, "-o", "jsonpath={.status.pools[*].unavailableDevices}")
    assert sum(map(int, tainted.split())) == 15


async def a_pair_shares_a_device(site: Site) -> None:
    """The claim of a PodGroup, as far as the containers; with the last pod its device comes free."""
    kubectl, example = site.kubectl, "manifests/examples/more/pod-group.yaml"
    if not site.has_pod_groups:
        return
    await kubectl("apply", "--validate=strict", "-f", example)
    await kubectl("wait", "--for=condition=Ready", "pod", "pair-0", "pair-1", "--timeout=120s")
    first, second = [await kubectl("logs", pod) for pod in ("pair-0", "pair-1")]
    assert first.count("claim_") == 1
    assert first == second
    async with Api(site.cluster.connection()) as api:
        [claim] = [
            each for each in (await api.list(RESOURCE_CLAIMS))[0] if each["metadata"]["name"].startswith("pair-")
        ]
        assert [each["resource"] for each in claim["status"]["reservedFor"]] == ["podgroups"]
        await kubectl("delete", "-f", example, "--wait=false")
        await until("no claim left", lambda: _none(api, RESOURCE_CLAIMS))


@LONG
async def test_an_edited_configuration_takes_effect(site: Site, tmp_path: Path) -> None:
    await site.deploy()
    async with Api(site.cluster.connection()) as api:
        await until("8 devices on each node", lambda: _sizes(api, 8))
        shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
        config = tmp_path / "manifests/plugin/simulated.yaml"
        config.write_text(config.read_text().replace("count: 8", "count: 6"))
        await site.kubectl("apply", "-k", str(tmp_path / "manifests/examples/simulated-driver"))
        await until("6 devices on each node", lambda: _sizes(api, 6))


async def as_the_page_says(site: Site, block: int) -> None:
    """Type in the commands of a block of docs/operating.md."""
    for line in BY_NAME["docs/operating.md"].console()[block]:
        program, *words = shlex.split(line.command)
        assert program == "kubectl"
        await site.kubectl(*words)


async def the_plugins_are_replaced_without_a_gap(site: Site) -> None:
    """The new instance serves beside the old one, and takes over its slices and the claims that are in use."""
    where = ("--namespace", "dra-plugins")
    old = (await site.kubectl("get", "pods", *where, "-o", "name")).split()
    claims = await in_use(site)
    async with Api(site.cluster.connection()) as api:
        slices = {one["metadata"]["name"] for one in (await api.list(RESOURCE_SLICES))[0]}
        await site.kubectl("rollout", "restart", "daemonset/dra-plugin", *where)
        await becomes(lambda: any(len(list(node.registry_dir.glob("*.sock"))) == 2 for node in site.cluster.nodes))
        for block in (INSTALL, DRIVER):  # they upgrade as well
            await as_the_page_says(site, block)
        assert {one["metadata"]["name"] for one in (await api.list(RESOURCE_SLICES))[0]} == slices
    await site.kubectl("wait", "--for=delete", *old, *where, "--timeout=120s")
    assert await in_use(site) == claims
    await site.kubectl("delete", "pod", "inline-claim")
    await site.kubectl("apply", "-f", "manifests/examples/inline-claim.yaml")
    await site.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")


async def in_use(site: Site) -> dict[str, Any]:
    """The devices of each claim, and for whom it is reserved."""
    claims = (await site.kubectl.read("resourceclaims"))["items"]
    return {
        claim["metadata"]["uid"]: [claim["status"]["allocation"], claim["status"]["reservedFor"]] for claim in claims
    }


async def _none(api: Api, resource: Any) -> bool:
    return not (await api.list(resource))[0]


async def programs_were_called_as_written(site: Site) -> None:
    """Command lines and environment are those of the applied objects."""
    deployment = await site.kubectl.read("deployment", "dra-operator", "--namespace", "dra-system")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {tuple(call["command"]) for call in calls(site.image, "dra-operator")} == {tuple(container["command"])}
    daemons = await site.kubectl.read("daemonset", "dra-plugin", "--namespace", "dra-plugins")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    started = calls(site.image, "dra-kubelet-plugin")
    for call in started:
        uid = call["environment"]["POD_UID"]
        assert [word.replace(uid, "$(POD_UID)") for word in call["command"]] == container["command"]
    assert {call["environment"]["NODE_NAME"] for call in started} == {node.name for node in site.cluster.nodes}
    async with Api(site.cluster.connection()) as api:
        await until("slices of every node", lambda: _published(api))


async def _sizes(api: Api, count: int) -> bool:
    slices, _ = await api.list(RESOURCE_SLICES)
    return [len(one["spec"]["devices"]) for one in slices] == [count] * NODES


async def _published(api: Api) -> bool:
    slices, _ = await api.list(RESOURCE_SLICES)
    return {slice_["spec"].get("nodeName") for slice_ in slices} == {f"node-{n + 1}" for n in range(NODES)}


async def test_the_mounts_are_where_the_plugin_looks(site: Site) -> None:
    await site.kubectl("apply", "-k", "manifests/examples/simulated-driver")
    daemons = await site.kubectl.read("daemonset", "dra-plugin", "--namespace", "dra-plugins")
    spec = daemons["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in spec["containers"][0]["volumeMounts"]}
    driver = PLUGINS_DIR / "simulated.dra.example.com"
    for path in (str(REGISTRY_DIR), str(driver), CDI_DIR):
        assert mounts[path]["hostPath"]["path"] == path, "the kubelet must find it under the same path"
    assert re.fullmatch("dra-plugin-[a-z0-9]{10}", mounts["/etc/dra"]["configMap"]["name"])


async def test_a_field_that_does_not_exist_is_refused(site: Site) -> None:
    wrong = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndaata: {a: b}\n"
    assert "daata" in await site.kubectl("apply", "--validate=strict", "-f", "-", stdin=wrong, code=1)


async def test_applying_twice_changes_nothing(site: Site) -> None:
    await site.kubectl("apply", "-k", "manifests")
    again = await site.kubectl("apply", "-k", "manifests")
    changed = [line for line in again.splitlines() if not line.endswith(" unchanged")]
    # Clients replace its selector each time: the API declares that instead of a merge.
    assert changed == ["poddisruptionbudget.policy/dra-operator configured"]
