"""Claims that are not as they should be: missing, replaced, not allocated, re-allocated, in use."""

from __future__ import annotations

import stat
import uuid
from contextlib import suppress

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench, expect
from dra_driver_test.harness.devices import Device, Json, too_much_together
from dra_driver_test.harness.server import Claim, Use, opaque
from dra_driver_test.harness.waiting import eventually

from .unprepare import LEAK_CLAIMS, check_descriptors


async def _unknown(bench: Bench) -> Device:
    """A device that the driver does not have, in a pool that it has."""
    known = await bench.device()
    return Device(known.driver, known.pool, "no-such-device", {})


@check("PH-08")
async def without_allocation_is_refused(bench: Bench) -> None:
    """A claim without an allocation is not prepared.

    The kubelet may know an older claim; the driver reads the newest and must not invent devices.
    """
    device = await bench.device()
    claim = await bench.server.claim(Use(device), allocated=False)
    await bench.refused(claim, "that is not allocated")


@check("PH-08")
async def that_is_missing_is_refused(bench: Bench) -> None:
    """A claim that the API server does not have is not prepared."""
    await bench.device()
    await bench.refused(Claim("default", "no-such-claim", str(uuid.uuid4())), "that does not exist")


@check("PH-08", "KM-21")
async def that_was_replaced_is_refused(bench: Bench) -> None:
    """A claim whose uid is not that of the object of its name is not prepared.

    The claim was deleted and created again; its devices are those of another pod.
    """
    claim = await bench.claim()
    await bench.refused(Claim(claim.namespace, claim.name, str(uuid.uuid4())), "whose uid is that of another object")


@check("plugin-helper.md 2.1", level=Level.SHOULD)
async def with_an_unknown_device_is_refused(bench: Bench) -> None:
    """A claim that holds a device which the driver does not have is not prepared.

    A device may vanish after it was allocated; the pod must wait then, not run without it. It does not apply to drivers
    whose devices a controller publishes: the node does not know them.
    """
    await bench.needs_own_slices()
    claim = await bench.claim(await _unknown(bench))
    await bench.refused(claim, "whose device 'no-such-device' it does not have")


async def _bad(bench: Bench) -> Claim:
    """A claim that the driver refuses by itself: the library of a driver may fail a call for claims without allocation.

    Raises Skipped if none is known.
    """
    if await bench.is_published_here():
        return await bench.claim(await _unknown(bench))
    if bench.parameters.bad is None:
        raise Skipped("its devices are published for all nodes, and no bad parameters are known (--bad-parameters)")
    return await bench.claim((await bench.devices(2))[1], config=[opaque(bench.name, bench.parameters.bad)])


@check("KM-14", "plugin-helper.md 2.1", level=Level.SHOULD)
async def that_are_bad_fail_alone(bench: Bench) -> None:
    """In a call with a good and a bad claim, the error is the bad claim's and the call itself succeeds.

    The user then reads which claim of the pod is at fault, whichever comes first.
    """
    good = await bench.claim()
    bad = await _bad(bench)
    for claims in ((good, bad), (bad, good)):
        try:
            await bench.prepare(*claims)
        except Finding as finding:
            if f"failed for ResourceClaim {bad.name}" not in str(finding):
                raise Finding(f"one claim of two is bad, and the call says: {finding}") from None
        else:
            raise Finding("one claim of two cannot be prepared, and the driver says that both were")


@check("KM-14", "NOD-007")
async def can_succeed_after_a_failure(bench: Bench) -> None:
    """A claim that could not be prepared is prepared later, when the obstacle is gone.

    Kubelets repeat a failed call for as long as the pod exists.
    """
    device = await bench.device()
    claim = await bench.server.claim(Use(device), allocated=False)
    await bench.refused(claim, "that is not allocated")
    await bench.server.allocate(claim, Use(device))
    await bench.prepare(claim)


@check("KM-19", "NOD-011")
async def that_failed_can_be_unprepared(bench: Bench) -> None:
    """A claim that could not be prepared can be unprepared.

    A kubelet unprepares each claim that it asked for, whatever the answer was; a pod is deleted only after that.
    """
    claim = await bench.server.claim(Use(await bench.device()), allocated=False)
    await bench.refused(claim, "that is not allocated")
    await bench.unprepare(claim)


@check("plugin-helper.md 2.1", level=Level.SHOULD)
async def do_not_take_a_device_in_use(bench: Bench) -> None:
    """A device that one claim holds is not prepared for another, unless it is shared or for admin access.

    Two such claims mean that an allocation went wrong; the driver is the last that can keep two pods apart.
    """
    device = await bench.device()
    if device.is_shared:
        raise Skipped("the driver published shared devices only")
    await bench.held(device)
    await bench.refused(await bench.claim(device), f"with the device {device.name}, which is prepared for another")


@check("plugin-helper.md 2.1")
async def get_a_device_after_it_is_given_back(bench: Bench) -> None:
    """A device that was unprepared for one claim is prepared for the next."""
    device = await bench.device()
    first = await bench.held(device)
    await bench.unprepare(first)
    await bench.held(device)


