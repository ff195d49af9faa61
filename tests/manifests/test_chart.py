"""The Helm chart renders the objects of the kustomization, changed as its values say.

Helm is taken from KOPF_DRA_HELM or PATH; ``.ci/helm`` fetches one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from command import ROOT
from dra_api import VERSION, yaml_text
from dra_kubeletplugin.drivers.simulated import SimulatedConfig
from dra_operator.app.leader import lease_name
from dra_operator.app.settings import OperatorSettings
from dra_operator.app.settings_page import schema
from dra_operator.controllers.scheduling.mix import read_mix

CHART = ROOT / "manifests"
HELM = os.environ.get("KOPF_DRA_HELM") or shutil.which("helm")
KUBECTL = shutil.which("kubectl")
needs_helm = pytest.mark.skipif(not HELM, reason="no helm: KOPF_DRA_HELM=$(.ci/helm) fetches one. NOT tested")
Objects = dict[tuple[str, str, str], dict[str, Any]]


def helm(*words: str, values: dict[str, Any] | None = None, code: int = 0) -> str:
    command = [str(HELM), *words, "--values", "-"]
    given = json.dumps(values or {})
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert code or not done.stderr, "a warning at each command"
    return done.stdout + done.stderr


def by_name(text: str) -> Objects:
    objects = (obj for obj in yaml_text.load_all(text) if obj)
    return {(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj for obj in objects}


def without_sums(text: str) -> Objects:
    """The objects without what tells one content of the plugin's configuration from another."""
    objects = by_name(re.sub(r"name: dra-plugin-[a-z0-9]{10}$", "name: dra-plugin", text, flags=re.MULTILINE))
    for (kind, _, _), obj in objects.items():
        if kind == "DaemonSet":
            obj["spec"]["template"]["metadata"].pop("annotations", None)
    return objects


def rendered(namespace: str = "dra-system", **values: Any) -> str:
    return helm("template", "release", "manifests", "--namespace", namespace, values=values)


def chart(namespace: str = "dra-system", **values: Any) -> Objects:
    return by_name(rendered(namespace, **values))


