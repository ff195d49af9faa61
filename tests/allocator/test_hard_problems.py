"""Problems on which an exhaustive search explodes: bounded in steps, and growing gently with their size.

Steps are counted instead of time, so that the tests mean the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from allocator_lab import Lab, claim, device, lab, pool, request
from dra_operator.allocator import Allocated, Refused
from dra_operator.allocator.search import PRUNED_STEP_FACTOR

SIZES = (8, 16, 32, 64)
MULTI = {"allowMultipleAllocations": True}


def match(attribute: str, *requests: str) -> dict[str, Any]:
    return {"matchAttribute": attribute, "requests": list(requests)}


def pigeonhole(size: int) -> Lab:
    """One request more than there are devices, in two claims because of the limit of 32."""
    names = [f"r{i}" for i in range(size + 1)]
    claims = [claim(*map(request, names[start : start + 32]), name=f"c{start}") for start in range(0, len(names), 32)]
    return lab(pool(*(device(f"d{i}", u=i) for i in range(size))), claims)


def one_too_many(size: int) -> Lab:
    """A single request for one device more than there are."""
    return lab(
        pool(*(device(f"d{i}", u=i) for i in range(min(size, 31)))), [claim(request("r", count=min(size, 31) + 1))]
    )


def chain(size: int, *, broken: bool) -> Lab:
    """Neighbouring requests must agree in an attribute of their own; only the last devices do."""
    length = min(size // 2, 16)
    devices: list[dict[str, Any]] = [{f"a{q}": 100 * number + q for q in range(length)} for number in range(size)]
    for q in range(length - 1 - broken):
        devices[size - length + q][f"a{q}"] = devices[size - length + q + 1][f"a{q}"] = 7
    constraints = [match(f"drv/a{q}", f"r{q}", f"r{q + 1}") for q in range(length - 1)]
    members = (device(f"d{number:03}", **attributes) for number, attributes in enumerate(devices))
    return lab(pool(*members), [claim(*(request(f"r{q}") for q in range(length)), constraints=constraints)])


def few_values(size: int) -> Lab:
    """Six devices with distinct values, of which there are five."""
    members = (device(f"d{number}", k=number % 5, u=number) for number in range(size))
    return lab(pool(*members), [claim(request("r", count=6), constraints=[{"distinctAttribute": "drv/k"}])])


def groups(size: int) -> Lab:
    """Four with an equal value, where each value has three."""
    members = (device(f"d{number}", k=number // 3, u=number) for number in range(size))
    return lab(pool(*members), [claim(request("r", count=4), constraints=[match("drv/k")])])


def partitions(size: int) -> Lab:
    """GPUs of 7 slices, cut into 3 + 3: one partition of 3 more than fits."""
    gpus = size // 8
    counters = {f"g{gpu}": {"slices": 7} for gpu in range(gpus)}
    members = [
        device(f"g{gpu}-{width}-{start}", width=width, consumes={f"g{gpu}": {"slices": width}})
        for gpu in range(gpus)
        for width, starts in ((1, 7), (2, 3), (3, 2), (7, 1))
        for start in range(starts)
    ]
    wanted = [request(f"r{i}", 'device.attributes["drv"].width == 3') for i in range(2 * gpus + 1)]
    return lab(pool(*members, counters=counters), [claim(*wanted)])


def halves_or_wholes(size: int) -> Lab:
    """GPUs of which either the half or the whole can be had, though two halves would fit: one device more than GPUs."""
    gpus = size // 8
    members = [
        device(f"g{gpu}-{slices}", u=10 * gpu + slices, consumes={f"g{gpu}": {"slices": slices}})
        for gpu in range(gpus)
        for slices in (4, 2)
    ]
    counters = {f"g{gpu}": {"slices": 4} for gpu in range(gpus)}
    wanted = [request(f"r{i}", f'device.attributes["drv"].u != {1000 + i}') for i in range(gpus + 1)]
    return lab(pool(*members, counters=counters), [claim(*wanted)])


def shares(size: int) -> Lab:
    """Two shares of 5 fit a device of 10; one share more than fits."""
    count = size // 4
    members = (device(f"d{i}", capacity={"mem": 10}, extra=MULTI) for i in range(count))
    wanted = [request(f"r{i}", capacity={"requests": {"mem": "5"}}) for i in range(2 * count + 1)]
    claims = [claim(*wanted[start : start + 32], name=f"c{start}") for start in range(0, len(wanted), 32)]
    return lab(pool(*members), claims)


def uneven_shares(size: int) -> Lab:
    """Everything would fit by its sum, but not with these sizes."""
    count = size // 8
    members = (device(f"d{i}", capacity={"mem": 10}, extra=MULTI) for i in range(count))
    amounts = [6] * count + [5]
    wanted = [request(f"r{i}", capacity={"requests": {"mem": str(amount)}}) for i, amount in enumerate(amounts)]
    return lab(pool(*members), [claim(*wanted)])


def whole_shares(size: int) -> Lab:
    """Partitions that may be shared, but of which a share takes all; GPUs hold two of three, and one more is wanted."""
    gpus = size // 4
    members = [
        device(f"g{gpu}-{n}", u=10 * gpu + n, capacity={"mem": 8}, consumes={f"g{gpu}": {"slices": n}}, extra=MULTI)
        for gpu in range(gpus)
        for n in (1, 2, 3)
    ]
    counters = {f"g{gpu}": {"slices": 3} for gpu in range(gpus)}
    wanted = [request(f"r{i}", f'device.attributes["drv"].u != {1000 + i}') for i in range(2 * gpus + 1)]
    claims = [claim(*wanted[start : start + 32], name=f"c{start}") for start in (0, 32)]
    return lab(pool(*members, counters=counters), claims)


def administrators(size: int) -> Lab:
    """Requests with admin access, which no other request of their claim may share a device with: one device too few."""
    count = min(size // 2, 31)
    wanted = [request("a", count=3, adminAccess=True), request("b", count=2, adminAccess=True)]
    return lab(pool(*(device(f"d{i}", u=i) for i in range(count))), [claim(*wanted, request("r", count=count - 4))])


def pairs(size: int) -> Lab:
    """Pairs of an equal value, one pair more than there are values; no value has enough for two pairs."""
    values = min(size // 4, 15)
    members = (device(f"d{value}-{n}", k=value, u=n) for value in range(values) for n in range(3))
    names = [f"r{i}" for i in range(2 * values + 2)]
    constraints = [match("drv/k", *names[start : start + 2]) for start in range(0, len(names), 2)]
    return lab(pool(*members), [claim(*map(request, names), constraints=constraints)])


def memory_in_eighths(size: int) -> Lab:
    """GPUs whose memory is counted in eighths: halves fill all of it, and an eighth is wanted besides."""
    gpus = size // 8
    wanted = [request(f"h{i}", HALF) for i in range(2 * gpus)] + [request("e", EIGHTH)]
    return lab(eighths(gpus), [claim(*wanted)])


def wasted_shares(size: int) -> Lab:
    """The sum of 6 + 3 + 3 for each ten is too much only because no device can use its last part."""
    count = size // 4
    members = (device(f"d{i}", capacity={"mem": 10}, extra=MULTI) for i in range(count))
    amounts = ([6, 3, 3] * count)[: 10 * count // 4]
    wanted = [request(f"r{i}", capacity={"requests": {"mem": str(amount)}}) for i, amount in enumerate(amounts)]
    return lab(pool(*members), [claim(*wanted[start : start + 32], name=f"c{start}") for start in (0, 32)])


HALF, QUARTER, EIGHTH = (f'device.attributes["drv"].width == {width}' for width in (4, 2, 1))


def eighths(gpus: int) -> list[dict[str, Any]]:
    """GPUs cut as real ones are: partitions of 1, 2 or 4 eighths of the memory, 1 to 3 of 7 units that compute."""
    members = [
        device(f"g{gpu}-{width}-{start}", width=width, consumes={f"g{gpu}": {"units": units, **memory}})
        for gpu in range(gpus)
        for width, units, starts in ((1, 1, range(7)), (2, 2, (0, 2, 4)), (4, 3, (0, 4)))
        for start in starts
        for memory in [{f"m{eighth}": 1 for eighth in range(start, start + width)}]
    ]
    counters = {f"g{gpu}": {"units": 7} | {f"m{eighth}": 1 for eighth in range(8)} for gpu in range(gpus)}
    return pool(*members, counters=counters)


def behind_the_impossible(size: int) -> Lab:
    """What cannot be served at all comes before what raises, and behind many requests that can be."""
    wanted = [request(f"r{i}") for i in range(min(size // 2, 30))]
    impossible = request("impossible", 'device.attributes["drv"].u < 0')
    devices = (device(f"d{i}", u=i) for i in range(size))
    return lab(pool(*devices), [claim(*wanted, impossible), claim(request("raises", "device.nothing"), name="d")])


def too_many_before_an_error(size: int) -> Lab:
    """One request more than there are devices, and behind them one whose selector raises, which is never reached."""
    count = min(size, 31)
    requests = (request(f"r{i}", f'device.attributes["drv"].u != {1000 + i}') for i in range(count + 1))
    claims = [claim(*requests), claim(request("raises", "device.nothing"), name="d")]
    return lab(pool(*(device(f"d{i}", u=i) for i in range(count))), claims)


def nothing_left_to_raise_on(size: int) -> Lab:
    """As many requests as devices, and behind them one whose selector would raise, if any device was left for it."""
    count = min(size, 31)
    requests = (request(f"r{i}", f'device.attributes["drv"].u != {1000 + i}') for i in range(count))
    claims = [claim(*requests), claim(request("raises", 'device.attributes["drv"].k == 1'), name="d")]
    return lab(pool(*(device(f"d{i}", u=i) for i in range(count))), claims)


def around_nothing(size: int) -> Lab:
    """One request more than there are devices; among them one for no devices at all, whose selector would raise."""
    count = min(size, 31)
    requests = [request(f"r{i}", f'device.attributes["drv"].u != {1000 + i}') for i in range(count + 1)]
    requests.insert(count // 2, request("none", "device.nothing", count=0))
    return lab(pool(*(device(f"d{i}", u=i) for i in range(count))), [claim(*requests)])


FAMILIES: dict[str, Callable[[int], Lab]] = {
    "too many requests, one of them for nothing": around_nothing,
    "nothing left to raise on": nothing_left_to_raise_on,
    "something impossible before an error": behind_the_impossible,
    "too many requests before an error": too_many_before_an_error,
    "administrators": administrators,
    "pairs": pairs,
    "memory in eighths": memory_in_eighths,
    "wasted shares": wasted_shares,
    "pigeonhole": pigeonhole,
    "one device too few": one_too_many,
    "a broken chain": lambda size: chain(size, broken=True),
    "distinct values": few_values,
    "groups that are too small": groups,
    "partitions": partitions,
    "halves or wholes": halves_or_wholes,
    "shares": shares,
    "shares that take the whole device": whole_shares,
    "uneven shares": uneven_shares,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_has_no_solution_and_says_so_soon(family: Callable[[int], Lab], size: int) -> None:
    outcome = family(size).decide()
    assert isinstance(outcome, Refused)
    assert outcome.steps <= 100 + 14 * size


@pytest.mark.parametrize("size", SIZES)
def test_the_late_solution_of_a_chain_is_found(size: int) -> None:
    outcome = chain(size, broken=False).decide()
    assert isinstance(outcome, Allocated)
    length = min(size // 2, 16)
    expected = [f"d{number:03}" for number in range(size - length, size)]
    assert [given.device for given in outcome.results[0].results] == expected
    assert outcome.steps <= 40 * size


@pytest.mark.parametrize("size", SIZES)
def test_partitions_that_only_fit_exactly_are_found(size: int) -> None:
    """The small ones come first and would like to lie where a large one has to be."""
    gpus = size // 8
    wanted = [EIGHTH] * 2 * gpus + [QUARTER] * gpus + [HALF] * gpus
    requests = [request(f"r{i}", selector) for i, selector in enumerate(wanted)]
    outcome = lab(eighths(gpus), [claim(*requests)]).decide()
    assert isinstance(outcome, Allocated)
    assert outcome.steps <= 160 * size


@pytest.mark.parametrize("size", [8, 16, 32])
def test_nested_candidates_cost_two_frames_each(size: int) -> None:
    """Request i accepts devices 0 to i, so each has one that it must have; those that accept most come first."""
    wanted = [request(f"r{i}", f'device.attributes["drv"].u <= {i}') for i in reversed(range(size))]
    outcome = lab(pool(*(device(f"d{i:02}", u=i) for i in range(size))), [claim(*wanted)]).decide()
    assert isinstance(outcome, Allocated)
    expected = [f"d{number:02}" for number in reversed(range(size))]
    assert [given.device for given in outcome.results[0].results] == expected
    assert outcome.steps <= 100 + 2 * PRUNED_STEP_FACTOR * size


def test_thirty_two_of_a_thousand_take_one_step_each() -> None:
    slices = pool(*(device(f"d{i:04}", u=i) for i in range(1024)))
    outcome = lab(slices, [claim(request("r", count=32))]).decide()
    assert isinstance(outcome, Allocated)
    assert outcome.steps <= 40


def test_an_error_is_met_even_where_a_shortage_could_be_known_at_once() -> None:
    """Bounds must not hide a selector that raises: the reference reaches the device before it runs short."""
    devices = [device(f"d{i}", k=1) for i in range(3)] + [device("broken")]
    wanted = [request(f"r{i}", 'device.attributes["drv"].k == 1') for i in range(8)]
    outcome = lab(pool(*devices), [claim(*wanted)]).decide()
    assert "CEL runtime error" in str(getattr(outcome, "error", ""))
