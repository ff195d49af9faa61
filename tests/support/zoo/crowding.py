"""Objects by the thousand, and objects that never rest."""

from __future__ import annotations

import itertools
import time
from typing import Any

from dra_kube import EVENTS, PODS, RESOURCE_CLAIMS, Object

from zoo.asking import request, spec
from zoo.placing import HOST
from zoo.tenant import OWN_FINALIZER, Act, Beast, Tenant

_turns = itertools.count()

ONE = spec(request("req"))
NEVER = spec(request("req", kind="nothing"))


def waiting(count: int, claim: Object = NEVER, **pod: Any) -> Act:
    """So many pods whose template is never answered."""

    async def release(tenant: Tenant) -> None:
        await tenant.template("never", claim)
        await tenant.each(
            tenant.pod(f"pod-{number}", template="never", labels={"app": "a"}, **pod)
            for number in range(tenant.some(count))
        )

    return release


async def idle_claims(tenant: Tenant) -> None:
    await tenant.each(tenant.claim(f"claim-{number}", ONE) for number in range(tenant.some(10_000)))


async def crowded_claim(tenant: Tenant) -> None:
    """More pods on one claim than it takes."""
    await tenant.claim("shared", ONE)
    await tenant.each(tenant.pod(f"pod-{number}", ["shared"]) for number in range(tenant.some(300)))


async def without_template(tenant: Tenant) -> None:
    await tenant.each(tenant.pod(f"pod-{number}", template="absent") for number in range(tenant.some(500)))


async def extended_template(tenant: Tenant) -> None:
    """A template that says its claims are another kind of claim."""
    mark = {"resource.kubernetes.io/extended-resource-claim": "true"}
    await tenant.template("extended", ONE, annotations=mark)
    await tenant.each(tenant.pod(f"pod-{number}", template="extended") for number in range(tenant.some(30)))


async def claims_that_stay(tenant: Tenant) -> None:
    """Claims that are deleted and never go, and pods that use them."""
    names = [f"claim-{number}" for number in range(tenant.some(200))]
    await tenant.each(tenant.claim(name, ONE, finalizers=[OWN_FINALIZER]) for name in names)
    await tenant.each(tenant.pod(name, [name]) for name in names)
    await tenant.each(tenant.delete(RESOURCE_CLAIMS, name) for name in names)


async def gated(tenant: Tenant) -> None:
    """Pods that another controller holds back."""
    await tenant.template("one", ONE)
    gates = [{"name": f"g{number}.example.com/x"} for number in range(500)]
    await tenant.each(
        tenant.pod(f"pod-{number}", template="one", schedulingGates=gates) for number in range(tenant.some(500))
    )


async def nothing_yet(tenant: Tenant) -> None:
    await tenant.template("one", ONE)


async def come_and_go(tenant: Tenant) -> None:
    """Twenty pods a turn; those of an earlier turn go."""
    turn = next(_turns)
    await tenant.each(tenant.pod(f"pod-{turn}-{number}", template="one") for number in range(tenant.some(20)))
    await tenant.each(tenant.delete(PODS, f"pod-{turn - 5}-{number}") for number in range(tenant.some(20)))


async def relabel_claims(tenant: Tenant) -> None:
    """Each of twenty claims changes."""
    patch = {"metadata": {"labels": {"turn": f"t{next(_turns)}"}}}
    await tenant.each(tenant.patch(RESOURCE_CLAIMS, f"claim-{number}", patch) for number in range(20))


async def relabel_pods(tenant: Tenant) -> None:
    """Each of twenty waiting pods changes."""
    patch = {"metadata": {"labels": {"app": f"t{next(_turns)}"}}}
    await tenant.each(tenant.patch(PODS, f"pod-{number}", patch) for number in range(20))


async def tell(tenant: Tenant) -> None:
    """A hundred events about a pod."""
    turn, now = next(_turns), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": tenant.namespace, "name": "pod-0"}
    base: Object = {"involvedObject": about, "type": "Warning", "reason": "FailedScheduling", "message": "x" * 1_000}
    base |= {"firstTimestamp": now, "lastTimestamp": now, "source": {"component": "tenant"}}
    await tenant.each(
        tenant.api.create(EVENTS, {"metadata": {"name": f"e-{turn}-{number}", "namespace": tenant.namespace}, **base})
        for number in range(tenant.some(100))
    )


async def make_and_delete_claims(tenant: Tenant) -> None:
    """Twenty claims a turn; those of an earlier turn go."""
    turn = next(_turns)
    await tenant.each(tenant.claim(f"c-{turn}-{number}", ONE) for number in range(20))
    await tenant.each(tenant.delete(RESOURCE_CLAIMS, f"c-{turn - 5}-{number}") for number in range(20))


_TERM = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": HOST}
_APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM]}}
_SAID = r"cannot satisfy|gave up|affinity|bound"
_NO_CLAIM = r"template|claim"

CROWDING: tuple[Beast, ...] = (
    Beast("claims that nothing uses", idle_claims, _SAID),
    Beast("a crowded claim", crowded_claim, r"bound|256|reserved"),
    Beast("pods that wait", waiting(2_000), _SAID),
    Beast("pods that keep away from each other", waiting(500, ONE, affinity=_APART), _SAID),
    Beast("pods without their template", without_template, _NO_CLAIM),
    Beast("a template of extended resources", extended_template, r"bound|extended", short=True),
    Beast("claims that stay", claims_that_stay, r"bound|delet"),
    Beast("pods that another gate holds", gated, r"gate", short=True),
    Beast("pods that come and go", nothing_yet, r"", come_and_go),
    Beast("claims that change", waiting(20), _SAID, relabel_claims),
    Beast("pods that change", waiting(20), _SAID, relabel_pods),
    Beast("pods that change and keep away", waiting(20, ONE, affinity=_APART), _SAID, relabel_pods, short=True),
    Beast("events", waiting(2), _SAID, tell),
    Beast("claims that come and go", nothing_yet, _SAID, make_and_delete_claims),
)
"""As fast as one small program writes."""