def kustomized(folder: str) -> Objects:
    if KUBECTL is None:
        pytest.skip("kubectl is not installed: the chart is NOT compared")
    command = [KUBECTL, "kustomize", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return without_sums(done.stdout)


@needs_helm
def test_it_renders_what_kustomize_renders() -> None:
    wanted = kustomized("manifests")
    del wanted["Namespace", "", "dra-system"]  # helm install --create-namespace
    assert without_sums(rendered()) == wanted
    wanted |= kustomized("manifests/examples/simulated-driver")
    assert without_sums(rendered(plugin={"enabled": True})) == wanted


@needs_helm
def test_the_simulated_driver_is_installed_only_if_it_is_asked_for() -> None:
    assert not [key for key in chart() if "plugin" in "".join(key)]


@needs_helm
def test_its_components_are_those_of_kustomize(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    up = os.path.relpath(ROOT / "manifests", root)
    components = [f"{up}/components/{name}" for name in ("network", "plugin-network", "monitoring", "device-status")]
    content = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "components": components}
    (root / "kustomization.yaml").write_text(yaml.safe_dump({**content, "resources": [f"{up}/base", f"{up}/plugin"]}))
    wanted = kustomized(str(root))
    del wanted["Namespace", "", "dra-system"]
    switches: dict[str, Any] = {
        "networkPolicy": {"enabled": True},
        "monitoring": {"enabled": True},
        "plugin": {"enabled": True, "reportsDevices": True},
    }
    assert without_sums(rendered(**switches)) == wanted


@needs_helm
@pytest.mark.parametrize(
    ("release", "plugin", "made"),
    [
        ("elsewhere", "drivers", {"drivers"}),
        ("dra-plugins", "dra-system", {"dra-system"}),
        ("both", "both", set()),
    ],
)
def test_other_namespaces_are_used_everywhere(release: str, plugin: str, made: set[str]) -> None:
    given = {
        "plugin": {"enabled": True, "namespace": plugin, "reportsDevices": True},
        "networkPolicy": {"enabled": True},
        "monitoring": {"enabled": True},
    }
    objects = chart(release, **given)
    assert {name for kind, _, name in objects if kind == "Namespace"} == made, "helm makes the one of the release"
    accounts = {name: namespace for kind, namespace, name in objects if kind == "ServiceAccount"}
    assert accounts == {"dra-operator": release, "dra-plugin": plugin}
    for (kind, _, name), obj in objects.items():
        for subject in obj.get("subjects", []):
            assert subject["namespace"] == accounts[subject["name"]], (kind, name)
    scraped = objects["PodMonitor", release, "dra"]["spec"]["namespaceSelector"]["matchNames"]
    assert scraped == [release, plugin]
    for name in ("dra-plugin-resourceslices", "dra-plugin-device-status", "dra-plugin-events"):
        policy = objects["ValidatingAdmissionPolicy", "", name]["spec"]
        assert f'"system:serviceaccount:{plugin}:dra-plugin"' in policy["matchConditions"][0]["expression"]
    assert {namespace for _, namespace, _ in objects} == {"", release, plugin, "kube-system"}


@needs_helm
def test_without_the_plugin_there_is_nothing_of_it() -> None:
    objects = chart(plugin={"enabled": False}, networkPolicy={"enabled": True})
    assert [key for key in objects if "plugin" in "".join(key)] == []


@needs_helm
def test_values_change_what_they_name() -> None:
    image = {"repository": "registry/dra", "tag": "1", "pullPolicy": "Never", "pullSecrets": ["key"]}
    operator = {
        "replicas": 2,
        "settings": {"log-format": "json", "placement-workers": 3},
        "resources": {"requests": {"cpu": "1"}},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"note": "x"},
    }
    objects = chart(
        image=image, operator=operator, plugin={"enabled": True, "kubeletDir": "/data/kubelet", "config": {"pools": []}}
    )
    deployment = objects["Deployment", "dra-system", "dra-operator"]["spec"]
    pod, (container,) = deployment["template"]["spec"], deployment["template"]["spec"]["containers"]
    assert deployment["replicas"] == 2
    assert (container["image"], container["imagePullPolicy"]) == ("registry/dra:1", "Never")
    assert pod["imagePullSecrets"] == [{"name": "key"}]
    assert container["resources"] == operator["resources"]
    assert pod["nodeSelector"] == operator["nodeSelector"]
    assert pod["affinity"] == operator["affinity"]
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["node-role.kubernetes.io/control-plane", "k"]
    assert deployment["template"]["metadata"]["annotations"]["note"] == "x"
    settings = objects["ConfigMap", "dra-system", "dra-operator"]["data"]["settings.yaml"]
    assert yaml_text.load(settings) == operator["settings"]
    (mount,) = container["volumeMounts"]
    assert {"name": "DRA_OPERATOR_CONFIG", "value": f"{mount['mountPath']}/settings.yaml"} in container["env"]
    daemons = objects["DaemonSet", "dra-plugins", "dra-plugin"]["spec"]["template"]["spec"]
    paths = {volume["hostPath"]["path"] for volume in daemons["volumes"] if "hostPath" in volume}
    assert {"/data/kubelet/plugins_registry", "/var/run/cdi"} < paths
    assert "--plugin-registration-path=/data/kubelet/plugins_registry" in daemons["containers"][0]["command"]
    assert yaml_text.load(objects["ConfigMap", "dra-plugins", "dra-plugin"]["data"]["simulated.yaml"]) == {
        "pools": [],
        "driverName": "simulated.dra.example.com",
    }
    only = chart(operator={"enabled": False})
    assert not [key for key in only if key[2] == "dra-operator"]


