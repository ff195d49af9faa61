"""What ``kubectl dra lint`` says of a claim while pools are being published."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.kubectl.lint.answer import findings
from dra_operator.kubectl.lint.manifest import Manifest
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings
from objects import Make

GPU = 'device.driver == "gpu.example.com"'
HALF: dict[str, Any] = {"resourceSliceCount": 2}
"""Of two slices one is there."""
UPDATED = "resource pool {} is currently being updated"


def _slice(node: str, devices: int, driver: str = "gpu.example.com", **pool: Any) -> ResourceSlice:
    made = Make.slice(node, devices, driver)
    made["spec"]["pool"].update(pool)
    return convert(ResourceSlice, made)


EXACTLY_3 = {"allocationMode": "ExactCount", "count": 3}
WHOLE = _slice("node-0", 2)
SERVED = ("note", "2 devices match, at most 2 on one node; 2 free now")
SHORT = ("warning", "asks for 3, but 2 devices of the cluster match, 2 of them in pools that lack slices")
CASES: dict[str, tuple[dict[str, Any], list[ResourceSlice], list[tuple[str, str]]]] = {
    "all of a half published pool": (
        {"allocationMode": "All"},
        [_slice("node-0", 2, **HALF)],
        [
            ("note", "2 devices match, at most 2 on one node; 0 free now"),
            ("warning", UPDATED.format("gpu.example.com/node-0")),
        ],
    ),
    "all, beside a half published pool of another driver": (
        {"allocationMode": "All"},
        [WHOLE, _slice("node-0", 1, "nic.example.com", **HALF)],
        [SERVED],
    ),
    "all, and the pool of another node is half published": (
        {"allocationMode": "All"},
        [_slice("node-0", 1, "nic.example.com", **HALF), _slice("node-1", 2)],
        [SERVED],
    ),
    "more than a half published pool has": (EXACTLY_3, [_slice("node-0", 2, **HALF)], [SHORT]),
    "more than there are": (EXACTLY_3, [WHOLE], [("error", "asks for 3, but 2 devices of the cluster match")]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pool_that_is_being_published_is_no_error_of_the_claim(case: str) -> None:
    asked, slices, expected = CASES[case]
    raw = Make.claim("claim")
    raw["spec"]["devices"]["requests"] = [{"name": "req", "exactly": {"deviceClassName": "gpu", **asked}}]
    objects: list[Object] = [convert(Node, Make.node(name)) for name in ("node-0", "node-1")]
    seen = Observed([*objects, convert(DeviceClass, Make.device_class("gpu", GPU)), *slices], datetime.now(UTC))
    manifest = Manifest("claim.yaml", "ResourceClaim ns/claim", convert(ResourceClaim, raw))
    found = findings(seen, [manifest], Settings(), has_cluster=True)
    assert [str(one.severity) for one in found] == [severity for severity, _ in expected]
    assert all(text in one.message for one, (_, text) in zip(found, expected, strict=True)), found
