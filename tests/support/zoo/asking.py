"""What a tenant asks for: selectors, requests, constraints, alternatives, counters and shares that are hard to answer.

Selectors stay below the limits of validation: 10 KiB of text, and an estimated cost of 1,000,000. Each is true for any
device, or false for all of them, so that what it costs is the only thing that it does. ``number`` makes it differ from
all others of its kind, so that no result of one serves another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dra_kube import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    AlreadyExists,
    AnswerTooLarge,
    Api,
    Conflict,
    NotFound,
    Object,
    PatchKind,
    Resource,
)

CLASS_SIZE = 300
"""Repetitions of a Unicode class for which RE2 takes 9 MB and a second."""

Selector = Callable[[int], str]


def _numbers(count: int) -> str:
    return "[" + ",".join(str(number % 10) for number in range(count)) + "]"


def _nested(depth: int, width: int, body: str) -> str:
    """``body`` for each combination of elements of so many lists."""
    for level in range(depth):
        body = f"{_numbers(width)}.all(v{level}, {body})"
    return body


def three_loops(number: int) -> str:
    """Estimated at almost 600,000."""
    return _nested(3, 40, f"v0 + v1 + v2 >= -{number}")


def loops_of_index_of(number: int) -> str:
    """Each turn searches a string that nearly matches at every position."""
    return _nested(3, 25, f"'{'a' * 500}'.indexOf('{'a' * 60}b{number}') < 0")


def loops_of_matches(number: int) -> str:
    """Each turn runs a pattern over a text that nearly matches."""
    return _nested(3, 18, f"!'{'a' * 400}'.matches('(?:a|aa)+b{number:02}$')")


def loops_of_split(number: int) -> str:
    return _nested(2, 80, f"'{'a,' * 200}{number}'.split(',').size() > 0")


def loops_of_sort(number: int) -> str:
    return _nested(2, 10, f"{_numbers(60)}.sort().size() == 60 && {number} >= 0")


def loops_of_quantities(number: int) -> str:
    return _nested(3, 40, f"quantity('12345678{number}Ki').isGreaterThan(quantity('1'))")


def loops_of_versions(number: int) -> str:
    return _nested(2, 200, f"semver('1.2.3-alpha.beta.{number}+build').major() == 1")


def doubled_strings(number: int) -> str:
    """A string that doubles with every binding."""
    body = "s9.size() > 0"
    for level in reversed(range(10)):
        source = f"s{level - 1} + s{level - 1}" if level else f"'{'x' * 100}{number}'"
        body = f"cel.bind(s{level}, {source}, {body})"
    return body


def unicode_classes(number: int, patterns: int = 150) -> str:
    """Patterns of Unicode classes, each another one."""
    tests = (
        f"device.driver.matches('(?:\\\\pL\\\\pL\\\\pL){{{CLASS_SIZE}}}N{number}x{index}')" for index in range(patterns)
    )
    return "!(" + " || ".join(tests) + ")"


def attributes_of_many(number: int) -> str:
    """It asks for hundreds of attributes of every device."""
    test = "!('absent{}' in device.attributes['tenant.example.com'])"
    return " && ".join(test.format(number * 1000 + index) for index in range(150))


def wide(number: int, size: int = 8_800) -> str:
    """So many characters that no other one equals."""
    head, entry = f"{number} >= 0", " && device.driver != 'd{:06}'"
    room = (size - len(head)) // len(entry.format(0))
    return head + "".join(entry.format(number * 1000 + index) for index in range(room))


def small(number: int) -> str:
    return f"device.attributes['gpu.example.com'].index != {1_000_000 + number}"


def failing(number: int) -> str:
    """It asks each device for what no device has."""
    return f"device.attributes['tenant.example.com'].absent{number} == 'x'"


COSTLY: dict[str, Selector] = {
    "three loops": three_loops,
    "loops of indexOf": loops_of_index_of,
    "loops of matches": loops_of_matches,
    "loops of split": loops_of_split,
    "loops of sort": loops_of_sort,
    "loops of quantities": loops_of_quantities,
    "loops of versions": loops_of_versions,
    "doubled strings": doubled_strings,
    "Unicode classes": unicode_classes,
    "attributes of many": attributes_of_many,
}

REFUSED_BY_US = (unicode_classes,)
"""The development server takes no pattern that RE2 takes a second to compile; the real one does."""


# --- One tenant: a namespace, and what its user may write there ---

AT_ONCE = 20
"""Writes of one tenant that run at the same time: what ``kubectl`` in a loop or a small program does."""


@dataclass
class Tenant:
    """``scale``: the part of its full number that each beast brings, from 0 to 1."""

    api: Api
    namespace: str
    scale: float = 1.0
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def some(self, number: int) -> int:
        """So many in the full form, fewer in the short one, but two at least."""
        return max(2, round(number * self.scale))

    async def moves_in(self) -> None:
        await self.api.create(NAMESPACES, {"metadata": {"name": self.namespace}})

    async def moves_out(self) -> None:
        """All its objects are asked to go; finalizers of its own go first."""
        claims, _ = await self.api.list(RESOURCE_CLAIMS, self.namespace, keep=lambda it: {"metadata": it["metadata"]})
        kept = [
            claim["metadata"]["name"] for claim in claims if OWN_FINALIZER in claim["metadata"].get("finalizers", ())
        ]
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [OWN_FINALIZER]}}
        await self.each(self.patch(RESOURCE_CLAIMS, name, patch, "strategic") for name in kept)
        for resource in (PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, PERSISTENT_VOLUME_CLAIMS):
            # Of a hoard the answer is too large, since it has the labels of all: they are deleted by then.
            with suppress(AnswerTooLarge):
                await self.api.delete_collection(resource, self.namespace)

    async def each(self, writes: Iterable[Awaitable[Any]]) -> None:
        """All of them, a few at a time."""

        async def turn(write: Awaitable[Any]) -> None:
            async with self._turns:
                await write

        await asyncio.gather(*(turn(write) for write in writes))

    async def crowd(self, number: int, make: Callable[[int], Awaitable[object]]) -> None:
        """Make ``number`` objects in the full form, each from its number."""
        await self.each(make(it) for it in range(self.some(number)))

    async def pods(self, number: int, claims: Sequence[str] = (), **pod: Any) -> None:
        """Make ``number`` pods that are alike: ``pod-0``, ``pod-1``, ..."""
        await self.crowd(number, lambda it: self.pod(f"pod-{it}", claims, **pod))

    async def pods_with(self, number: int, claim: Object) -> None:
        """Make ``number`` pods, each with such a claim of its own."""
        await self.crowd(number, lambda it: self.pod_with(f"pod-{it}", claim))

    async def claim(self, name: str, spec: Object, **meta: Any) -> Object:
        return await self._create(RESOURCE_CLAIMS, name, meta, {"spec": spec})

    async def template(self, name: str, spec: Object, **meta: Any) -> Object:
        """``meta`` is for the template's claims."""
        return await self._create(RESOURCE_CLAIM_TEMPLATES, name, {}, {"spec": {"metadata": meta, "spec": spec}})

    async def pod(
        self, name: str, claims: Sequence[str] = (), template: str = "", labels: Object | None = None, **spec: Any
    ) -> Object:
        """A pod for this scheduler with these claims, or with one from a template."""
        sources = [{"resourceClaimName": claim} for claim in claims]
        sources += [{"resourceClaimTemplateName": template}] if template else []
        entries = [{"name": f"entry-{number}", **source} for number, source in enumerate(sources)]
        used = [{"name": entry["name"]} for entry in entries]
        body: Object = {
            "schedulerName": "dra-scheduler",
            "containers": [{"name": "main", "image": "none", "resources": {"claims": used}}],
            "resourceClaims": entries,
        }
        return await self._create(PODS, name, {"labels": labels or {}}, {"spec": body | spec})

    async def pod_with(self, name: str, spec: Object) -> None:
        """A claim, and a pod of the same name that uses it."""
        await self.claim(name, spec)
        await self.pod(name, [name])

    async def again(self, creation: Awaitable[object]) -> None:
        """What may be there still."""
        with suppress(AlreadyExists, Conflict):
            await creation

    async def patch(self, resource: Resource, name: str, patch: Object, kind: PatchKind = "merge") -> None:
        with suppress(NotFound, Conflict):
            await self.api.patch(resource, name, patch, self.namespace, kind=kind)

    async def delete(self, resource: Resource, name: str) -> None:
        with suppress(NotFound, Conflict):
            await self.api.delete(resource, name, self.namespace, grace_seconds=0)

    async def _create(self, resource: Resource, name: str, meta: Object, body: Object) -> Object:
        return await self.api.create(
            resource, {"metadata": {"name": name, "namespace": self.namespace, **meta}, **body}
        )


