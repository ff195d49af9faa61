"""NodePrepareResources for claims that are as they should be."""

from __future__ import annotations

from collections.abc import Sequence

from dra_devcluster.agent.plugins.plugin import PreparedDevice

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.devices import Device
from dra_driver_test.harness.server import ADMIN_ACCESS, Use


@check("KM-14", "PH-08")
async def answers_a_claim(bench: Bench) -> None:
    """One claim with one device gets one answer, under its uid, without error."""
    await bench.prepared(await bench.claim())


@check("KM-14")
async def answers_each_claim_of_a_call(bench: Bench) -> None:
    """A call with two claims gets an answer for both; a kubelet reports missing ones as skipped."""
    await bench.prepare(*await bench.claims(2))


@check("KM-14", "PH-08")
async def answers_a_big_batch(bench: Bench) -> None:
    """A call with as many claims as there are devices, up to 64, gets an answer for each, with its own device."""
    count = max(2, min(64, len(await bench.independent())))
    devices = await bench.devices(count)
    claims = [await bench.claim(device) for device in devices]
    answer = await bench.prepare(*claims)
    for claim, device in zip(claims, devices, strict=True):
        _expect(answer[claim.uid], device)


@check("PH-08", "KM-14")
async def accepts_an_empty_call(bench: Bench) -> None:
    """A call without claims is answered without claims."""
    await bench.prepare()


@check("KM-14", "api.md 2")
async def names_the_allocated_device(bench: Bench) -> None:
    """The answer has the pool and the device of the claim's allocation, and nothing else."""
    device = await bench.device()
    _expect(await bench.prepared(await bench.claim(device)), device)


def _expect(prepared: object, *devices: Device) -> None:
    found = sorted((one.pool, one.device) for one in prepared)  # type: ignore[attr-defined]
    expected = sorted((device.pool, device.name) for device in devices)
    if found != expected:
        raise Finding(f"allocated are {expected}, prepared are {found}")


@check("KM-17", "PH-08")
async def names_the_request(bench: Bench) -> None:
    """The answer says for which request each device is, or nothing, which means all.

    A container that refers to one request gets the devices that name it.
    """
    first, second = await bench.devices(2)
    claim = await bench.claim(first, second)
    prepared = await bench.prepared(claim)
    _expect_requests(prepared, first)
    if len(prepared) != 2:
        raise Finding(f"two requests have a device each, and {len(prepared)} devices are prepared")
    if any(not one.requests for one in prepared):
        raise Finding("the devices name no request, so that a container with one request gets those of both")
    await bench.unprepare(claim)
    await bench.server.allocate(claim, *bench.uses(first, second)[::-1])
    _expect_requests(await bench.prepared(claim), first)  # the results say it, in any order


def _expect_requests(prepared: Sequence[PreparedDevice], first: Device) -> None:
    for one in prepared:
        expected = "req" if one.device == first.name and one.pool == first.pool else "req-1"
        if one.requests and one.requests != (expected,):
            raise Finding(f"device {one.device} is allocated for {expected!r}, but prepared for {list(one.requests)}")


@check("KM-17", "PH-08")
async def names_the_base_of_a_subrequest(bench: Bench) -> None:
    """For a device of a subrequest the answer names the request alone: ``req`` for ``req/small``.

    Containers refer to requests, never to subrequests; a device that names one reaches no container.
    """
    claim = await bench.server.claim(Use(await bench.device(), "req/small"))
    for one in await bench.prepared(claim):
        if any("/" in request for request in one.requests):
            raise Finding(f"the allocation is for 'req/small', and the answer names {list(one.requests)}: name 'req'")


@check("KM-14")
async def prepares_several_devices_of_a_request(bench: Bench) -> None:
    """A request with two devices gets both."""
    first, second = await bench.devices(2)
    claim = await bench.server.claim(Use(first), Use(second))
    _expect(await bench.prepared(claim), first, second)


@check("plugin-helper.md 2.1", "KM-16")
async def can_be_repeated(bench: Bench) -> None:
    """Preparing a prepared claim again succeeds.

    After a restart a kubelet asks again for every claim of its running pods.
    """
    claim = await bench.held()
    await bench.prepare(claim)


