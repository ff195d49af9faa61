"""The manifests on a stock control plane: pod security, RBAC and the plugin's policy are those of a real API server."""

from __future__ import annotations

import envtest
import pytest
import yaml
from command import ROOT
from deployment_site import (
    Site,
    a_pod_is_moved_for_a_large_one,
    an_urgent_pod_ends_a_patient_one,
    calls,
    deployment_site,
    gangs_start_together,
)
from dra_api import yaml_text
from dra_kube import RESOURCE_CLAIMS, RESOURCE_SLICES, Api
from scene import node_log
from waiting import until

pytestmark = pytest.mark.skipif(envtest.assets() is None, reason="no KUBEBUILDER_ASSETS: NOT tried on a real server")
EXAMPLES = {
    pod["metadata"]["name"]: [container["name"] for container in pod["spec"]["containers"]]
    for path in sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
    for pod in yaml_text.load_all(path.read_text())
    if pod["kind"] == "Pod"
}


async def test_what_is_applied_runs_the_examples_within_its_limits() -> None:
    """One test, because the servers take half a minute to start."""
    async with deployment_site(real=True) as site:
        await site.deploy()
        await site.runs()
        async with Api(site.cluster.connection()) as api:
            await the_examples_run(site, api)
            await the_namespaces_allow_what_they_say(site)
            await a_plugin_writes_the_slices_of_its_own_node_only(site, api)


async def test_gangs_preemption_and_moves_beside_everything_stock() -> None:
    async with deployment_site(real=True) as site:
        await site.deploy(components=["preemption"])
        await site.runs()
        await gangs_start_together(site)
        await an_urgent_pod_ends_a_patient_one(site)
        await a_pod_is_moved_for_a_large_one(site)


async def the_examples_run(site: Site, api: Api) -> None:
    kubectl = site.kubectl
    deployment = await kubectl.read("deployment", "dra-operator", "--namespace", "dra-system")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {tuple(call["command"]) for call in calls(site.image, "dra-operator")} == {tuple(container["command"])}
    await kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
    await kubectl("apply", "--validate=strict", "-f", "manifests/examples")
    await kubectl("wait", "--for=condition=Ready", "pod", *EXAMPLES, "--timeout=120s")
    for pod, containers in EXAMPLES.items():
        seen = "".join([await node_log(api, "default", pod, container) for container in containers])
        assert "claim_" in seen, f"pod {pod} saw no device: {seen}"
    await kubectl("delete", "-f", "manifests/examples", "--timeout=120s")

    async def no_claim_is_left() -> bool:
        return not (await api.list(RESOURCE_CLAIMS))[0]

    await until("no claim left", no_claim_is_left)


async def the_namespaces_allow_what_they_say(site: Site) -> None:
    """The plugin's pod does not get into the operator's namespace."""
    kubectl = site.kubectl
    daemons = await kubectl.read("daemonset", "dra-plugin", "--namespace", "dra-plugins")
    template = daemons["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
    for namespace, code in (("dra-plugins", 0), ("dra-system", 1)):
        spec = {**template["spec"], "serviceAccountName": "default"}
        made = yaml.safe_dump({**pod, "spec": spec})
        said = await kubectl("apply", "--namespace", namespace, "--dry-run=server", "-f", "-", stdin=made, code=code)
        assert ('violates PodSecurity "restricted:latest"' in said) == bool(code), said


async def a_plugin_writes_the_slices_of_its_own_node_only(site: Site, api: Api) -> None:
    """Its own token, bound to its pod by the API server; the slices that it published itself."""

    async def of_both_nodes() -> dict[str, str] | None:
        found, _ = await api.list(RESOURCE_SLICES)
        slices = {each["spec"]["nodeName"]: each["metadata"]["name"] for each in found}
        return slices if len(slices) == 2 else None

    on_node_1 = ("--namespace", "dra-plugins", "--field-selector", "spec.nodeName=node-1")
    (pod,) = (await site.kubectl.read("pods", *on_node_1))["items"]
    account = ("--kubeconfig", str(await site.account("dra-plugin", pod["metadata"]["name"])))
    trial = ("--dry-run=server", "--wait=false")
    for node, name in (await until("slices of both nodes", of_both_nodes)).items():
        own = node == "node-1"
        said = await site.kubectl(*account, "delete", "resourceslice", name, *trial, code=0 if own else 1)
        assert own or f"may not modify resourceslices on node '{node}'" in said, said
