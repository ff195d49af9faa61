"""The claims of a pod (api.md section 10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.validation import FieldError, validate_pod_claim_status, validate_pod_claims
from objects import Obj

GPU = {"name": "gpu", "resourceClaimName": "shared"}
NIC = {"name": "nic", "resourceClaimTemplateName": "template"}
WANTED = {"example.com/gpu": "1"}


def pod(
    *claims: Any,
    uses: Iterable[Obj] = (),
    init_uses: Iterable[Obj] = (),
    annotations: dict[str, str] | None = None,
    **status: Any,
) -> Pod:
    return convert(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "ns", "annotations": annotations},
            "spec": {
                "resourceClaims": list(claims),
                "initContainers": [{"name": "i", "resources": {"claims": list(init_uses)}}],
                "containers": [{"name": "c", "resources": {"claims": list(uses), "requests": WANTED}}],
            },
            "status": status,
        },
    )


def found(errors: list[FieldError]) -> list[str]:
    return [f"{error.type.removeprefix('FieldValue')} {error.field}" for error in errors]


@pytest.mark.parametrize(
    ("it", "expected"),
    [
        pytest.param(pod(GPU, NIC, uses=[{"name": "gpu"}, {"name": "nic", "request": "a"}]), [], id="valid"),
        pytest.param(pod(), [], id="no claims"),
        pytest.param(pod({**GPU, "name": ""}), ["Required spec.resourceClaims[0].name"], id="no name"),
        pytest.param(pod({**GPU, "name": "A"}), ["Invalid spec.resourceClaims[0].name"], id="no label"),
        pytest.param(pod(GPU, {**NIC, "name": "gpu"}), ["Duplicate spec.resourceClaims[1].name"], id="twice"),
        pytest.param(pod({"name": "a"}), ["Invalid spec.resourceClaims[0]"], id="no source"),
        pytest.param(pod({**GPU, **NIC}), ["Invalid spec.resourceClaims[0]"], id="two sources"),
        pytest.param(
            pod({**GPU, "resourceClaimName": ""}), ["Invalid spec.resourceClaims[0].resourceClaimName"], id="claim name"
        ),
        pytest.param(
            pod({**NIC, "resourceClaimTemplateName": "A"}),
            ["Invalid spec.resourceClaims[0].resourceClaimTemplateName"],
            id="template name",
        ),
        pytest.param(
            pod(GPU, annotations={"kubernetes.io/config.mirror": ""}), ["Forbidden spec.resourceClaims"], id="static"
        ),
        pytest.param(pod(annotations={"kubernetes.io/config.mirror": ""}), [], id="static without claims"),
        pytest.param(
            pod(uses=[{"name": "x"}]), ["NotFound spec.containers[0].resources.claims[0]"], id="unknown claim"
        ),
        pytest.param(
            pod(GPU, init_uses=[{"name": ""}]),
            ["Required spec.initContainers[0].resources.claims[0]"],
            id="unnamed use",
        ),
        pytest.param(
            pod(GPU, uses=[{"name": "gpu", "request": "A"}]),
            ["Invalid spec.containers[0].resources.claims[0].request"],
            id="request",
        ),
        pytest.param(
            pod(GPU, uses=[{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}]), [], id="requests"
        ),
        pytest.param(
            pod(GPU, uses=[{"name": "gpu", "request": "a"}] * 2),
            ["Duplicate spec.containers[0].resources.claims[1]"],
            id="the same request twice",
        ),
        pytest.param(
            pod(GPU, uses=[{"name": "gpu", "request": "a"}, {"name": "gpu"}]),
            ["Duplicate spec.containers[0].resources.claims[0]"],
            id="a request beside the whole claim",
        ),
    ],
)
def test_claims(it: Pod, expected: list[str]) -> None:
    assert found(validate_pod_claims(it)) == expected


def test_an_unknown_claim_is_answered_with_the_known_ones() -> None:
    (error,) = validate_pod_claims(pod(GPU, NIC, uses=[{"name": "x"}]))
    assert error.body == 'Not found: "x": must be one of the names in pod.spec.resourceClaims: gpu, nic'


def test_claims_never_change() -> None:
    assert validate_pod_claims(pod(GPU), pod(GPU)) == []
    assert found(validate_pod_claims(pod(GPU), pod(NIC))) == ["Invalid spec.resourceClaims"]


MAPPING = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-1-request-0"}


def extended(*mappings: Any, name: str = "e") -> Pod:
    return pod(extendedResourceClaimStatus={"resourceClaimName": name, "requestMappings": list(mappings)})


EXTENDED = "status.extendedResourceClaimStatus"


@pytest.mark.parametrize(
    ("it", "expected"),
    [
        pytest.param(pod(NIC, resourceClaimStatuses=[{"name": "nic"}]), [], id="no claim is needed"),
        pytest.param(
            pod(NIC, resourceClaimStatuses=[{"name": "x"}]),
            ["Invalid status.resourceClaimStatuses[0].name"],
            id="unknown",
        ),
        pytest.param(
            pod(NIC, resourceClaimStatuses=[{"name": "nic"}] * 2),
            ["Duplicate status.resourceClaimStatuses[1].name"],
            id="twice",
        ),
        pytest.param(
            pod(NIC, resourceClaimStatuses=[{"name": "nic", "resourceClaimName": "A"}]),
            ["Invalid status.resourceClaimStatuses[0].resourceClaimName"],
            id="claim name",
        ),
        pytest.param(extended(MAPPING), [], id="extended resources"),
        pytest.param(extended(MAPPING, name=""), [f"Required {EXTENDED}.resourceClaimName"], id="no claim"),
        pytest.param(extended(), [f"Required {EXTENDED}.requestMappings"], id="no mapping"),
        pytest.param(
            extended({**MAPPING, "containerName": "x"}),
            [f"Invalid {EXTENDED}.requestMappings[0].containerName"],
            id="unknown container",
        ),
        pytest.param(
            extended({**MAPPING, "resourceName": "x"}),
            [f"Invalid {EXTENDED}.requestMappings[0].resourceName"],
            id="unknown resource",
        ),
        pytest.param(
            extended({**MAPPING, "requestName": "A"}),
            [f"Invalid {EXTENDED}.requestMappings[0].requestName"],
            id="request",
        ),
        pytest.param(extended(MAPPING, MAPPING), [f"Duplicate {EXTENDED}.requestMappings[1]"], id="mapping twice"),
    ],
)
def test_status(it: Pod, expected: list[str]) -> None:
    assert found(validate_pod_claim_status(it)) == expected
