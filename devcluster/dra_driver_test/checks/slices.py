"""ResourceSlices: their content, and how the driver keeps them published."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable

from dra_api.releases import Release

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, NotJudged, Skipped
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.devices import Json, generation, incomplete, newest
from dra_driver_test.harness.waiting import eventually

STANDARD = {
    "resource.kubernetes.io/pcieRoot": re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}"),
    "resource.kubernetes.io/pciBusID": re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"),
}

NUMA_NODE = "resource.kubernetes.io/numaNode"
LARGEST_NODE_NUMBER = 1023
_TIMES = re.compile(r'"timeAdded": "[^"]*"')


async def _pools(bench: Bench) -> dict[str, list[Json]]:
    """The pools, once all are complete. Raises Finding, which names a pool that is not, and NotJudged."""
    await bench.settled()
    slices = await bench.slices()
    if lacking := incomplete(slices):
        raise Finding(f"all pools are complete: not within {bench.limits.published:g} s: {lacking}")
    return newest(slices)


async def _newest(bench: Bench) -> list[Json]:
    """The slices that count, once all pools are complete."""
    return [one for members in (await _pools(bench)).values() for one in members]


async def _delete(bench: Bench, slices: list[Json]) -> None:
    for one in slices:
        await bench.server.delete_slice(one["metadata"]["name"])


@check("plugin-helper.md 2.6", "KM-10")
async def are_published(bench: Bench) -> None:
    """The driver publishes at least one slice under the name that it registered.

    A driver without devices publishes an empty one: "no devices" differs from "no driver".
    """
    try:
        await bench.published_slices()
    except NotJudged:
        what = f"a ResourceSlice of {bench.name} for the node {bench.place.node}"
        raise Finding(f"{what}: not within {bench.limits.published:g} s") from None


@check("plugin-helper.md 4.4", "KM-10")
async def belong_to_the_node(bench: Bench) -> None:
    """All slices that the driver made for this node name it in ``nodeName``, or select nodes.

    The kubelet removes the slices of a driver that is gone by the node's name.
    """

    async def look() -> list[Json]:
        return await bench.server.slices(bench.name)

    nodes = {None, *await bench.server.node_names()}
    for one in await bench.appeared("ResourceSlice", look):
        if (node := one["spec"].get("nodeName")) not in nodes:
            raise Finding(f"slice {one['metadata']['name']} names {node}, and there is no such node")


@check("plugin-helper.md 4.4")
async def are_owned_by_the_node(bench: Bench) -> None:
    """Slices of a node have the Node as their owner, with the uid that it has now.

    They are deleted with the node then.
    """
    node = await bench.server.node()
    for one in await bench.published_slices():
        owners = [(owner["kind"], owner["uid"]) for owner in one["metadata"].get("ownerReferences") or ()]
        if one["spec"].get("nodeName") and ("Node", node["metadata"]["uid"]) not in owners:
            raise Finding(
                f"slice {one['metadata']['name']} has the owners {owners}, and not the node {bench.place.node}"
            )


@check("plugin-helper.md 4.4")
async def make_complete_pools(bench: Bench) -> None:
    """Each pool has as many slices of its newest generation as they say; schedulers ignore a pool until then."""
    await _pools(bench)


@check("plugin-helper.md 4.4")
async def have_one_generation(bench: Bench) -> None:
    """Slices of older generations are removed; they are never read again."""
    await bench.published_slices()

    async def look() -> bool:
        slices = await bench.slices()
        return sum(map(len, newest(slices).values())) == len(slices) > 0

    await eventually("only slices of the newest generation", look, bench.limits.published, bench.limits)


@check("plugin-helper.md 4.3")
async def name_each_device_once(bench: Bench) -> None:
    """A device's name occurs once in a pool; a pool with a name twice is invalid as a whole."""
    for pool, members in (await _pools(bench)).items():
        names = Counter(device["name"] for one in members for device in one["spec"].get("devices") or ())
        if twice := [name for name, count in names.items() if count > 1]:
            raise Finding(f"pool {pool} has several devices named {', '.join(twice)}")


