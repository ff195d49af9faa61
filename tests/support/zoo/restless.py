"""Objects on which hundreds of pods wait, and that change ten times a second."""

from __future__ import annotations

import itertools
from typing import Any

from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Object

from zoo.asking import equal, many, request, spec
from zoo.crowding import NEVER, ONE
from zoo.placing import HOST
from zoo.tenant import Act, Beast, Tenant

_turns = itertools.count()
_NEAR = {"labelSelector": {"matchLabels": {"mood": "good"}}, "topologyKey": HOST}
_BESIDE = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_NEAR]}}
_VISITORS = spec(*many(9, kind="visitor"), request("never", kind="nothing"), constraints=[equal("absent")])


async def sharers(tenant: Tenant) -> None:
    """A thousand pods of one claim, which has no devices."""
    await tenant.claim("shared", NEVER)
    await tenant.each(tenant.pod(f"pod-{number}", ["shared"]) for number in range(tenant.some(1_000)))


async def replace_the_claim(tenant: Tenant) -> None:
    """The claim goes or comes."""
    await tenant.delete(RESOURCE_CLAIMS, "shared")
    await tenant.again(tenant.claim("shared", NEVER))


async def relabel_the_claim(tenant: Tenant) -> None:
    """The claim of all pods changes."""
    await tenant.patch(RESOURCE_CLAIMS, "shared", {"metadata": {"annotations": {"turn": f"{next(_turns)}"}}})


async def moody(tenant: Tenant) -> None:
    """Pods that run, and hundreds that want to be near those of a certain mood, but have no devices."""
    await tenant.template("one", ONE)
    await tenant.template("never", NEVER)
    await tenant.each(tenant.pod(f"calm-{number}", template="one") for number in range(8))
    await tenant.each(
        tenant.pod(f"pod-{number}", template="never", affinity=_BESIDE) for number in range(tenant.some(500))
    )


async def change_mood(tenant: Tenant) -> None:
    """All that run change a label that decides about the others."""
    patch = {"metadata": {"labels": {"mood": ("good", "bad")[next(_turns) % 2]}}}
    await tenant.each(tenant.patch(PODS, f"calm-{number}", patch) for number in range(8))


async def running(tenant: Tenant) -> None:
    """Pods that have their devices."""
    names = [f"pod-{number}" for number in range(20)]
    await tenant.each(tenant.pod_with(name, ONE) for name in names)


async def take_finalizers(tenant: Tenant) -> None:
    """The finalizers of claims in use are taken away."""
    patch: Object = {"metadata": {"finalizers": None}}
    await tenant.each(tenant.patch(RESOURCE_CLAIMS, f"pod-{number}", patch) for number in range(20))


async def take_annotations(tenant: Tenant) -> None:
    """Claims change between such as get devices at once and such as do not."""
    value = ("immediate", None)[next(_turns) % 2]
    patch: Object = {"metadata": {"annotations": {"dra.kopf.dev/allocate": value}}}
    await tenant.each(tenant.patch(RESOURCE_CLAIMS, f"pod-{number}", patch) for number in range(20))


async def write_megabytes(tenant: Tenant) -> None:
    """Twenty waiting pods of a quarter of a megabyte change."""
    patch: Object = {"metadata": {"annotations": {"note": f"{next(_turns)} " + "x" * 250_000}}}
    await tenant.each(tenant.patch(PODS, f"pod-{number}", patch) for number in range(20))


async def waits_for_template(tenant: Tenant) -> None:
    """Hundreds of pods of one template."""
    await tenant.each(tenant.pod(f"pod-{number}", template="shy") for number in range(tenant.some(500)))


async def replace_the_template(tenant: Tenant) -> None:
    """The template comes, and goes."""
    if next(_turns) % 2:
        await tenant.delete(RESOURCE_CLAIM_TEMPLATES, "shy")
    else:
        await tenant.again(tenant.template("shy", NEVER))


def wanting(count: int, claim: Object, **pod: Any) -> Act:
    """So many pods that wait for what another namespace uses and gives back all the time."""

    async def release(tenant: Tenant) -> None:
        await tenant.template("theirs", claim)
        await tenant.each(tenant.pod(f"pod-{number}", template="theirs", **pod) for number in range(tenant.some(count)))

    return release


async def immediate(tenant: Tenant) -> None:
    """Claims that want devices at once, and never get any."""
    note = {"dra.kopf.dev/allocate": "immediate"}
    await tenant.each(
        tenant.claim(f"claim-{number}", _VISITORS, annotations=note) for number in range(tenant.some(2_000))
    )


async def of_nobody(tenant: Tenant) -> None:
    """Pods of a scheduler that does not exist, for devices of another namespace, and classes by the thousand."""
    names = [f"claim-{number}" for number in range(tenant.some(200))]
    for number, name in enumerate(names):
        requests: list[Object] = [
            {
                "name": f"r{entry}",
                "firstAvailable": [
                    {"name": f"a{choice}", "deviceClassName": f"c{number}-{entry}-{choice}"} for choice in range(8)
                ],
            }
            for entry in range(31)
        ]
        await tenant.claim(name, spec(*requests, request("visitor", kind="visitor")))
    await tenant.each(tenant.pod(f"pod-{name}", [name], schedulerName="nobody") for name in names)


_SAID = r"bound|cannot satisfy|gave up|affinity|claim|template"
_ANY = r""

RESTLESS: tuple[Beast, ...] = (
    Beast("a claim of a thousand pods that comes and goes", sharers, _SAID, replace_the_claim),
    Beast("a claim of a thousand pods that changes", sharers, _SAID, relabel_the_claim),
    Beast("labels that sway others", moody, _SAID, change_mood, short=True),
    Beast("finalizers that are taken away", running, r"bound", take_finalizers, short=True),
    Beast("claims that are immediate now and then", running, r"bound", take_annotations),
    Beast("annotations of megabytes", running, r"bound", write_megabytes),
    Beast("a template that comes and goes", waits_for_template, _SAID, replace_the_template),
    Beast("pods that wait for a neighbour's devices", wanting(2_000, _VISITORS), _SAID),
    Beast(
        "important pods that wait for them", wanting(500, _VISITORS, priorityClassName="system-cluster-critical"), _SAID
    ),
    Beast("immediate claims", immediate, _ANY),
    Beast("pods of no scheduler", of_nobody, _ANY),
)
"""As fast as one small program writes."""