@check("KM-16", "plugin-helper.md 2.1")
async def follow_a_new_allocation(bench: Bench) -> None:
    """A claim that holds another device than at its first preparation never gets the old one again.

    The claim was unprepared elsewhere, or the call was lost, and then allocated anew. The driver prepares the new
    device or refuses; the old one may be another pod's by now.
    """
    old, new = await bench.devices(2)
    claim = await bench.held(old)
    await bench.server.allocate(claim, Use(new))
    try:
        prepared = await bench.prepared(claim)
    except Finding:
        return  # refusing until the claim is unprepared is right as well
    expect(prepared, new, "the claim now")


@check("KM-21", "KM-13")
async def that_are_created_again_are_new(bench: Bench) -> None:
    """A claim that was deleted and created again under its name gets the devices of its own allocation."""
    old, new = await bench.devices(2)
    first = await bench.held(old, name="again")
    await bench.server.delete(first)
    second = await bench.claim(new, name="again")
    expect(await bench.prepared(second), new, "the new claim of the name")


async def _fail(bench: Bench, device: Device) -> None:
    """Let claims fail that hold the device, and let the kubelet give them up. Raises Skipped if all are prepared.

    Their preparation may fail late: at a second device, which is unknown, or at bad parameters.
    """
    failed = False
    claims = [await bench.claim(device, await _unknown(bench))]
    if bench.parameters.bad is not None:
        claims.append(await bench.claim(device, config=[opaque(bench.name, bench.parameters.bad)]))
    for other in (await bench.independent())[1:2]:  # that another claim has
        await bench.held(other)
        claims.append(await bench.claim(device, other))
    for claim in claims:
        try:
            await bench.prepare(claim)
        except Finding:
            failed = True
        await bench.unprepare(claim)
    if not failed:
        raise Skipped("the driver accepted all wrong parameters that the check knows: give some with --bad-parameters")


@check("KM-19", "NOD-011", "TD-03")
async def that_failed_leave_nothing(bench: Bench) -> None:
    """A claim that could not be prepared leaves no CDI file once it is unprepared.

    The driver may have written one before it failed, and has no record of the claim.
    """
    with bench.cdi.nothing_left("preparing the claim failed, and it was unprepared"):
        await _fail(bench, await bench.device())
        await bench.unprepare(*bench.server.made())


@check("KM-19", "NOD-011")
async def that_failed_hold_no_device(bench: Bench) -> None:
    """The devices of a claim that could not be prepared are prepared for another one, once it is unprepared."""
    device = await bench.device()
    await _fail(bench, device)
    await bench.held(device)


async def _allocated_anew(bench: Bench) -> Device:
    """Let a claim come and go that was allocated anew while it was prepared; returns its first device."""
    old, new = await bench.devices(2)
    claim = await bench.held(old)
    await bench.server.allocate(claim, Use(new))
    with suppress(Finding):  # refusing until the claim is unprepared is right as well
        await bench.prepare(claim)
    await bench.unprepare(claim)
    return old


@check("KM-19", "TD-03")
async def that_were_allocated_anew_leave_nothing(bench: Bench) -> None:
    """A claim that was allocated anew while it was prepared leaves no CDI file once it is unprepared."""
    with bench.cdi.nothing_left("a claim that was allocated anew was unprepared"):
        await _allocated_anew(bench)


@check("KM-19", "plugin-helper.md 2.1")
async def that_were_allocated_anew_free_the_old_device(bench: Bench) -> None:
    """The first device of a claim that was allocated anew is prepared for another claim, once that is unprepared."""
    await bench.prepare(await bench.claim(await _allocated_anew(bench)))


@check("KM-19", "NOD-011")
async def that_failed_leak_no_descriptors(bench: Bench) -> None:
    """A driver that failed to prepare many claims has no more open files and sockets than before."""
    device = await bench.device()

    async def fail() -> None:
        for _ in range(LEAK_CLAIMS):
            claim = await bench.server.claim(Use(device), allocated=False)
            await bench.refused(claim, "that is not allocated")
            await bench.unprepare(claim)
            await bench.server.delete(claim)

    await fail()
    await check_descriptors(bench, fail, "failed and went")


@check("plugin-helper.md 2.1", "plugin-helper.md 4.3", level=Level.SHOULD)
async def do_not_overdraw_counters(bench: Bench) -> None:
    """Two devices that draw more on a counter than there is, as a whole and a part of it, are not prepared both.

    Two such claims mean that an allocation went wrong, or that the driver published the devices anew meanwhile.
    """
    pair = too_much_together(await bench.published())
    if pair is None:
        raise Skipped("the driver published no two devices that exclude each other by counters")
    for first, second in (pair, pair[::-1]):
        holder = await bench.held(first)
        why = f"with the device {second.name}, which draws on the counters of {first.name} in use"
        await bench.refused(await bench.claim(second), why)
        await bench.unprepare(holder)


