"""Volumes, claims to them and storage classes: what the server fills in, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
from bare_client import Client

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"

FILLED_IN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a class": (CLASSES, {"provisioner": "x"}, {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
    "a volume": (
        VOLUMES,
        {"spec": {"capacity": {"storage": "1Gi"}}, "status": {"phase": "Available"}},
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain",
            },
            "status": {"phase": "Pending"},
        },
    ),
    "a claim": (
        CLAIMS,
        {"spec": {"storageClassName": "slow"}, "status": {"phase": "Bound"}},
        {"spec": {"storageClassName": "slow", "volumeMode": "Filesystem"}, "status": {"phase": "Pending"}},
    ),
}


@pytest.mark.parametrize("case", FILLED_IN)
async def test_what_a_client_leaves_out_is_filled_in(client: Client, case: str) -> None:
    path, body, expected = FILLED_IN[case]
    made = await client.post(path, {"metadata": {"name": "x"}, **body})
    assert {part: made[part] for part in expected} == expected


async def test_how_a_class_binds_cannot_be_changed(client: Client) -> None:
    made = await client.post(CLASSES, {"metadata": {"name": "x"}, "provisioner": "x"})
    answer = await client.call("PUT", f"{CLASSES}/x", {**made, "volumeBindingMode": "WaitForFirstConsumer"})
    assert answer.code == 422
    assert "volumeBindingMode: Forbidden" in answer.message
    await client.put(f"{CLASSES}/x", {**made, "allowVolumeExpansion": True})
