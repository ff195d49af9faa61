"""The content of CDI edits: the device of the claim, all of it, and no other (harness/content.py)."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench, ids_of
from dra_driver_test.harness.content import (
    SHORTEST_TEXT_CHARACTERS,
    Content,
    Known,
    content_of,
    given,
    seen_alone,
    shown,
    texts_in,
    told_apart,
)
from dra_driver_test.harness.devices import Device
from dra_driver_test.harness.server import Use

MOST_DEVICES = 8
OF_THE_IMAGE = ("PATH", "HOME")
"""Devices whose edits are read."""
_WORD = re.compile(r"[\w.:-]*\d[\w.:-]*")
"""A text that can be the name of one thing: with a digit, and not less than it stands for (not gpu-1 of gpu-10)."""


def _names(device: Device) -> set[str]:
    """Texts by which the published device may be called: its name, and attributes such as a serial number."""
    attributes = (device.spec.get("attributes") or {}).values()
    texts = (device.name, *(value.get("string", "") for value in attributes))
    return {word for text in texts for word in _WORD.findall(text) if len(word) >= SHORTEST_TEXT_CHARACTERS}


async def _called(bench: Bench) -> list[tuple[Device, set[str]]]:
    """The published devices with the names that only they have."""
    published = await bench.published()
    count = Counter(name for device in published for name in _names(device))
    return [(device, {name for name in _names(device) if count[name] == 1}) for device in published]


def _namesakes(devices: Sequence[Device]) -> list[list[Device]]:
    """The first two devices of one name in different pools, if there are such."""
    by_name: dict[str, Device] = {}
    pairs = ([first, one] for one in devices if (first := by_name.setdefault(one.name, one)).pool != one.pool)
    return [*itertools.islice(pairs, 1)]


def _are_alike(one: Device, other: Device) -> bool:
    """Whether the devices are of one kind, and none is a part of the other, as far as their slices tell."""
    kinds = [(each.pool, sorted(each.spec.get("attributes") or {})) for each in (one, other)]
    return kinds[0] == kinds[1] and not (one.name.startswith(other.name) or other.name.startswith(one.name))


@check("KM-17", "plugin-helper.md 2.1")
async def are_of_the_device(bench: Bench) -> None:
    """A container does not get the edits of another device than its claim holds.

    They name one if they have its published name, or an attribute that no other device has, such as a serial number,
    and nothing of that of the device that the claim holds. The pod would work on another pod's device.
    """
    called = await _called(bench)
    for device in (await bench.independent())[:MOST_DEVICES]:
        content = given(bench, await bench.prepared(await bench.claim(device)))
        words = {word for statement in content for text in statement[1:] for word in _WORD.findall(text)}
        if words & next(names for each, names in called if each == device):
            continue
        for other, names in called:
            if (found := words & names) and _are_alike(device, other):
                raise Finding(
                    f"a claim holds {device.name}, and its container gets {shown(content)}: {', '.join(sorted(found))} "
                    f"is that of {other.name}"
                )


@check("KM-17", level=Level.SHOULD)
async def differ_between_devices(bench: Bench) -> None:
    """Containers with different devices get something different, also with devices of one name in two pools.

    It does not apply to devices that are shared, to edits that are empty, and to devices without a difference: a driver
    that counts seats may publish them as devices. Then allowMultipleAllocations with a capacity would say so.
    """
    pairs = [await bench.devices(2), *_namesakes(await bench.independent())]
    seen = [await seen_alone(bench, devices=pair) for pair in pairs]
    compared = [(one, other) for one, other in seen if one.constant and not one.device.is_shared]
    if not compared:
        raise Skipped("the driver shares its devices, or containers get nothing of them")
    called = await _called(bench)
    for one, other in compared:
        things = {" ".join(part[1:3]) for part in one.constant if part[0] in ("device node", "network interface")}
        differ = all(names - {device.name} for device, names in called if device in (one.device, other.device))
        if one.constant == other.constant and (differ or any(map(_WORD.search, things))):
            first, second = (f"{each.device.pool}/{each.device.name}" for each in (one, other))
            raise Finding(f"containers with {first} and with {second} get the same: {shown(one.constant)}")


async def _requests(bench: Bench) -> AsyncIterator[tuple[Known, Known, Content]]:
    """A device, the other one, and what a container gets that uses the first one's request of a claim with both."""
    known = await told_apart(bench)
    for order in (known, known[::-1]):
        claim = await bench.claim(*(one.device for one in order))
        prepared = await bench.prepared(claim)
        yield *order, given(bench, prepared, "req")
        yield *order[::-1], given(bench, prepared, "req-1")
        await bench.unprepare(claim)


@check("KM-17", "PH-08")
async def belong_to_their_request(bench: Bench) -> None:
    """Of a claim with two requests, a container that uses one gets the device of that request, not of the other."""
    async for known, other, content in _requests(bench):
        known.check(content, other, "a request of a claim with two")


@check("KM-17", "PH-08")
async def reach_each_request(bench: Bench) -> None:
    """Of a claim with two requests, a container that uses one gets something, as with a claim of its own.

    A driver that gives the second device no CDI id starts the container without it.
    """
    devices = await seen_alone(bench)
    prepared = await bench.prepared(await bench.claim(*(one.device for one in devices)))
    for known, request in zip(devices, ("req", "req-1"), strict=True):
        if known.constant and not given(bench, prepared, request):
            alone = f"alone, {known.device.name} gives a container {shown(known.constant)}"
            raise Finding(f"{alone}; as one of two requests, nothing")