@check("plugin-helper.md 4.3")
async def define_the_counters_they_use(bench: Bench) -> None:
    """Counters that devices consume are defined in the same pool; otherwise schedulers take none of the pool."""
    for pool, members in (await _pools(bench)).items():
        sets = {one["name"]: one["counters"] for part in members for one in part["spec"].get("sharedCounters") or ()}
        for device in (device for part in members for device in part["spec"].get("devices") or ()):
            for use in device.get("consumesCounters") or ():
                if missing := set(use["counters"]) - set(sets.get(use["counterSet"], ())):
                    raise Finding(
                        f"pool {pool}: device {device['name']} consumes {', '.join(sorted(missing))} of the counter "
                        f"set {use['counterSet']}, which the pool does not define"
                    )


@check("plugin-helper.md 8", level=Level.SHOULD)
async def write_standard_attributes_as_agreed(bench: Bench) -> None:
    """``resource.kubernetes.io/pcieRoot`` and ``pciBusID`` have the form that all drivers agreed on, and from 1.37 on
    ``numaNode``.

    Claims match devices of different drivers by them.
    """
    for device in await bench.published():
        attributes = device.spec.get("attributes") or {}
        for name, form in STANDARD.items():
            value = attributes.get(name)
            if value is not None and not form.fullmatch(value.get("string", "")):
                raise Finding(f"device {device.name}: {name} is {value}, expected the form {form.pattern}")
        node = attributes.get(NUMA_NODE)
        if bench.release >= Release.V1_37 and node is not None and not _are_nodes(node):
            raise Finding(
                f"device {device.name}: {NUMA_NODE} is {node}, expected int or ints from 0 to {LARGEST_NODE_NUMBER}"
            )


def _are_nodes(attribute: Json) -> bool:
    """Whether the value is a NUMA node or a list of them; -1 of sysfs is none (K37-NUMA-01 to -03)."""
    nodes = [attribute["int"]] if "int" in attribute else attribute.get("ints") or ()
    return bool(nodes) and all(0 <= node <= LARGEST_NODE_NUMBER for node in nodes)


@check("plugin-helper.md 4.7", "plugin-helper.md 4.4", level=Level.SHOULD)
async def have_owner_and_driver_in_their_name(bench: Bench) -> None:
    """A slice's name contains the driver's name, so that people see whose it is."""
    for one in await bench.published_slices():
        if bench.name[:20] not in one["metadata"]["name"]:
            raise Finding(f"the slice {one['metadata']['name']} does not contain {bench.name}")


@check("RS-03", "plugin-helper.md 4.4")
async def are_not_written_without_need(bench: Bench) -> None:
    """Slices that need no change are not written.

    Each write wakes schedulers, and a cluster has many nodes.
    """
    await _pools(bench)
    before = _versions(await bench.slices())
    await bench.quiet()
    if changed := _changed(before, _versions(await bench.slices())):
        raise Finding(f"the driver wrote slices without a reason within {bench.limits.quiet:g} s: {changed}")


@check("RS-03", "plugin-helper.md 4.4", level=Level.SHOULD, waits=True)
async def are_not_measurements(bench: Bench) -> None:
    """Slices describe a device, and that stays. A temperature, a load or a time would change them for ever.

    Each node would write its slices several times a minute, and each write wakes all pods that wait for devices.
    """
    slices = await _newest(bench)
    await asyncio.sleep(bench.limits.idle)
    after = await bench.slices()
    if changed := _changed(_versions(slices), _versions(after)):
        pools = sorted({pool for pool, _ in set(_content(after)) - set(_content(slices))})
        what = f": the devices of {', '.join(pools)} changed by themselves" if pools else ""
        raise Finding(f"the driver wrote slices without a reason within {bench.limits.idle:g} s, {changed}{what}")


def _versions(slices: list[Json]) -> dict[str, str]:
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in slices}


