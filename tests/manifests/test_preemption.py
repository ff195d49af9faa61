"""The component that turns preemption on sets what it says: the setting, and the right to end pods without devices."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from kubectl import ROOT

KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: the component is NOT rendered")
def test_the_operator_preempts_and_its_policy_lets_it_end_any_pod(tmp_path: Path) -> None:
    up = os.path.relpath(ROOT / "manifests", tmp_path)
    content = {"resources": [f"{up}/operator"], "components": [f"{up}/components/preemption"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    assert KUBECTL is not None
    made = subprocess.run([KUBECTL, "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    objects = {it["kind"]: it for it in yaml.safe_load_all(made.stdout)}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "DRA_OPERATOR_PREEMPTION", "value": "true"} in container["env"]
    variables = {it["name"]: it["expression"] for it in objects["ValidatingAdmissionPolicy"]["spec"]["variables"]}
    assert variables["endsAnyPod"] == "true"