def _untouched(claim: Json, driver: str, *, with_marks: bool) -> Json:
    """What of a claim is not the driver's to write; ``with_marks`` the marks that it may set for a while as well."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    of_others = [one for one in status.get("devices") or () if one["driver"] != driver]
    marks = ("finalizers", "labels", "annotations") if with_marks else ()
    return {
        **{f"metadata.{key}": metadata.get(key) for key in ("ownerReferences", *marks)},
        "spec": claim["spec"],
        "status.allocation": status.get("allocation"),
        "status.reservedFor": status.get("reservedFor"),
        "status.devices of other drivers": of_others,
    }


@check("KM-16", "KM-19", "api.md 8")
async def are_left_as_they_are(bench: Bench) -> None:
    """Preparing and unpreparing a claim leaves it as it was: allocation, reservations, finalizers, and others' words.

    The driver may say something of its own devices in the status. A finalizer that stays keeps the claim, and with it
    its namespace, for ever.
    """
    foreign = Device("other.driver-test.example.com", "other", "other-0", {})
    uses = [*await bench.all_kinds(), Use(foreign, "other")]
    claim = await bench.use(*uses)
    pod = {"resource": "pods", "name": "user", "uid": str(uuid.uuid4())}
    await bench.server.allocate(claim, *uses, reserved_for=[pod])
    condition = {"type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    said = {"driver": foreign.driver, "pool": foreign.pool, "device": foreign.name, "conditions": [condition]}
    await bench.server.set_devices(claim, [said])
    before = await bench.server.read(claim)
    for call, what in ((bench.prepare, "prepared"), (bench.unprepare, "unprepared")):
        await call(claim)
        with_marks = what == "unprepared" and await bench.is_published_here()
        after = await bench.server.read(claim)
        old, new = (_untouched(each, bench.name, with_marks=with_marks) for each in (before, after))
        for key, value in new.items():
            if value != old[key]:
                raise Finding(f"the claim was {what}, and its {key} changed from {old[key]} to {value}")


@check("KM-19", "api.md 2")
async def go_when_they_are_deleted(bench: Bench) -> None:
    """A claim that was unprepared is gone when it is deleted: the driver holds it by no finalizer."""
    claim, _ = await bench.full()
    await bench.unprepare(claim)
    await bench.server.delete(claim)

    async def look() -> bool:
        return not await bench.server.exists(claim)

    try:
        await eventually("the claim is gone", look, bench.limits.gone, bench.limits)
    except Finding as finding:
        left = await bench.server.strange()
        raise Finding(f"a claim was unprepared and deleted, and {finding}; it has {left}") from None


@check("KM-12", "api.md 2")
async def are_prepared_for_all_users(bench: Bench) -> None:
    """A claim is prepared whoever it is reserved for: one pod, two pods that share it, or a PodGroup.

    The kubelet has compared its pod with the reservations; a driver prepares the allocated devices.
    """
    device = await bench.device()
    pods = [{"resource": "pods", "name": f"user-{number}", "uid": str(uuid.uuid4())} for number in range(2)]
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "users", "uid": str(uuid.uuid4())}
    for users, who in ((pods[:1], "a pod"), (pods, "two pods"), ([group], "a PodGroup")):
        claim = await bench.use(Use(device))
        await bench.server.allocate(claim, Use(device), reserved_for=users)
        try:
            await bench.prepare(claim)
        except Finding as finding:
            raise Finding(f"a claim that is reserved for {who} is not prepared: {finding}") from None
        await bench.unprepare(claim)


@check("KM-12", "KM-16", level=Level.SHOULD)
async def that_are_being_deleted_are_prepared(bench: Bench) -> None:
    """A claim that somebody has deleted is prepared while a pod uses it: its finalizer keeps it as long.

    A driver that refuses it keeps the pod in ContainerCreating, and the pod keeps the claim.
    """
    claim = await bench.claim()
    await bench.server.delete_while_used(claim)
    await bench.prepare(claim)
    await bench.prepare(claim)


@check("KM-19", "NOD-011", level=Level.SHOULD)
async def leave_no_file_open_to_all(bench: Bench) -> None:
    """What a driver writes into its folder can be written by its own user alone.

    Whoever changes its state decides which devices the next container gets.
    """
    await bench.prepare(*await bench.claims(2))
    for path in sorted((bench.place.plugins / bench.name).rglob("*")):
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & stat.S_IWOTH:
                raise Finding(f"every user can write to {path}: it has mode {stat.S_IMODE(mode):o}")


@check("PH-08", "NOD-007")
async def wait_for_the_server(bench: Bench) -> None:
    """A claim that was asked for while the API server refused the driver's requests is prepared when it answers again.

    Until then the driver says that it failed, or has what it needs; a kubelet asks again.
    """
    device = await bench.device()
    claim = await bench.claim(device)
    async with bench.failing_server():
        await bench.interrupted(claim, bench.limits.answer)

    async def look() -> bool:
        try:
            prepared = await bench.prepared(claim)
        except Finding:
            return False
        expect(prepared, device, "the claim")
        return True

    await eventually("the API server answers again, and the claim is prepared", look, bench.limits.gone, bench.limits)
