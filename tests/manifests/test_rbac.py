"""What the operator is allowed to do covers what it watches."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_api import yaml_text
from dra_kube import Resource
from dra_operator.sources.kinds import WATCHED

MANIFEST = Path(__file__).resolve().parents[2] / "manifests" / "operator" / "rbac.yaml"
OF_ADMISSION = MANIFEST.parents[1] / "components" / "admission" / "rbac.yaml"
RULES = [
    rule
    for file in (MANIFEST, OF_ADMISSION)
    for obj in yaml_text.load_all(file.read_text())
    if obj["kind"] == "ClusterRole" and obj["metadata"]["name"].startswith("dra-operator")
    for rule in obj["rules"]
]


@pytest.mark.parametrize("resource", WATCHED, ids=str)
def test_every_kind_that_is_watched_may_be_listed_and_watched(resource: Resource) -> None:
    verbs = {
        verb
        for rule in RULES
        if resource.group in rule["apiGroups"] and resource.plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {"list", "watch"} <= verbs