@check("plugin-helper.md 2.1")
async def says_the_same_again(bench: Bench) -> None:
    """Preparing a prepared claim again has the same answer, CDI ids included.

    Running containers have the first answer's devices; pods that share the claim get the later one's.
    """
    claim = await bench.claim()
    first, second = await bench.prepared(claim), await bench.prepared(claim)
    if first != second:
        raise Finding(f"the first answer is {first}, the second {second}")


@check("KM-14", "api.md 2")
async def leaves_devices_of_other_drivers(bench: Bench) -> None:
    """Of a claim with devices of two drivers, each driver prepares its own."""
    device = await bench.device()
    foreign = Device("other.driver-test.example.com", "other", "other-0", {})
    claim = await bench.server.claim(Use(device), Use(foreign, "other"))
    _expect(await bench.prepared(claim), device)


@check("NOD-058", "PH-08")
async def keeps_the_share(bench: Bench) -> None:
    """The answer for a part of a shared device has the share id of the allocation."""
    shared = await bench.shared()
    share = "5e2a2ac6-6b4c-4f0d-8b0a-3f4f5a3f0001"
    claim = await bench.server.claim(Use(shared, fields=(("shareID", share),)))
    found = [one.share_id for one in await bench.prepared(claim)]
    if found != [share]:
        raise Finding(f"the allocation has the share {share}, and the answer {found}")


@check("NOD-059", "PH-08")
async def gives_shares_to_several_claims(bench: Bench) -> None:
    """Two claims can have a part of the same shared device at the same time."""
    shared = await bench.shared()
    for _ in range(2):
        await bench.held(shared)


@check("api.md 2", level=Level.SHOULD)
async def allows_admin_access(bench: Bench) -> None:
    """A claim gets a device at which a claim with admin access looks, and a second one with admin access gets it then.

    Monitoring pods look at devices before and while others use them, and an update of one starts the next pod before
    the last one ends.
    """
    watching = Use(await bench.device(), fields=ADMIN_ACCESS)
    namespace = await bench.server.admin_namespace()
    await bench.prepare(await bench.server.claim(watching, namespace=namespace))
    try:
        await bench.held(watching.device)
    except Finding as finding:
        raise Finding(f"a claim with admin access keeps users off the device: {finding}") from None
    await bench.prepare(await bench.server.claim(watching, namespace=namespace))


@check("NOD-058", "PH-08")
async def gives_two_shares_in_a_claim(bench: Bench) -> None:
    """A claim that has two parts of one shared device gets both, each with its share id."""
    shared = await bench.shared()
    claim = await bench.use(Use(shared, "req"), Use(shared, "req-1"))
    allocated = await bench.server.read(claim)
    wanted = sorted(one["shareID"] for one in allocated["status"]["allocation"]["devices"]["results"])
    found = sorted(str(one.share_id) for one in await bench.prepared(claim))
    if found != wanted:
        raise Finding(f"the allocation has the shares {wanted} of {shared.name}, and the answer {found}")


@check("KM-14", "api.md 2")
async def tells_pools_apart(bench: Bench) -> None:
    """Devices of different pools, in one claim or in several, are answered with their own pool and their own CDI ids.

    Names of devices are unique in a pool, not beyond it. It applies to drivers with several pools.
    """
    by_pool: dict[str, list[Device]] = {}
    for device in await bench.independent():
        by_pool.setdefault(device.pool, []).append(device)
    if len(by_pool) < 2:
        raise Skipped("the driver published one pool")
    (one, *_), others, *_ = by_pool.values()
    other = next((each for each in others if each.name == one.name), others[0])
    prepared = await bench.prepared(await bench.claim(one, other))
    _expect(prepared, one, other)
    ids = prepared[0].cdi_ids, prepared[1].cdi_ids
    await bench.unprepare(*bench.server.made())
    first, second = await bench.claim(one), await bench.claim(other)
    answer = await bench.prepare(first, second)
    _expect(answer[first.uid], one)
    _expect(answer[second.uid], other)
    if ids[0] and set(ids[0]) == set(ids[1]):
        raise Finding(
            f"{one.name} of pool {one.pool} and {other.name} of pool {other.pool} have the same ids: {ids[0]}"
        )
