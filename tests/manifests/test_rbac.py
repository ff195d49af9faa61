"""What the operator is allowed to do covers what it watches."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from dra_kube import Resource
from dra_operator.sources.kinds import WATCHED

MANIFEST = Path(__file__).resolve().parents[2] / "manifests" / "operator" / "rbac.yaml"
(ROLE,) = (obj for obj in yaml.safe_load_all(MANIFEST.read_text()) if obj["kind"] == "ClusterRole")


@pytest.mark.parametrize("resource", WATCHED, ids=str)
def test_every_kind_that_is_watched_may_be_listed_and_watched(resource: Resource) -> None:
    verbs = {
        verb
        for rule in ROLE["rules"]
        if resource.group in rule["apiGroups"] and resource.plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {"list", "watch"} <= verbs
