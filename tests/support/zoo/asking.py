"""Claims that are hard to answer: selectors, constraints, alternatives, counters and shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_kube import Object

from zoo import selectors
from zoo.selectors import Selector
from zoo.tenant import Act, Beast, Tenant


def request(name: str, *expressions: str, kind: str = "gpu", **more: Any) -> Object:
    """One device, or what ``more`` says."""
    chosen = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": name, "exactly": {"deviceClassName": kind, "selectors": chosen, **more}}


def spec(*requests: Object, constraints: Sequence[Object] = ()) -> Object:
    return {"devices": {"requests": list(requests), "constraints": list(constraints)}}


def many(number_of: int, /, **more: Any) -> list[Object]:
    """So many requests for one device each."""
    return [request(f"r{number}", **more) for number in range(number_of)]


def equal(attribute: str) -> Object:
    return {"matchAttribute": f"hard.example.com/{attribute}"}


def distinct(attribute: str) -> Object:
    return {"distinctAttribute": f"hard.example.com/{attribute}"}


def costly(name: str, selector: Selector) -> Beast:
    """Twenty pods with a selector each that takes as long as it may, for every device."""

    async def release(tenant: Tenant) -> None:
        await tenant.each(
            tenant.pod_with(f"pod-{number}", spec(request("req", f"!({selector(number)})")))
            for number in range(tenant.some(20))
        )

    says = r"gave up|selector|cannot satisfy"
    return Beast(name, release, says, short=selector is selectors.three_loops, real=selector in selectors.REFUSED_BY_US)


def asking(count: int, claim: Object) -> Act:
    """So many pods with such a claim each."""

    async def release(tenant: Tenant) -> None:
        await tenant.each(tenant.pod_with(f"pod-{number}", claim) for number in range(tenant.some(count)))

    return release


async def alternatives_of_selectors(tenant: Tenant) -> None:
    """31 requests of 8 alternatives with 32 selectors each, and one that is never met."""

    def alternative(first: int) -> Object:
        chosen = [{"cel": {"expression": selectors.small(first + number)}} for number in range(32)]
        return {"name": f"a{first}", "deviceClassName": "gpu", "selectors": chosen}

    requests: list[Object] = [
        {"name": f"r{number}", "firstAvailable": [alternative((number * 8 + entry) * 32) for entry in range(8)]}
        for number in range(31)
    ]
    claim = spec(*requests, request("never", kind="nothing"))
    await tenant.each(tenant.pod_with(f"pod-{number}", claim) for number in range(tenant.some(5)))


async def wide_selectors(tenant: Tenant) -> None:
    """Thousands of selectors of 8.8 kB, in claims of 280 kB: the API server takes seconds to compile larger ones."""
    for number in range(tenant.some(120)):
        chosen = request("req", *(selectors.wide(number * 100 + entry) for entry in range(32)))
        await tenant.pod_with(f"pod-{number}", spec(chosen, request("never", kind="nothing")))


async def selectors_that_fail(tenant: Tenant) -> None:
    await tenant.each(
        tenant.pod_with(
            f"pod-{number}", spec(request("req", *(selectors.failing(number * 32 + entry) for entry in range(32))))
        )
        for number in range(tenant.some(100))
    )


def _hard(count: int, *constraints: Object) -> Object:
    """So many devices of the kind whose attributes are made for it."""
    return spec(*many(count, kind="hard"), constraints=constraints)


def _shares(count: int, memory: str) -> Object:
    return spec(*many(count, kind="share", capacity={"requests": {"memory": memory}}))


def _alternatives() -> Object:
    """8 to the power of 16 choices, of which none has equal values of a unique attribute."""
    choices = [{"name": f"a{number}", "deviceClassName": "hard"} for number in range(8)]
    requests = [{"name": f"r{number}", "firstAvailable": choices} for number in range(16)]
    return spec(*requests, constraints=[equal("unique")])


def _tolerant() -> Object:
    keys = [{"key": f"k{number}.example.com/x", "operator": "Exists"} for number in range(16)]
    return spec(*many(32, tolerations=keys, kind="hard"), constraints=[equal("unique")])


def _configured() -> Object:
    """32 configurations of 10 KiB each, and what they belong to is never found."""
    entry = {"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 10_000}}}
    claim = spec(*many(31), request("never", kind="nothing"))
    claim["devices"]["config"] = [{"requests": [f"r{number % 31}"], **entry} for number in range(32)]
    return claim


TOO_MANY = r"exceeds the claim limit of 32"
_NEVER = r"cannot satisfy|gave up|no device|none of|not enough|[Nn]o combination|search|allocates at most"

ASKING: tuple[Beast, ...] = (
    *(costly(name, selector) for name, selector in selectors.COSTLY.items()),
    Beast("alternatives of selectors", alternatives_of_selectors, _NEVER, real=True),
    Beast("wide selectors", wide_selectors, _NEVER, real=True),
    Beast("selectors that fail", selectors_that_fail, r"selector #\d+: CEL runtime error: no such key"),
    Beast("equal values of a unique attribute", asking(20, _hard(32, equal("unique"))), _NEVER),
    Beast(
        "equal values of nearly unique ones", asking(20, _hard(5, equal("four"), equal("three"))), _NEVER, short=True
    ),
    Beast("distinct values of few", asking(20, _hard(9, distinct("eight"))), _NEVER),
    Beast("constraints that exclude each other", asking(20, _hard(12, equal("three"), distinct("four"))), _NEVER),
    Beast("a list that no devices share", asking(20, _hard(11, equal("list"))), _NEVER),
    Beast("alternatives without end", asking(20, _alternatives()), _NEVER),
    Beast("tolerations of requests", asking(20, _tolerant()), _NEVER),
    Beast("all devices", asking(50, spec(request("req", allocationMode="All"))), TOO_MANY),
    Beast("all devices in parts", asking(50, spec(*many(16, kind="hard", count=2))), rf"{_NEVER}|bound"),
    Beast("counters that never add up", asking(20, spec(*many(9, kind="part"))), _NEVER, short=True),
    Beast("shares with steps", asking(20, _shares(32, "1000000001")), rf"{_NEVER}|bound"),
    Beast("shares beyond the range", asking(100, _shares(1, "1Pi")), _NEVER),
    Beast("configurations", asking(10, _configured()), _NEVER),
)
"""Every kind; each brings as many pods as one user makes in a minute."""
