"""What the API server does with the objects of resource.k8s.io.

E2E-001 to E2E-004, E2E-070 to E2E-072, E2E-077; INT-003 to INT-005, INT-031, INT-036.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, NamedTuple

import envtest
import pytest
from dra_api.codec import to_dict
from dra_api.resource import Device, DeviceAttribute
from dra_kube import (
    DEVICE_CLASSES,
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Object,
    Resource,
)
from dra_kubeletplugin import Owner, Pool, Slice, SlicePublisher
from scene import Scene, control_plane
from waiting import until

ADMIN = "resource.kubernetes.io/admin-access"
FINALIZER = "resource.kubernetes.io/delete-protection"
COUNT = "count/resourceclaims.resource.k8s.io"
DEVICES, SLICES = 128, 100 if envtest.assets() else 1
"""Devices of a slice, and the slices of the largest size; the development cluster needs 2 s for each."""
DOMAIN = f"{'d' * 51}.example.com"
LAST = f"{DOMAIN}/a{31:0>31}"
QUOTAS = Resource("", ("v1",), "resourcequotas", "ResourceQuota", namespaced=True)


class Kind(NamedTuple):
    """A kind of the group; ``narrow`` is a field that can be selected by beside name and namespace."""

    resource: Resource
    spec: Object
    narrow: str = ""


CLAIM: Object = {"devices": {"requests": [{"name": "req", "exactly": {"deviceClassName": "none"}}]}}
SLICE: Object = {
    "nodeName": "none",
    "driver": "objects.example.com",
    "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
    "devices": [{"name": "d"}],
}
KINDS = {
    "e2e001 DeviceClass": Kind(DEVICE_CLASSES, {"selectors": [{"cel": {"expression": "true"}}]}),
    "e2e002 ResourceClaim": Kind(RESOURCE_CLAIMS, CLAIM),
    "e2e003 ResourceClaimTemplate": Kind(RESOURCE_CLAIM_TEMPLATES, {"spec": CLAIM}),
    "e2e004 ResourceSlice": Kind(RESOURCE_SLICES, SLICE, "spec.driver=objects.example.com"),
}


async def event(events: AsyncIterator[Any]) -> tuple[str, Object]:
    """The next one that is about an object."""
    async for kind, obj in events:
        if kind != "BOOKMARK":
            return kind, obj
    raise AssertionError("the watch has ended")


@control_plane
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
async def test_an_object_is_made_found_watched_changed_and_deleted(scene: Scene, kind: Kind) -> None:
    api, resource = scene.api, kind.resource
    place = scene.namespace if resource.namespaced else None
    marked = f"of={scene.namespace}"
    _, revision = await api.list(resource, place, labelSelector=marked)
    events = api.watch(resource, place, resource_version=revision, labelSelector=marked)
    async with aclosing(events):  # type: ignore[type-var]  # declared as an iterator, is a generator
        name = f"{scene.namespace}-a"
        meta = {"name": name, "labels": {"of": scene.namespace}, **({"namespace": place} if place else {})}
        made = await api.create(resource, {"metadata": meta, "spec": kind.spec})
        assert (await event(events))[0] == "ADDED"
        assert (await api.get(resource, name, place))["metadata"]["uid"] == made["metadata"]["uid"]
        for narrow in (f"metadata.name={name}", kind.narrow):
            found, _ = await api.list(resource, place, fieldSelector=narrow, labelSelector=marked)
            assert [obj["metadata"]["name"] for obj in found] == [name]
        made["metadata"]["labels"]["is"] = "updated"
        await api.update(resource, made)
        await api.patch(resource, name, {"metadata": {"labels": {"is": "patched"}}}, place)
        seen = [await event(events) for _ in range(2)]
        assert [(what, obj["metadata"]["labels"]["is"]) for what, obj in seen] == [
            ("MODIFIED", "updated"),
            ("MODIFIED", "patched"),
        ]
        await api.delete(resource, name, place)
        assert (await event(events))[0] == "DELETED"
        await api.create(resource, {"metadata": meta | {"name": f"{name}-2"}, "spec": kind.spec})
        await api.delete_collection(resource, place, labelSelector=marked)
        with pytest.raises(NotFound):
            await api.get(resource, f"{name}-2", place)


@control_plane
async def test_e2e_002_the_status_of_a_claim_is_a_part_of_its_own(scene: Scene) -> None:
    await scene.create_claim()
    protected = {"metadata": {"finalizers": [FINALIZER]}}
    claim = await scene.api.patch(RESOURCE_CLAIMS, "external-claim", protected, scene.namespace)
    result = {"request": "req", "driver": scene.driver_name, "pool": "p", "device": "d"}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    claim["metadata"]["labels"] = {"ignored": "by a write of the status"}
    updated = await scene.api.update(RESOURCE_CLAIMS, claim, "status")
    assert updated["status"]["allocation"]["devices"]["results"] == [result]
    assert updated["metadata"].get("labels", {}) == {}
    change = {"status": {"allocation": None}}
    patched = await scene.api.patch(RESOURCE_CLAIMS, "external-claim", change, scene.namespace, subresource="status")
    assert "allocation" not in patched.get("status", {})


@control_plane
async def test_int_003_004_what_is_written_in_one_version_is_read_in_all(scene: Scene) -> None:
    """A claim in the oldest one, and a pod that uses it."""
    exactly = {"deviceClassName": scene.class_name, "allocationMode": "ExactCount", "count": 1}
    spec = {"devices": {"requests": [{"name": "req", **exactly}]}}
    body = {"metadata": {"name": "external-claim", "namespace": scene.namespace}, "spec": spec}
    kind = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim"}
    await scene.post(RESOURCE_CLAIMS, "v1beta1", {**kind, **body})
    for version, shape in (("v1beta1", exactly), ("v1beta2", {"exactly": exactly}), ("v1", {"exactly": exactly})):
        path = f"/apis/resource.k8s.io/{version}/namespaces/{scene.namespace}/resourceclaims/external-claim"
        assert (await scene.api.raw_get(path))["spec"]["devices"]["requests"] == [{"name": "req", **shape}]
    pod = await scene.create_pod(scene.pod())
    assert pod["spec"]["resourceClaims"] == [{"name": "my-claim", "resourceClaimName": "external-claim"}]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "my-claim"}]


@control_plane
@pytest.mark.parametrize("kind", ["merge", "apply"])
async def test_a_patch_for_a_claim_that_was_made_again_is_a_conflict(
    scene: Scene, kind: Literal["merge", "apply"]
) -> None:
    """The server says that the field is immutable; no writer of ours may take that for a fault of what it writes."""
    made = [await scene.create_claim("again", CLAIM)]
    await scene.api.delete(RESOURCE_CLAIMS, "again", scene.namespace)
    made.append(await scene.create_claim("again", CLAIM))
    old, new = ({"name": "again", "uid": each["metadata"]["uid"], "labels": {"a": "b"}} for each in made)
    manager = "test" if kind == "apply" else None
    patch = partial(
        scene.api.patch, RESOURCE_CLAIMS, "again", namespace=scene.namespace, kind=kind, field_manager=manager
    )
    with pytest.raises(Conflict, match=r"uid.*immutable"):
        await patch(patch={"metadata": old})
    assert (await patch(patch={"metadata": new}))["metadata"]["labels"] == {"a": "b"}


@control_plane
@pytest.mark.parametrize("resource", [RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES], ids=["claim", "template"])
async def test_e2e_070_int_005_admin_access_needs_the_label_of_the_namespace(scene: Scene, resource: Resource) -> None:
    exactly = {"deviceClassName": scene.class_name, "adminAccess": True}
    spec = scene.claim_spec({"name": "req", "exactly": exactly})
    make = scene.create_claim if resource is RESOURCE_CLAIMS else scene.create_template
    with pytest.raises(Invalid, match=ADMIN):
        await make("wanted", spec)
    await scene.api.patch(NAMESPACES, scene.namespace, {"metadata": {"labels": {ADMIN: "true"}}})

    async def accepted() -> bool:
        """A real server hears of the label by a watch."""
        try:
            await make("wanted", spec)
        except Invalid as refusal:
            raise AssertionError(refusal) from refusal
        return True

    await until("it is accepted", accepted)
    await scene.start_driver()
    claims = [{"name": "my-claim", "resourceClaimName": "wanted"}]
    await scene.create_pod(
        scene.pod("tester", claims) if resource is RESOURCE_CLAIMS else scene.inline_pod("tester", "wanted")
    )
    await scene.runs()
    (claim,) = await scene.claims()
    assert claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"]


@control_plane
async def test_e2e_071_the_longest_names_of_pod_and_entry_are_too_long_for_no_claim(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_template()
    pod, entry = "p" * 63, "e" * 63
    await scene.create_pod(scene.pod(pod, [{"name": entry, "resourceClaimTemplateName": "template"}]))
    await scene.runs(pod)


@control_plane
async def test_e2e_072_a_quota_counts_claims_and_refuses_one_too_many(scene: Scene) -> None:
    await scene.api.create(
        QUOTAS, {"metadata": {"name": "q", "namespace": scene.namespace}, "spec": {"hard": {COUNT: "1"}}}
    )

    async def used(count: str) -> None:
        async def look() -> bool:
            found = await scene.api.get(QUOTAS, "q", scene.namespace)
            assert found.get("status", {}).get("used") == {COUNT: count}
            return True

        await until(f"{count} claims are counted", look)

    await used("0")
    await scene.create_claim("first")
    await used("1")
    with pytest.raises(
        Forbidden, match=rf"exceeded quota: q, requested: {COUNT}=1, used: {COUNT}=1, limited: {COUNT}=1"
    ):
        await scene.create_claim("second")
    await scene.delete_claim("first")
    await used("0")
    await scene.create_claim("second")


def large(number: int) -> Device:
    """A device with as many attributes as one may have; names and values are as long as they may be."""
    names = [f"{DOMAIN}/{index:0>32}".replace("/0", "/a") for index in range(32)]
    values = {name: DeviceAttribute(string="x" * 64) for name in names}
    return Device(name=f"d{number}", attributes=values | {LAST: DeviceAttribute(string=f"{number:064}")})


@control_plane
async def test_e2e_077_int_031_036_slices_of_the_largest_size_are_published_as_they_are_and_used(
    scene: Scene,
) -> None:
    parts = [
        Slice(devices=tuple(large(number * DEVICES + index) for index in range(DEVICES))) for number in range(SLICES)
    ]
    await scene.create_class()
    errors: list[str] = []
    owner = Owner.node(scene.node_names[0])
    async with SlicePublisher(
        scene.api, scene.driver_name, owner=owner, on_error=lambda error, _: errors.append(str(error))
    ) as publisher:
        publisher.publish({"large": Pool(slices=tuple(parts))})
        await asyncio.wait_for(publisher.settled(), 300)
        found, _ = await scene.api.list(RESOURCE_SLICES, fieldSelector=f"spec.driver={scene.driver_name}")
        published = {slice_["spec"]["devices"][0]["name"]: slice_["spec"]["devices"] for slice_ in found}
        assert published == {part.devices[0].name: [to_dict(each) for each in part.devices] for part in parts}
        await use_the_last_device(scene)
        publisher.publish({"large": Pool(slices=tuple(parts))})
        await asyncio.wait_for(publisher.settled(), 300)
        assert (publisher.statistics.creates, publisher.statistics.updates, errors) == (SLICES, 0, [])
        publisher.publish({})
        await asyncio.wait_for(publisher.settled(), 300)


async def use_the_last_device(scene: Scene) -> None:
    """A pod that wants it gets it."""
    last = SLICES * DEVICES - 1
    expression = f'device.attributes["{DOMAIN}"].{LAST.partition("/")[2]} == "{last:064}"'
    exactly = {"deviceClassName": scene.class_name, "selectors": [{"cel": {"expression": expression}}]}
    await scene.create_claim(spec=scene.claim_spec({"name": "req", "exactly": exactly}))
    await scene.create_pod(scene.pod())
    await scene.runs(seconds=120)
    (result,) = (await scene.get_claim())["status"]["allocation"]["devices"]["results"]
    assert result["device"] == f"d{last}"