OWN_FINALIZER = "tenant.example.com/never"
STORAGE: Object = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1Gi"}},
    "storageClassName": "",
}
"""The spec of a claim to a volume that no provisioner makes."""

Act = Callable[[Tenant], Awaitable[None]]


@dataclass(frozen=True)
class Beast:
    """What one tenant does to the cluster.

    ``release`` creates its objects. ``repeat`` is called ten times a second. ``says`` is what is true of each of its
    pods in the end, as a pattern: the message of the condition PodScheduled, or ``bound`` for one that has a node.
    ``short``: it belongs to the short form. ``real``: only a real API server takes it, or takes it in reasonable time.
    """

    name: str
    release: Act
    says: str
    repeat: Act | None = None
    short: bool = False
    real: bool = False


# --- Claims that are hard to answer: selectors, constraints, alternatives, counters and shares ---


def request(name: str, *expressions: str, kind: str = "gpu", **more: Any) -> Object:
    """One device, or what ``more`` says."""
    chosen = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": name, "exactly": {"deviceClassName": kind, "selectors": chosen, **more}}


def spec(*requests: Object, constraints: Sequence[Object] = ()) -> Object:
    return {"devices": {"requests": list(requests), "constraints": list(constraints)}}


def many(number_of: int, /, **more: Any) -> list[Object]:
    return [request(f"r{number}", **more) for number in range(number_of)]


