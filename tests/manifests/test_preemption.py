"""The components that set something on the operator do what they say: preemption, and devices of one scheduler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ROOT
from dra_api import yaml_text
from dra_api.codec import convert
from dra_api.resource import DeviceTaintRule, DeviceTaintSelector
from dra_api.validation import validate_device_taint_rule
from dra_operator.allocator import territory_taint

KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: the component is NOT rendered")
def test_the_operator_preempts_and_its_policy_lets_it_end_any_pod(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "preemption")
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "DRA_OPERATOR_PREEMPTION", "value": "true"} in container["env"]
    variables = {it["name"]: it["expression"] for it in objects["ValidatingAdmissionPolicy"]["spec"]["variables"]}
    assert variables["endsAnyPod"] == "true"


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: the component is NOT rendered")
def test_the_operator_takes_only_its_own_devices(tmp_path: Path) -> None:
    (container,) = rendered(tmp_path, "territory")["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "DRA_OPERATOR_OWN_DEVICES_ONLY", "value": "true"} in container["env"]


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: the component is NOT rendered")
def test_the_operator_answers_admission_checks_and_may_patch_no_more_than_their_status(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "admission")
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "DRA_OPERATOR_CONTROLLERS", "value": "auto,admission"} in container["env"]
    rules = yaml_text.load_all((ROOT / "manifests/components/admission/rbac.yaml").read_text())
    (role,) = [it for it in rules if it["metadata"]["name"] == "dra-operator-admission" and it["kind"] == "ClusterRole"]
    written = [it for it in role["rules"] if not {"get", "list", "watch"}.issuperset(it["verbs"])]
    assert [(it["resources"], it["verbs"]) for it in written] == [
        (["workloads/status", "admissionchecks/status"], ["patch"])
    ]


def rendered(folder: Path, component: str) -> dict[str, Any]:
    """The objects of the operator with a component, by kind."""
    up = os.path.relpath(ROOT / "manifests", folder)
    content = {"resources": [f"{up}/operator"], "components": [f"{up}/components/{component}"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    assert KUBECTL is not None
    made = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=True)
    return {it["kind"]: it for it in yaml_text.load_all(made.stdout)}


def test_the_example_of_a_rule_gives_the_devices_of_the_shipped_driver_to_the_operator() -> None:
    rule = convert(DeviceTaintRule, yaml_text.load((ROOT / "manifests/examples/more/territory.yaml").read_text()))
    driver = yaml_text.load((ROOT / "manifests/plugin/simulated.yaml").read_text())["driverName"]
    assert not validate_device_taint_rule(rule)
    assert (rule.spec.taint, rule.spec.device_selector) == (
        territory_taint("dra-scheduler"),
        DeviceTaintSelector(driver=driver),
    )