@needs_helm
def test_the_name_of_the_driver_is_the_same_everywhere() -> None:
    objects = chart(plugin={"enabled": True, "config": {"driverName": "mine.example.com"}, "reportsDevices": True})
    of_the_plugin = {key: str(obj) for key, obj in objects.items() if "plugin" in key[2] or key[0] == "DeviceClass"}
    assert not [key for key, text in of_the_plugin.items() if "simulated.dra.example.com" in text]
    named = {kind for (kind, _, _), text in of_the_plugin.items() if "mine.example.com" in text}
    assert named == {"ConfigMap", "ClusterRole", "DaemonSet", "DeviceClass", "ValidatingAdmissionPolicy"}


@needs_helm
@pytest.mark.parametrize(("settings", "name"), [({}, "dra-scheduler"), ({"scheduler-name": "mine"}, "mine")])
def test_role_and_policy_name_the_lease_of_the_scheduler_name(settings: dict[str, Any], name: str) -> None:
    objects = chart(operator={"settings": settings})
    policy = objects["ValidatingAdmissionPolicy", "", "dra-operator"]["spec"]["validations"]
    assert [rule for rule in policy if f'metadata.name == "{lease_name(name)}"' in rule["expression"]]
    role = objects["Role", "kube-system", "dra-operator-leader-election"]
    leases = {verb: rule.get("resourceNames") for rule in role["rules"] for verb in rule["verbs"]}
    assert leases == {"update": [lease_name(name)], "get": ["kube-controller-manager"], "create": None}


@needs_helm
@pytest.mark.parametrize("controllers", ["auto", "placement", "placement, allocation"])
@pytest.mark.parametrize("gates", ["", "DRAAdminAccess=true", "DRAAdminAccess=true,DRADeviceTaints=false"])
def test_what_the_operator_accepts_is_accepted(controllers: str, gates: str) -> None:
    OperatorSettings(controllers=controllers, feature_gates=gates)
    chart(operator={"settings": {"controllers": controllers, "feature-gates": gates}})


@needs_helm
def test_changed_settings_start_the_operator_anew() -> None:
    sums = set()
    for workers in (3, 4, 4):
        objects = chart(operator={"settings": {"placement-workers": workers}})
        template = objects["Deployment", "dra-system", "dra-operator"]["spec"]["template"]
        sums.add(template["metadata"]["annotations"]["checksum/settings"])
    assert len(sums) == 2


