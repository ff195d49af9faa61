"""What the operator asks for only with gates, or in clusters with tainted devices, is also allowed by the manifests."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_api import yaml_text
from dra_devcluster.apiserver.rbac import Attributes
from manifest_accounts import account, rules_of

RBAC = rules_of(
    yaml_text.load_all((Path(__file__).resolve().parents[2] / "manifests" / "operator" / "rbac.yaml").read_text())
)
OPERATOR, DRA = account("dra-operator"), "resource.k8s.io"
NEEDED = {
    "templates": [("create", DRA, "resourceclaims"), ("update", "", "pods/status")],
    "eviction": [("get", "", "pods"), ("patch", "", "pods/status"), ("delete", "", "pods")],
    "DRADeviceTaintRules": [
        ("list", DRA, "devicetaintrules"),
        ("watch", DRA, "devicetaintrules"),
        ("patch", DRA, "devicetaintrules/status"),
    ],
    "GenericWorkload": [
        ("list", "scheduling.k8s.io", "podgroups"),
        ("watch", "scheduling.k8s.io", "podgroups"),
        ("get", "scheduling.k8s.io", "podgroups"),
        ("update", "scheduling.k8s.io", "podgroups/status"),
    ],
    "DRAResourcePoolStatus": [
        ("list", DRA, "resourcepoolstatusrequests"),
        ("watch", DRA, "resourcepoolstatusrequests"),
        ("get", DRA, "resourcepoolstatusrequests"),
        ("update", DRA, "resourcepoolstatusrequests/status"),
        ("delete", DRA, "resourcepoolstatusrequests"),
    ],
}


def denied(*asked: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    return [
        (verb, group, resource)
        for verb, group, resource in asked
        if not RBAC.decide(Attributes(OPERATOR, verb, group, "*", *resource.split("/"))).allowed
    ]


@pytest.mark.parametrize("use", NEEDED)
def test_it_is_allowed(use: str) -> None:
    assert denied(*NEEDED[use]) == []


def test_more_than_that_is_not() -> None:
    asked = [("create", "", "pods"), ("update", DRA, "devicetaintrules"), ("get", "", "secrets")]
    assert len(denied(*asked)) == len(asked)