def equal(attribute: str) -> Object:
    return {"matchAttribute": f"hard.example.com/{attribute}"}


def distinct(attribute: str) -> Object:
    return {"distinctAttribute": f"hard.example.com/{attribute}"}


def costly(name: str, selector: Selector) -> Beast:
    """Twenty pods with a selector each that takes as long as it may, for every device."""

    async def release(tenant: Tenant) -> None:
        await tenant.crowd(20, lambda it: tenant.pod_with(f"pod-{it}", spec(request("req", f"!({selector(it)})"))))

    says = r"gave up|selector|cannot satisfy"
    return Beast(name, release, says, short=selector is three_loops, real=selector in REFUSED_BY_US)


def asking(count: int, claim: Object) -> Act:
    """Make ``count`` pods with such a claim each."""
    return lambda tenant: tenant.pods_with(count, claim)


async def alternatives_of_selectors(tenant: Tenant) -> None:
    """31 requests of 8 alternatives with 32 selectors each, and one that is never met."""

    def alternative(first: int) -> Object:
        chosen = [{"cel": {"expression": small(first + number)}} for number in range(32)]
        return {"name": f"a{first}", "deviceClassName": "gpu", "selectors": chosen}

    requests: list[Object] = [
        {"name": f"r{number}", "firstAvailable": [alternative((number * 8 + entry) * 32) for entry in range(8)]}
        for number in range(31)
    ]
    await tenant.pods_with(5, spec(*requests, request("never", kind="nothing")))


async def wide_selectors(tenant: Tenant) -> None:
    """Thousands of selectors of 8.8 kB, in claims of 280 kB: the API server takes seconds to compile larger ones."""
    for number in range(tenant.some(120)):
        chosen = request("req", *(wide(number * 100 + entry) for entry in range(32)))
        await tenant.pod_with(f"pod-{number}", spec(chosen, request("never", kind="nothing")))


async def selectors_that_fail(tenant: Tenant) -> None:
    def claim(number: int) -> Object:
        return spec(request("req", *(failing(number * 32 + entry) for entry in range(32))))

    await tenant.crowd(100, lambda it: tenant.pod_with(f"pod-{it}", claim(it)))


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
    *(costly(name, selector) for name, selector in COSTLY.items()),
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
