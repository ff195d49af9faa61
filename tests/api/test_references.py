"""Which claim a pod entry means (claim-controller.md section 3)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.references import (
    ClaimName,
    ClaimNotCreatedYet,
    ClaimNotOwned,
    PodNotInGroup,
    UnsupportedClaimSource,
    base_request,
    check_owned_by,
    claim_name,
    claims_of_pod,
    configs_for_result,
    consumer_of,
    is_owned_by,
    is_reserved_for,
    owning_group,
    owning_pod,
    pod_is_done,
    without_group,
)
from dra_api.resource import DeviceAllocationConfiguration, ResourceClaim
from dra_api.scheduling import PodGroup

TEMPLATE_ENTRY = {"name": "gpu", "resourceClaimTemplateName": "gpu-template"}
DIRECT_ENTRY = {"name": "gpu", "resourceClaimName": "shared-gpu"}


def pod(*entries: dict[str, Any], group: str | None = None, meta: dict[str, Any] | None = None, **status: Any) -> Pod:
    spec: dict[str, Any] = {"resourceClaims": list(entries)}
    if group is not None:
        spec["schedulingGroup"] = {"podGroupName": group}
    metadata = {"name": "p", "namespace": "ns", "uid": "pod-uid", **(meta or {})}
    return convert(Pod, {"metadata": metadata, "spec": spec, "status": status})


def pod_group(*entries: dict[str, Any], **status: Any) -> PodGroup:
    metadata = {"name": "g", "namespace": "ns", "uid": "group-uid"}
    return convert(PodGroup, {"metadata": metadata, "spec": {"resourceClaims": list(entries)}, "status": status})


def claim(owner: dict[str, Any] | None = None, namespace: str = "ns", **status: Any) -> ResourceClaim:
    owners = [{"controller": True, **owner}] if owner else []
    metadata = {"name": "c", "namespace": namespace, "ownerReferences": owners}
    return convert(ResourceClaim, {"metadata": metadata, "status": status})


def recorded(name: str | None) -> dict[str, Any]:
    status = {"name": "gpu"} if name is None else {"name": "gpu", "resourceClaimName": name}
    return {"resourceClaimStatuses": [status]}


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        pytest.param(pod(DIRECT_ENTRY), ClaimName("shared-gpu", False), id="a named claim needs no owner check"),
        pytest.param(pod(TEMPLATE_ENTRY, **recorded("c")), ClaimName("c", True), id="a template claim is recorded"),
        pytest.param(pod(TEMPLATE_ENTRY, **recorded(None)), ClaimName(None, True), id="no claim is needed"),
        pytest.param(pod_group(TEMPLATE_ENTRY, **recorded("c")), ClaimName("c", True), id="a claim of a group"),
    ],
)
def test_an_entry_leads_to_a_claim(owner: Pod | PodGroup, expected: ClaimName) -> None:
    assert claim_name(owner, (owner.spec.resource_claims or ())[0]) == expected


@pytest.mark.parametrize(
    ("owner", "error", "text"),
    [
        pytest.param(
            pod(TEMPLATE_ENTRY),
            ClaimNotCreatedYet,
            'pod "ns/p": ResourceClaim not created yet',
            id="nothing recorded for a pod",
        ),
        pytest.param(
            pod({"name": "gpu"}, **recorded("c")),
            UnsupportedClaimSource,
            'pod "ns/p", spec.resourceClaim "gpu": none of the supported fields are set',
            id="unknown source in a pod",
        ),
        pytest.param(
            pod_group(TEMPLATE_ENTRY),
            ClaimNotCreatedYet,
            "PodGroup ns/g: ResourceClaim not created yet",
            id="nothing recorded for a group",
        ),
        pytest.param(
            pod_group({"name": "gpu"}),
            UnsupportedClaimSource,
            'PodGroup ns/g, spec.resourceClaim "gpu": none of the supported fields are set',
            id="unknown source in a group",
        ),
    ],
)
def test_an_entry_that_leads_nowhere_says_why(owner: Pod | PodGroup, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        claim_name(owner, (owner.spec.resource_claims or ())[0])
    assert str(caught.value) == text


def test_the_claims_of_a_pod_are_those_with_a_name() -> None:
    it = pod(
        {"name": "direct", "resourceClaimName": "d"},
        {"name": "gpu", "resourceClaimTemplateName": "t"},
        {"name": "later", "resourceClaimTemplateName": "t"},
        {"name": "unknown"},
        resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "c"}],
        extendedResourceClaimStatus={"resourceClaimName": "e", "requestMappings": []},
    )
    uses = [(use.entry.name if use.entry else None, use.name, use.must_check_owner) for use in claims_of_pod(it)]
    assert uses == [("direct", "d", False), ("gpu", "c", True), (None, "e", True)]


BY_POD = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid"}
BY_GROUP = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "name": "g", "uid": "group-uid"}


@pytest.mark.parametrize(
    ("consumer", "it", "workload_claims", "text"),
    [
        pytest.param(pod(), claim(BY_POD), False, None, id="the pod is the controller"),
        pytest.param(
            pod(),
            claim(BY_POD, namespace="other"),
            False,
            "ResourceClaim other/c is not in the namespace of Pod ns/p",
            id="another namespace",
        ),
        pytest.param(
            pod(),
            claim(),
            False,
            "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)",
            id="the claim has no owner",
        ),
        pytest.param(
            pod(),
            claim({**BY_POD, "controller": False}),
            False,
            "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)",
            id="the pod owns but does not control",
        ),
        pytest.param(
            pod(),
            claim({**BY_POD, "uid": "older"}),
            False,
            "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)",
            id="an older pod of the same name",
        ),
        pytest.param(
            pod(group="g"),
            claim(BY_GROUP),
            False,
            "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)",
            id="a group with the gate off",
        ),
        pytest.param(pod(group="g"), claim(BY_GROUP), True, None, id="the group of the pod"),
        pytest.param(
            pod(),
            claim(BY_GROUP),
            True,
            "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)",
            id="a pod in no group",
        ),
        pytest.param(
            pod(group="h"),
            claim(BY_GROUP),
            True,
            "ResourceClaim ns/c was not created for Pod ns/p or its PodGroup ns/h (neither Pod nor PodGroup is owner)",
            id="another group",
        ),
        pytest.param(
            pod(group="g"),
            claim({**BY_GROUP, "apiVersion": "example.com/v1"}),
            True,
            "ResourceClaim ns/c was not created for Pod ns/p or its PodGroup ns/g (neither Pod nor PodGroup is owner)",
            id="a PodGroup of another API",
        ),
    ],
)
def test_a_claim_belongs_to_the_pod_it_was_made_for(
    consumer: Pod, it: ResourceClaim, workload_claims: bool, text: str | None
) -> None:
    consumer = consumer if workload_claims else without_group(consumer)
    assert is_owned_by(consumer, it) is (text is None)
    if text is None:
        check_owned_by(consumer, it)
        return
    with pytest.raises(ClaimNotOwned) as caught:
        check_owned_by(consumer, it)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("version", "name"), [("scheduling.k8s.io/v1alpha2", "g"), ("scheduling.k8s.io/v1beta1", "g"), ("v1", None)]
)
@pytest.mark.rule("K37-WL-05")
def test_the_group_that_a_claim_was_made_for_in_whatever_version(version: str, name: str | None) -> None:
    found = owning_group(claim({**BY_GROUP, "apiVersion": version}))
    assert (found.name if found is not None else None) == name


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        pytest.param(BY_POD, "p", id="a pod"),
        pytest.param(BY_GROUP, None, id="a PodGroup"),
        pytest.param({**BY_POD, "controller": False}, None, id="a pod that is not the controller"),
        pytest.param({**BY_POD, "apiVersion": "example.com/v1"}, None, id="a Pod of another API"),
        pytest.param(None, None, id="none"),
    ],
)
def test_the_pod_that_a_claim_was_made_for(owner: dict[str, Any] | None, name: str | None) -> None:
    found = owning_pod(claim(owner))
    assert (found.name if found is not None else None) == name


FOR_POD = {"resource": "pods", "name": "p", "uid": "pod-uid"}
FOR_GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "group-uid"}


@pytest.mark.parametrize(
    ("consumer", "reserved_for", "workload_claims", "expected"),
    [
        pytest.param(pod(), [FOR_POD], False, True, id="the pod"),
        pytest.param(pod(), [{**FOR_POD, "uid": "older"}], False, False, id="a pod of the same name"),
        pytest.param(pod(group="g"), [FOR_GROUP], True, True, id="its group"),
        pytest.param(pod(group="g"), [FOR_GROUP], False, False, id="its group with the gate off"),
        pytest.param(pod(), [FOR_GROUP], True, False, id="a group it is not in"),
        pytest.param(pod(), [], True, False, id="no consumer"),
    ],
)
def test_reservations(consumer: Pod, reserved_for: list[Any], workload_claims: bool, expected: bool) -> None:
    consumer = consumer if workload_claims else without_group(consumer)
    assert is_reserved_for(consumer, claim(reservedFor=reserved_for)) is expected


@pytest.mark.parametrize(
    ("group", "resource"),
    [
        pytest.param(None, "pods", id="no group"),
        pytest.param(pod_group(TEMPLATE_ENTRY), "podgroups", id="an equal entry"),
        pytest.param(pod_group({**TEMPLATE_ENTRY, "name": "x"}), "pods", id="no entry of that name"),
        pytest.param(pod_group(DIRECT_ENTRY), "pods", id="another source under that name"),
    ],
)
def test_a_claim_is_reserved_for_the_group_only_if_the_group_has_the_same_entry(
    group: PodGroup | None, resource: str
) -> None:
    it = pod(TEMPLATE_ENTRY, group="g")
    consumer = consumer_of(it, group, (it.spec.resource_claims or ())[0])
    assert consumer.resource == resource
    assert (consumer.api_group, consumer.uid) == (
        ("scheduling.k8s.io", "group-uid") if resource == "podgroups" else ("", "pod-uid")
    )


@pytest.mark.parametrize(
    ("it", "group", "error"),
    [
        pytest.param(pod({"name": "gpu"}, group="g"), None, UnsupportedClaimSource, id="pod entry without source"),
        pytest.param(
            pod(TEMPLATE_ENTRY, group="g"), pod_group({"name": "x"}), UnsupportedClaimSource, id="group entry likewise"
        ),
        pytest.param(pod(TEMPLATE_ENTRY, group="h"), pod_group(), PodNotInGroup, id="member of another group"),
        pytest.param(pod(TEMPLATE_ENTRY), pod_group(), PodNotInGroup, id="member of no group"),
    ],
)
def test_a_consumer_cannot_be_named(it: Pod, group: PodGroup | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        consumer_of(it, group, (it.spec.resource_claims or ())[0])


@pytest.mark.parametrize(
    ("it", "done"),
    [
        pytest.param(pod(phase="Succeeded"), True, id="succeeded"),
        pytest.param(pod(phase="Failed"), True, id="failed"),
        pytest.param(pod(phase="Running"), False, id="running"),
        pytest.param(pod(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}), True, id="deleted before scheduling"),
        pytest.param(
            convert(Pod, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n"}}),
            False,
            id="in deletion on its node",
        ),
    ],
)
def test_when_a_pod_needs_its_claims_no_longer(it: Pod, done: bool) -> None:
    assert pod_is_done(it) is done


def test_configurations_apply_to_all_or_to_the_named_requests_in_order() -> None:
    configs = [
        convert(DeviceAllocationConfiguration, {"source": source, "requests": requests, "opaque": opaque})
        for source, requests, opaque in (
            ("all", [], {"driver": "d", "parameters": {}}),
            ("base", ["gpu"], {"driver": "d", "parameters": {}}),
            ("full", ["gpu/large"], {"driver": "d", "parameters": {}}),
            ("sibling", ["gpu/small"], {"driver": "d", "parameters": {}}),
            ("not opaque", [], None),
        )
    ]
    assert [config.source for config in configs_for_result(configs, "gpu/large")] == ["all", "base", "full"]
    assert [config.source for config in configs_for_result(configs, "gpu")] == ["all", "base"]
    assert configs_for_result(None, "gpu") == []
    assert (base_request("gpu/large"), base_request("gpu")) == ("gpu", "gpu")


def test_the_claims_of_a_pod_are_found_in_time_that_grows_as_their_number() -> None:
    """Each entry searched all that the status records: 4.5 s for as many as a megabyte has room for."""
    entries = [{"name": f"e{number}", "resourceClaimTemplateName": "t"} for number in range(9_000)]
    statuses = [{"name": entry["name"], "resourceClaimName": f"p-{entry['name']}"} for entry in entries]
    large = pod(*entries, resourceClaimStatuses=statuses)
    begun = time.process_time()
    assert len(list(claims_of_pod(large))) == 9_000
    assert time.process_time() - begun < 1.0
