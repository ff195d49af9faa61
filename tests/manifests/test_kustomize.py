"""Every kustomization renders, is valid, and says what its comment promises."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ROOT, Kubectl, kubectl_for
from dra_api import VERSION, yaml_text
from dra_devcluster.apiserver import DevApiServer

MANIFESTS = ROOT / "manifests"
ROOTS = ("manifests", *(f"manifests/overlays/{path.name}" for path in sorted((MANIFESTS / "overlays").iterdir())))
TRIAL = "manifests/overlays/development"
"""With the simulated driver, which is in no root for production."""
IMAGE = "ghcr.io/kopf-dra/kopf-dra"
NAMESPACES = {"dra-system": "restricted", "dra-plugins": "privileged"}
Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with DevApiServer() as server:
        yield kubectl_for(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path)


async def rendered(kubectl: Kubectl, root: str) -> Objects:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml_text.load_all(await kubectl("kustomize", root))}


def containers(objects: Objects) -> list[dict[str, Any]]:
    workloads = (obj for (kind, _), obj in objects.items() if kind in ("Deployment", "DaemonSet"))
    return [container for obj in workloads for container in obj["spec"]["template"]["spec"]["containers"]]


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


@pytest.mark.parametrize("root", ROOTS)
async def test_a_server_accepts_every_object(kubectl: Kubectl, root: str) -> None:
    for namespace in NAMESPACES:
        await kubectl("create", "namespace", namespace)
    answer = await kubectl("apply", "--dry-run=server", "--validate=strict", "-k", root)
    assert answer.count("(server dry run)") == len(await rendered(kubectl, root)), answer


@pytest.mark.parametrize("folder", ["manifests/operator", "manifests/plugin"])
async def test_a_folder_that_is_applied_alone_names_the_image_and_when_to_pull_it(
    kubectl: Kubectl, folder: str
) -> None:
    """Without a tag the image is ``latest``, which is pulled always and exists nowhere."""
    for container in containers(await rendered(kubectl, folder)):
        assert (container["image"], container["imagePullPolicy"]) == (f"{IMAGE}:{VERSION}", "IfNotPresent")


@pytest.mark.parametrize("file", ["plugin/simulated.yaml", "components/hostdev/hostdev.yaml"])
async def test_a_changed_configuration_starts_the_plugin_anew(kubectl: Kubectl, file: str, tmp_path: Path) -> None:
    """The template of its pods names the content, and so changes with it."""
    copy = tmp_path / "manifests"
    shutil.copytree(MANIFESTS, copy)
    content = {"resources": ["manifests/plugin"]}
    if "components" in file:
        content["components"] = ["manifests/components/hostdev"]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    names = []
    for _ in range(2):
        objects = await rendered(kubectl, str(tmp_path))
        (shown,) = (name for kind, name in objects if kind == "ConfigMap")
        volumes = objects["DaemonSet", "dra-plugin"]["spec"]["template"]["spec"]["volumes"]
        assert {"name": "config", "configMap": {"name": shown}} in volumes
        names.append(shown)
        (copy / file).write_text((copy / file).read_text() + "# changed\n")
    assert names[0] != names[1]


async def test_the_overlays_differ_as_they_say(kubectl: Kubectl) -> None:
    base, development, kind, production = [await rendered(kubectl, root) for root in ROOTS]
    operator = ("Deployment", "dra-operator")
    assert {container["image"] for container in containers(base)} == {f"{IMAGE}:{VERSION}"}
    (shown,) = development[operator]["spec"]["template"]["spec"]["containers"]
    assert variables(shown).items() >= {"DRA_OPERATOR_VERBOSITY": "1", "DRA_OPERATOR_CHECK_INVARIANTS": "true"}.items()
    assert {container.get("imagePullPolicy") for container in containers(kind)} == {"Never"}
    (shown,) = production[operator]["spec"]["template"]["spec"]["containers"]
    assert variables(shown)["DRA_OPERATOR_LOG_FORMAT"] == "json"
    assert production[operator]["spec"]["replicas"] == 2
    assert production.keys() - base.keys() == {("NetworkPolicy", "dra-operator")}
    plugin = ("DaemonSet", "dra-plugin")
    assert [plugin in objects for objects in (base, development, kind, production)] == [False, True, True, False]


async def test_every_container_says_as_which_user_and_group_it_runs(kubectl: Kubectl) -> None:
    """A container without runAsGroup has the group 0 unless its image has a passwd entry for the user."""
    image = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for root in ROOTS:
        objects = await rendered(kubectl, root)
        ids = {
            container["name"]: tuple(container["securityContext"].get(f) for f in ("runAsUser", "runAsGroup"))
            for container in containers(objects)
        }
        assert {"operator": (65532, 65532), "plugin": (0, 0)}.items() >= ids.items(), root
        assert [(int(user), int(group)) for user, group in image] == [ids["operator"]]


async def test_the_operator_runs_beside_itself_and_anywhere(kubectl: Kubectl) -> None:
    objects = await rendered(kubectl, "manifests")
    deployment, budget = objects["Deployment", "dra-operator"], objects["PodDisruptionBudget", "dra-operator"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= budget["spec"]["selector"]["matchLabels"].items()
    assert budget["spec"]["maxUnavailable"] == 1, "one replica can be drained"
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz?exclude=leading", "or it would wait for ever"
    assert container["resources"]["limits"].keys() == {"memory"}


async def test_no_program_is_asked_before_it_can_have_started(kubectl: Kubectl) -> None:
    """Each start would show a Warning among the events of the pod."""
    for container in containers(await rendered(kubectl, TRIAL)):
        assert container["startupProbe"]["initialDelaySeconds"] >= 3, container["name"]


async def test_the_plugin_overlaps_with_its_successor_on_every_node(kubectl: Kubectl) -> None:
    daemons = (await rendered(kubectl, TRIAL))["DaemonSet", "dra-plugin"]["spec"]
    assert daemons["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert daemons["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]
    (container,) = daemons["template"]["spec"]["containers"]
    assert "--rolling-update-uid=$(POD_UID)" in container["command"]
    assert "POD_UID" in variables(container)
    paths = {volume["hostPath"]["path"] for volume in daemons["template"]["spec"]["volumes"] if "hostPath" in volume}
    driver = yaml_text.load((MANIFESTS / "plugin" / "deviceclass.yaml").read_text())
    assert not [path for path in paths if path.endswith("/plugins")], (
        "the folders of other drivers are not its business"
    )
    assert [path for path in paths if f'"{Path(path).name}"' in str(driver)], "its own is"


EXAMPLES = [
    pod
    for path in sorted((MANIFESTS / "examples").rglob("*.yaml"))
    for pod in yaml_text.load_all(path.read_text())
    if pod["kind"] == "Pod"
]


@pytest.mark.parametrize("pod", EXAMPLES, ids=[pod["metadata"]["name"] for pod in EXAMPLES])
def test_a_namespace_that_enforces_restricted_takes_the_examples(pod: dict[str, Any]) -> None:
    """The rules of the Pod Security Standard "restricted" that concern what the examples have."""
    security = pod["spec"]["securityContext"]
    assert security["runAsNonRoot"]
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["spec"]["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def devices_of(obj: dict[str, Any]) -> int:
    """How many devices a claim takes, a template for its pod, or a pod by extended resources."""
    if obj["kind"] == "Pod":
        limits = (container.get("resources", {}).get("limits", {}) for container in obj["spec"]["containers"])
        return sum(count for each in limits for name, count in each.items() if "/" in name)
    spec = obj["spec"]["spec"] if obj["kind"] == "ResourceClaimTemplate" else obj["spec"]
    requests = spec["devices"]["requests"]
    alternatives = (request.get("firstAvailable") or [request["exactly"]] for request in requests)
    return sum(max(each.get("count", 1) for each in alternative) for alternative in alternatives)


def test_the_examples_find_room_together_on_one_node() -> None:
    texts = [path.read_text() for path in (MANIFESTS / "examples").glob("*.yaml")]
    wanted = sum(devices_of(obj) for text in texts for obj in yaml_text.load_all(text))
    (pool,) = yaml_text.load((MANIFESTS / "plugin/simulated.yaml").read_text())["pools"]
    assert wanted == sum(group["count"] for group in pool["devices"])


async def test_only_the_plugin_is_where_privileges_are_allowed(kubectl: Kubectl) -> None:
    objects = await rendered(kubectl, TRIAL)
    labels = {name: obj["metadata"]["labels"] for (kind, name), obj in objects.items() if kind == "Namespace"}
    assert {name: each["pod-security.kubernetes.io/enforce"] for name, each in labels.items()} == NAMESPACES
    placed = {obj["metadata"].get("namespace", ""): set[str]() for obj in objects.values()}
    for (kind, _), obj in objects.items():
        placed[obj["metadata"].get("namespace", "")].add(kind)
    assert placed["dra-plugins"] == {"ServiceAccount", "ConfigMap", "DaemonSet", "Role", "RoleBinding"}
    assert "DaemonSet" not in placed["dra-system"]