@check("KM-17", level=Level.SHOULD)
async def stay_out_of_other_requests(bench: Bench) -> None:
    """Of a claim with two requests, a container that uses one does not get the device of the other as well.

    Users split a claim into requests so that each container sees its own.
    """
    async for known, other, content in _requests(bench):
        if foreign := content & other.marks:
            raise Finding(
                f"the container uses the request of {known.device.name}, and gets that of {other.device.name} as well: "
                f"{shown(foreign)}"
            )


@check("KM-17", "KM-14")
async def have_all_devices_of_a_request(bench: Bench) -> None:
    """Of a request with two devices, a container gets both."""
    known = await told_apart(bench)
    claim = await bench.server.claim(*(Use(one.device) for one in known))
    content = given(bench, await bench.prepared(claim))
    for one, other in (known, known[::-1]):
        if content & one.marks and not content & other.marks:
            both = f"{one.device.name} and {other.device.name}"
            found = f"{shown(content & one.marks)}, and nothing of {other.device.name}"
            raise Finding(f"a request holds {both}, and its container gets {found}")


@check("KM-17", level=Level.SHOULD)
async def do_not_overwrite_each_other(bench: Bench) -> None:
    """Two devices of one request do not overwrite each other's variables, device nodes and mounts.

    The runtime keeps the last of a name or path: the container sees one of its devices. Number them, or put the device
    into the name. A value that the container gets under another name as well, is not lost.
    """
    first, second = await bench.devices(2)
    edits = bench.cdi.edits(ids_of(await bench.prepared(await bench.server.claim(Use(first), Use(second)))))
    values = [
        *(entry.partition("=")[::2] for entry in edits.env),
        *((node.path, node.source) for node in edits.device_nodes),
        *((mount.container_path, mount.host_path) for mount in edits.mounts),
    ]
    kept = dict(values)
    seen = {text for value in kept.values() for text in (value, *texts_in(value))}
    if lost := sorted({f"{name}={value}" for name, value in values if kept[name] != value and value not in seen}):
        final = ", ".join(f"{name}={kept[name]}" for name in sorted({entry.partition("=")[0] for entry in lost}))
        raise Finding(
            f"a request holds {first.name} and {second.name}, its container gets {final}, and loses {', '.join(lost)}"
        )


@check("KM-17", level=Level.SHOULD)
async def leave_what_the_image_says(bench: Bench) -> None:
    """The edits do not set PATH or HOME: the runtime replaces the image's value, and its programs are not found."""
    edits = bench.cdi.edits(ids_of(await bench.prepared(await bench.claim())))
    if found := [entry for entry in edits.env if entry.partition("=")[0] in OF_THE_IMAGE]:
        raise Finding(f"containers get {', '.join(found)} in place of what their image says: use a name of your own")


@check("KM-16", "plugin-helper.md 2.1")
async def follow_a_new_allocation(bench: Bench) -> None:
    """A container of a claim that was allocated anew gets the new device, and nothing of the old one.

    The old device may be another pod's. Until the claim is unprepared a driver may refuse it, or return ids of files
    that are not there, so that the container runtime refuses it.
    """
    old, new = await told_apart(bench)
    for unprepares in (False, True):
        claim = await bench.held(old.device)
        if unprepares:
            await bench.unprepare(claim)
        await bench.server.allocate(claim, Use(new.device))
        try:
            prepared = await bench.prepared(claim)
            marks = given(bench, prepared)
        except Finding:
            if unprepares:
                raise
            await bench.unprepare(claim)
            continue  # refusing until the claim is unprepared is right as well
        if left := marks & old.marks:
            raise Finding(
                f"the claim was allocated anew and holds {new.device.name}, and its container gets {shown(left)} of "
                f"{old.device.name}"
            )
        await bench.unprepare(claim)


@check("KM-18", "plugin-helper.md 2.1")
async def outlast_other_claims(bench: Bench) -> None:
    """Preparing a claim leaves the edits of claims that are prepared already as they are.

    The runtime reads the files again whenever a container of a running pod starts anew.
    """
    first, second = await bench.claims(2)
    ids = ids_of(await bench.prepared(first))
    before = bench.cdi.edits(ids)
    await bench.prepare(second)
    if (after := bench.cdi.edits(ids)) != before:
        raise Finding(
            f"another claim was prepared, and {', '.join(ids)} changed from {shown(content_of(before))} to "
            f"{shown(content_of(after))}"
        )


@check("NOD-009", "KM-16", restarts=True, waits=True)
async def are_the_same_after_a_restart(bench: Bench) -> None:
    """A claim that is prepared again after a restart gives containers its device, as before."""
    await _come_back(bench, reboots=False)


@check("KM-16", "TD-02", restarts=True, waits=True)
async def are_the_same_after_a_reboot(bench: Bench) -> None:
    """A claim that is prepared again after a reboot, which empties the CDI folder, gives containers its device."""
    await _come_back(bench, reboots=True)


async def _come_back(bench: Bench, *, reboots: bool) -> None:
    known = await told_apart(bench, bench.restart)
    claims = [await bench.claim(one.device) for one in known]
    await bench.prepare(*claims)
    await (bench.reboot() if reboots else bench.restart(kill=True))
    for claim, one, other in zip(claims, known, known[::-1], strict=True):
        content = given(bench, await bench.prepared(claim))
        one.check(content, other, "a claim that was prepared before")
        if not content & one.marks:
            raise Finding(
                f"a container got {shown(one.marks)} of {one.device.name}; prepared again, the claim gives "
                f"{shown(content)}"
            )