@needs_helm
def test_a_mix_reaches_the_operator_as_a_file_that_it_can_read() -> None:
    mix = [{"weight": 6, "exactly": {"deviceClassName": "gpu"}}, {"weight": 1, "exactly": {"deviceClassName": "mig"}}]
    objects = chart(operator={"placementMix": mix, "settings": {"placement-strategy": "frag"}})
    data = objects["ConfigMap", "dra-system", "dra-operator"]["data"]
    settings = yaml_text.load(data["settings.yaml"])
    (container,) = objects["Deployment", "dra-system", "dra-operator"]["spec"]["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    folder, _, name = settings["placement-mix"].rpartition("/")
    assert (folder, settings["placement-strategy"]) == (mount["mountPath"], "frag")
    read = [(it.weight, it.claim.spec.devices.requests or ()) for it in read_mix(data[name])]
    assert [(weight, it.exactly and it.exactly.device_class_name) for weight, (it,) in read] == [(6, "gpu"), (1, "mig")]


@needs_helm
def test_a_changed_mix_starts_the_operator_anew() -> None:
    sums = set()
    for weight in (1, 2, 2):
        objects = chart(operator={"placementMix": [{"weight": weight, "exactly": {"deviceClassName": "gpu"}}]})
        template = objects["Deployment", "dra-system", "dra-operator"]["spec"]["template"]
        sums.add(template["metadata"]["annotations"]["checksum/settings"])
    assert len(sums) == 2


@needs_helm
def test_a_changed_configuration_starts_the_plugin_anew() -> None:
    sums = set()
    configs: list[dict[str, Any]] = [{}, {"numDevices": 4}, {"numDevices": 6}, {"numDevices": 6}]
    for config in configs:
        plugin = {"enabled": True, "config": config, "podAnnotations": {"note": "x"}}
        template = chart(plugin=plugin)["DaemonSet", "dra-plugins", "dra-plugin"]["spec"]["template"]
        assert template["metadata"]["annotations"]["note"] == "x"
        sums.add(template["metadata"]["annotations"]["checksum/config"])
    assert len(sums) == 3


@needs_helm
def test_its_notes_say_where_all_is_and_what_a_pod_needs() -> None:
    values = {"operator": {"settings": {"scheduler-name": "mine"}}, "plugin": {"enabled": True, "namespace": "drivers"}}
    words = ("install", "release", "manifests", "--dry-run=client", "--namespace", "here")
    _, notes = helm(*words, values=values).split("NOTES:")
    assert "schedulerName: mine" in notes
    assert "rollout status deployment/dra-operator --namespace here" in notes
    assert "rollout status daemonset/dra-plugin --namespace drivers" in notes
    _, notes = helm(*words, values={"plugin": {"enabled": False}}).split("NOTES:")
    assert "schedulerName: dra-scheduler" in notes
    assert "plugin" not in notes


@needs_helm
def test_a_package_of_it_has_nothing_that_is_for_kustomize(tmp_path: Path) -> None:
    subprocess.run([str(HELM), "package", str(CHART), "--destination", str(tmp_path)], check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as package:
        folders = {name.split("/")[1] for name in package.getnames()}
    assert not folders & {"base", "examples", "kustomization.yaml", "overlays"}


@needs_helm
@pytest.mark.parametrize(("former", "value"), [("concerns", "placement"), ("contested-grace", 2)])
def test_a_former_name_of_a_setting_reaches_the_operator_which_warns(former: str, value: object) -> None:
    objects = chart(operator={"settings": {former: value}})
    settings = objects["ConfigMap", "dra-system", "dra-operator"]["data"]["settings.yaml"]
    assert yaml_text.load(settings) == {former: value}


@needs_helm
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operator": {"settings": {"controllers": "place"}}}, "controllers"),
        ({"operator": {"settings": {"concerns": "place"}}}, "concerns"),
        ({"operator": {"settings": {"controllers": "placement,auto"}}}, "controllers"),
        ({"operator": {"settings": {"feature-gates": "Nope=true"}}}, "feature-gates"),
        ({"operator": {"settings": {"feature-gates": "DRAAdminAccess=yes"}}}, "feature-gates"),
        ({"plugin": {"config": {"devices": 3}}}, "devices"),
        ({"operator": {"settings": {"log-format": "xml"}}}, "log-format"),
        ({"operator": {"settings": {"placement-workers": 0}}}, "placement-workers"),
        ({"operator": {"settings": {"metrics-port": 1}}}, "metrics-port"),
        ({"operator": {"settings": {"leader-elect-namespace": "x"}}}, "leader-elect-namespace"),
        ({"operator": {"setings": {}}}, "setings"),
        ({"operator": {"placementMix": [{"weight": 0, "exactly": {"deviceClassName": "gpu"}}]}}, "weight"),
        ({"operator": {"placementMix": [{"exactly": {"deviceClassName": "gpu"}}]}}, "weight"),
        ({"plugin": {"kubeletDir": "here"}}, "kubeletDir"),
        ({"plugin": {"namespace": "Not a name"}}, "namespace"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], named: str) -> None:
    assert named in helm("template", "release", "manifests", values=values, code=1)


def test_the_plugins_configuration_has_the_fields_of_the_driver() -> None:
    known = {field.encode_name for field in msgspec.structs.fields(SimulatedConfig)}
    fields = schema()["properties"]["plugin"]["properties"]["config"]["properties"].keys()
    assert fields <= known
    assert known - fields == {
        "nodeName", "kubeconfig", "pluginRegistrationPath", "datadir", "cdiDir", "httpEndpoint", "metricsPath"
    }  # fmt: skip


def test_the_schema_follows_the_settings() -> None:
    assert json.loads((CHART / "values.schema.json").read_text()) == schema(), "run make settings"


def test_its_versions_are_those_of_the_project() -> None:
    about = yaml_text.load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)
