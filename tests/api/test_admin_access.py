"""Only labelled namespaces may have admin access (claim-controller.md 11.2)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Namespace
from dra_api.resource import ResourceClaim, ResourceClaimTemplate
from dra_api.selectors import refuse_admin_access, refuse_admin_access_in_status

TEXT = (
    "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
)
ADMIN = {"devices": {"requests": [{"name": "a", "exactly": {"adminAccess": True}}]}}
PLAIN = {
    "devices": {"requests": [{"name": "a", "exactly": {"adminAccess": False}}, {"name": "b", "firstAvailable": [{}]}]}
}
LABEL = "resource.kubernetes.io/admin-access"


def namespace(**labels: str) -> Namespace:
    return convert(Namespace, {"metadata": {"name": "ns", "labels": labels}})


@pytest.mark.parametrize(
    ("spec", "where", "refusal"),
    [
        pytest.param(ADMIN, namespace(**{LABEL: "true"}), None, id="labelled"),
        pytest.param(ADMIN, namespace(**{LABEL: "True"}), TEXT, id="the value is case-sensitive"),
        pytest.param(ADMIN, namespace(**{LABEL.upper(): "true"}), TEXT, id="the key is case-sensitive"),
        pytest.param(ADMIN, namespace(), TEXT, id="not labelled"),
        pytest.param(ADMIN, None, TEXT, id="namespace unknown"),
        pytest.param(PLAIN, namespace(), None, id="not asked for"),
        pytest.param({}, namespace(), None, id="nothing asked for"),
    ],
)
def test_creation(spec: dict[str, Any], where: Namespace | None, refusal: str | None) -> None:
    assert refuse_admin_access(convert(ResourceClaim, {"spec": spec}), where) == refusal
    assert refuse_admin_access(convert(ResourceClaimTemplate, {"spec": {"spec": spec}}), where) == refusal


def claim(*admin: bool) -> ResourceClaim:
    results = [{"request": "a", "adminAccess": access} for access in admin]
    return convert(ResourceClaim, {"status": {"allocation": {"devices": {"results": results}}} if admin else {}})


@pytest.mark.parametrize(
    ("new", "old", "refusal"),
    [
        pytest.param(claim(True), claim(), TEXT, id="granted"),
        pytest.param(claim(False), claim(), None, id="not granted"),
        pytest.param(claim(True), claim(True), None, id="granted before, the label may be gone since"),
        pytest.param(claim(), claim(True), None, id="taken away"),
    ],
)
def test_status(new: ResourceClaim, old: ResourceClaim, refusal: str | None) -> None:
    assert refuse_admin_access_in_status(new, old, namespace()) == refusal
    assert refuse_admin_access_in_status(new, old, namespace(**{LABEL: "true"})) is None