def _changed(before: dict[str, str], after: dict[str, str]) -> str:
    return ", ".join(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def _content(slices: list[Json]) -> list[tuple[str, str]]:
    """Pool and devices of the slices, without the times of taints, which a server may set anew."""
    return sorted(
        (one["spec"]["pool"]["name"], _TIMES.sub("", json.dumps(one["spec"].get("devices")))) for one in slices
    )


async def _restored(bench: Bench, what: str, wanted: list[tuple[str, str]]) -> None:
    async def look() -> bool:
        slices = [one for members in newest(await bench.slices()).values() for one in members]
        return _content(slices) == wanted

    await eventually(what, look, bench.limits.restored, bench.limits)


@check("RS-02", "RS-03", "NOD-045", waits=True)
async def come_back_when_they_are_deleted(bench: Bench) -> None:
    """Slices that another client deleted are published again.

    A kubelet that starts deletes all slices of its node; without them no pod gets a device.
    """
    slices = await _newest(bench)
    await _delete(bench, slices)
    await _restored(bench, "the deleted slices are published again", _content(slices))
    if len(slices) > 1:
        await bench.server.delete_slice((await bench.slices())[-1]["metadata"]["name"])
        await _restored(bench, "one of several slices, deleted alone, is published again", _content(slices))


@check("RS-02", "plugin-helper.md 4.8", waits=True)
async def come_back_when_they_are_changed(bench: Bench) -> None:
    """Devices that another client removed from a slice are published again."""
    await bench.published()
    slices = await _newest(bench)
    with_devices = [one for one in slices if one["spec"].get("devices")]
    if not with_devices:
        raise NotJudged("the driver publishes no devices")
    await bench.server.update_slice(with_devices[0], {"devices": with_devices[0]["spec"]["devices"][1:]})
    await _restored(bench, "the changed slice is as the driver wants it again", _content(slices))
    if bench.driver.can_restart:
        await bench.restart()  # the Go library never restores a slice that is deleted within a minute of its update


@check("RS-02", "RS-03", waits=True)
async def come_back_after_an_expired_watch(bench: Bench) -> None:
    """Slices that are deleted after the API server said 410 (Gone) to the driver's watch are published again.

    A server forgets old changes after some minutes. A client has to list then, and to watch from there; one that does
    not is deaf until it restarts.
    """
    await _heard_again(bench, bench.watches.expire_watches, "the watch expired (410)")


@check("RS-02", "RS-03", waits=True)
async def come_back_after_a_watch_ended(bench: Bench) -> None:
    """Slices that are deleted after the API server ended the driver's watch are published again.

    A server ends each watch in order after some minutes, and clients begin the next.
    """
    await _heard_again(bench, bench.watches.end_watches, "the watch ended")


@check("RS-02", "RS-03", waits=True)
async def come_back_after_failed_requests(bench: Bench) -> None:
    """Slices that are deleted while the API server refuses the driver's requests are published when it answers again.

    It refuses lists, watches and writes in turn with 500, 503, 429 and 409, as in an outage or an update.
    """
    slices = await _newest(bench)
    async with bench.failing_server():
        await _delete(bench, slices)
        await bench.quiet()
    await _restored(bench, "the API server failed for a while, and the slices are published again", _content(slices))


@check("RS-02", "KM-10", restarts=True)
async def come_back_at_a_start(bench: Bench) -> None:
    """Slices that were deleted while the driver was down are published when it starts.

    The kubelet deletes them when a driver stays away.
    """
    slices = await _newest(bench)
    await bench.driver.stop()
    await _delete(bench, slices)
    await bench.start()
    await _restored(bench, "slices that were deleted meanwhile are published at the start", _content(slices))


@check("plugin-helper.md 4.4", restarts=True, waits=True)
async def follow_a_new_node(bench: Bench) -> None:
    """After the Node was deleted and made anew, the slices of a driver that starts are owned by the new one.

    Garbage collectors delete slices whose owner has another uid, again and again.
    """
    await bench.needs_own_slices()
    slices = await _newest(bench)
    await bench.driver.stop()
    await bench.server.renew_node()
    await bench.start()
    await _restored(bench, "the slices are published for the new Node", _content(slices))
    uid = (await bench.server.node())["metadata"]["uid"]
    for one in await bench.slices():
        if uid not in (owners := [owner["uid"] for owner in one["metadata"].get("ownerReferences") or ()]):
            raise Finding(f"the Node was made anew with the uid {uid}, and a slice has the owners {owners}")


async def _heard_again(bench: Bench, breaks: Callable[[], None], after: str) -> None:
    """Slices are deleted at once, which a new list tells, and later, which a new watch tells."""
    slices = await _newest(bench)
    for moment in ("at once", "later"):
        await bench.quiet()  # so that the driver watches
        breaks()
        if moment == "later":
            await bench.quiet()
        await _delete(bench, await bench.slices())
        await _restored(bench, f"{after}, and slices that are deleted {moment} are published again", _content(slices))


@check("KM-10", "PH-05", restarts=True, waits=True)
async def survive_a_restart(bench: Bench) -> None:
    """A driver that restarts keeps its slices: the same objects, the same generation.

    Deleting and publishing them again would hide the devices from schedulers for a while.
    """
    await _pools(bench)
    before, content = _identities(await bench.slices()), _content(await bench.slices())
    for kill in (False, True):
        await bench.restart(kill=kill)
        await bench.quiet()
        after = _identities(await bench.slices())
        if before != after:
            raise Finding(f"uid and generation of the slices were {sorted(before)}, after a restart {sorted(after)}")
        if (now := _content(await bench.slices())) != content:
            raise Finding(f"pools and devices were {content}, after a restart {now}")


def _identities(slices: list[Json]) -> set[tuple[str, int]]:
    return {(one["metadata"]["uid"], generation(one)) for one in slices}


@check("PH-05", level=Level.SHOULD, restarts=True)
async def stay_when_the_driver_stops(bench: Bench) -> None:
    """A driver that is stopped leaves its slices; the kubelet removes them if it does not come back.

    An update of the driver would otherwise take the devices away for a moment.
    """
    before = _identities(await bench.published_slices())
    await bench.driver.stop()
    if _identities(await bench.slices()) != before:
        raise Finding("the driver's slices changed when it was stopped")


@check("plugin-helper.md 4.4", "RS-01", restarts=True, waits=True)
async def of_others_stay(bench: Bench) -> None:
    """Slices of other drivers, and those of the driver's instances on other nodes, are left alone."""
    await _pools(bench)
    mine = (bench.server.own("elsewhere"), bench.name, "driver-test-elsewhere", "driver-test-other-node")
    other = (bench.server.own("other"), "other.driver-test.example.com", "driver-test-other", bench.place.node)
    for name, driver, pool, node in (mine, other):
        await bench.server.create_slice(name, driver, pool, node=node, devices=["device-0"])
    try:
        await bench.restart()
        await bench.quiet()
        left = {one["metadata"]["name"] for one in await bench.server.all_slices()}
    finally:
        for name, *_ in (mine, other):
            await bench.server.delete_slice(name)
    if mine[0] not in left and await bench.is_published_here():
        raise Finding("the driver removed a slice of its instance on another node")
    if other[0] not in left:
        raise Finding("the driver removed a slice of another driver")


@check("plugin-helper.md 4.4", restarts=True, waits=True)
async def left_over_are_removed(bench: Bench) -> None:
    """At its start the driver removes slices of this node that it does not want any more.

    An earlier version may have had other pools; their devices would be allocated, and never prepared. It does not apply
    to drivers whose devices are attached by network, as slices of a node are not theirs.
    """
    await bench.needs_own_slices()
    await bench.driver.stop()
    old = bench.server.own("left-over")
    await bench.server.create_slice(old, bench.name, "driver-test-old", devices=["old-0"])
    await bench.start()

    async def look() -> bool:
        return old not in {one["metadata"]["name"] for one in await bench.slices()}

    await eventually("a slice of an earlier pool is removed", look, bench.limits.restored, bench.limits)


@check("plugin-helper.md 4.4", restarts=True)
async def keep_the_time_of_taints(bench: Bench) -> None:
    """A taint keeps the time at which it was added when the driver restarts.

    Pods that tolerate it for a while would otherwise begin to count anew.
    """
    await _pools(bench)
    before = _taint_times(await bench.slices())
    if not before:
        raise Skipped("no device has a taint")
    await bench.restart()
    await bench.quiet()
    after = _taint_times(await bench.slices())
    if after != before:
        raise Finding(f"taints were added at {before}, after a restart at {after}")


def _taint_times(slices: list[Json]) -> dict[str, str]:
    return {
        f"{device['name']} {taint['key']}": taint.get("timeAdded", "")
        for one in slices
        for device in one["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
    }
