"""Uses of verbs that the roles of the manifests grant and an everyday story does not need, by account and verb."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from bare_client import pod
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import ResourceClaim, ResourcePoolStatusRequest
from dra_kube import (
    EVENTS,
    LEASES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    Api,
    Conflict,
    Election,
    Forbidden,
    LeaseLock,
)
from dra_kubeletplugin import ClaimRef, DeviceStatus, report_devices
from dra_kubeletplugin.slices.writer import RateLimit, SliceView, SliceWriter, stored
from dra_operator.app.lease import lease_name
from dra_operator.kube import EventReason, EventRecorder
from dra_operator.kube.writers import PoolRequestWriter
from manifest_accounts import DRIVER

Use = Callable[[Api, Api], Awaitable[None]]
"""What is done with the account's Api, and the administrator's. Raises Forbidden, or fails, where it may not."""


async def an_event_is_repeated(operator: Api, administrator: Api) -> None:
    """The second event of a text counts up the first one."""
    recorder = EventRecorder(operator, "dra-operator", clock=lambda: 0.0, now=lambda: "2026-01-01T00:00:00Z")
    about = convert(Pod, {**pod("p"), "metadata": {"name": "p", "namespace": "default", "uid": "u"}})
    writing = asyncio.create_task(recorder.run())
    for _ in range(2):
        recorder.post(about, EventReason.FAILED_SCHEDULING, "because")
    await recorder.flush(30)
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    events = [event for event in (await administrator.list(EVENTS, "default"))[0] if event["message"] == "because"]
    counts = [event["count"] for event in events]
    await administrator.delete(EVENTS, events[0]["metadata"]["name"], "default")
    if counts != [2]:
        raise Forbidden(403, "Forbidden", f"one event that counts 2 was expected: {counts}")


async def a_deleted_lease_is_written_again(operator: Api, administrator: Api) -> None:
    """The manifests have the Lease; if it is gone all the same, its leader goes on."""
    name = lease_name("dra-scheduler")
    lock = LeaseLock(operator, "kube-system", name, Election("test"))
    assert await lock.attempt()
    await administrator.delete(LEASES, name, "kube-system")


async def an_old_request_is_deleted(operator: Api, administrator: Api) -> None:
    """A ResourcePoolStatusRequest goes when it is a day old."""
    body = {"metadata": {"name": "old"}, "spec": {"driver": DRIVER}}
    made = await administrator.create(RESOURCE_POOL_STATUS_REQUESTS, body)
    try:
        request = convert(ResourcePoolStatusRequest, made)
        await PoolRequestWriter(operator, lambda _: None).delete(request)
    except Forbidden:
        await administrator.delete(RESOURCE_POOL_STATUS_REQUESTS, "old")
        raise


async def a_slice_is_read_after_a_conflict(plugin: Api, administrator: Api) -> None:
    """The publisher wants to see what another one wrote."""
    old = await administrator.get(RESOURCE_SLICES, "slice-of-node-1")
    label = {"metadata": {"labels": {"changed": old["metadata"]["resourceVersion"]}}}
    await administrator.patch(RESOURCE_SLICES, "slice-of-node-1", label)
    view = SliceView(60.0)
    with suppress(Conflict):
        await SliceWriter(plugin, view, RateLimit(50.0, 100)).delete(stored(old))
    (seen,) = view.pool("node-1", 0.0)
    assert seen.slice.metadata.resource_version != old["metadata"]["resourceVersion"]


async def a_driver_speaks_of_its_devices(plugin: Api, administrator: Api) -> None:
    """``status.devices`` of a claim on the plugin's own node."""
    held = convert(ResourceClaim, await plugin.get(RESOURCE_CLAIMS, "here", "default"))
    claim = ClaimRef("default", "here", held.metadata.uid)
    before = len(held.status.devices or ())
    said = [DeviceStatus(pool="node-1", device="gpu", data={"round": before})] if not before else []
    try:
        await report_devices(plugin, DRIVER, claim, said, part="node-1")
    except Exception as error:  # the API server says 403 for one verb and 422 for the other
        raise Forbidden(403, "Forbidden", str(error)) from error


USES: dict[tuple[str, str, str], Use] = {
    ("dra-operator", "patch", "events"): an_event_is_repeated,
    ("dra-operator", "delete", "resourcepoolstatusrequests"): an_old_request_is_deleted,
    ("dra-operator", "create", "leases"): a_deleted_lease_is_written_again,
    ("dra-plugin", "get", "resourceslices"): a_slice_is_read_after_a_conflict,
}
REPORTING_USES: dict[tuple[str, str, str], Use] = {
    ("dra-plugin", "patch", "resourceclaims/status"): a_driver_speaks_of_its_devices,
    ("dra-plugin", "associated-node:patch", "resourceclaims/driver"): a_driver_speaks_of_its_devices,
}
"""Those of a plugin whose driver reports devices."""
