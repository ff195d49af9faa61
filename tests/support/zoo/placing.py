"""Pods that are hard to place: affinity, spread, node affinity, tolerations, ports, and plain size."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

from dra_kube import EVENTS, PODS, RESOURCE_CLAIMS, Object
from zoo.asking import OWN_FINALIZER, Act, Beast, Tenant, request, spec

HOST = "kubernetes.io/hostname"


ONE = spec(request("req"))
NEVER = spec(request("req", kind="nothing"))


def placing(count: int, claim: Object = ONE, app: str = "a{}", **pod: Any) -> Act:
    """Make ``count`` pods with such a spec, which share a template; their labels ``app`` are of ten kinds."""

    async def release(tenant: Tenant) -> None:
        await tenant.template("shared", claim)
        await tenant.crowd(
            count,
            lambda it: tenant.pod(f"pod-{it}", template="shared", labels={"app": app.format(it % 10)}, **pod),
        )

    return release


def waiting(count: int, claim: Object = NEVER, **pod: Any) -> Act:
    """The same of a template that is never answered, with one label."""
    return placing(count, claim, "a", **pod)


def required(kind: str, terms: Any) -> Object:
    """The affinity of a pod."""
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def preferred(kind: str, terms: Any) -> Object:
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def term(**selector: Any) -> Object:
    """Pods that a selector selects, on one node."""
    return {"labelSelector": selector, "topologyKey": HOST}


def _terms(count: int, **more: Any) -> list[Object]:
    """Terms about other pods; each has another selector."""
    return [{**term(matchLabels={"app": f"other{number}"}), **more} for number in range(count)]


def _expressions(count: int) -> list[Object]:
    """Terms whose selectors no index answers."""
    return [
        term(
            matchExpressions=[
                {"key": "app", "operator": "NotIn", "values": [f"v{number}"]},
                {"key": f"absent{number}", "operator": "DoesNotExist"},
            ]
        )
        for number in range(count)
    ]


def _weighted(terms: Iterable[Object]) -> list[Object]:
    return [{"weight": 1 + number % 100, "podAffinityTerm": term} for number, term in enumerate(terms)]


def _spread(count: int) -> list[Object]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOST if number == 0 else f"zone{number}.example.com/x",
            "whenUnsatisfiable": "ScheduleAnyway" if number else "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": f"a{number}"}},
        }
        for number in range(count)
    ]


def _node_terms(count: int) -> list[Object]:
    return [
        {"matchExpressions": [{"key": HOST, "operator": "In", "values": [f"absent-{number}", f"none-{number}"]}]}
        for number in range(count)
    ]


def tolerations(count: int) -> list[Object]:
    return [
        {"key": f"k{number}.example.com/x", "operator": "Exists", "effect": "NoSchedule"} for number in range(count)
    ]


def _ports(count: int) -> list[Object]:
    ports = [{"containerPort": 1000 + number, "hostPort": 1000 + number} for number in range(count)]
    return [{"name": "main", "image": "none", "ports": ports}]


def _containers(count: int) -> list[Object]:
    room = {"requests": {"cpu": "1m", "memory": "1Ki", "ephemeral-storage": "1Ki"}}
    return [{"name": f"c{number}", "image": "none", "resources": room} for number in range(count)]


def _volumes(count: int) -> list[Object]:
    return [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": f"absent-{number}"}} for number in range(count)
    ]


async def many_labels(tenant: Tenant) -> None:
    """5,000 labels on each pod, and terms that look for them."""
    labels = {f"label{number}": "x" * 20 for number in range(5_000)}
    affinity = preferred("podAntiAffinity", _weighted([term(matchLabels=labels)]))
    await tenant.template("one", ONE)
    await tenant.pods(50, template="one", labels=labels, affinity=affinity)


async def many_entries(tenant: Tenant) -> None:
    """Pods with a hundred claims each, of which the last is never answered."""
    names = [f"claim-{number}" for number in range(99)]
    await tenant.each(tenant.claim(name, ONE) for name in names)
    await tenant.claim("never", NEVER)
    await tenant.pods(50, [*names, "never"])


def _environment(count: int) -> list[Object]:
    values = [{"name": f"E{number}", "value": "x" * 1_000} for number in range(count)]
    return [{"name": "main", "image": "none", "env": values}]


def _apart(terms: list[Object]) -> Act:
    return placing(10, affinity=required("podAntiAffinity", terms))


def _rather(kind: str, terms: list[Object]) -> Act:
    return placing(10, affinity=preferred(kind, _weighted(terms)))


def _on(count: int) -> Act:
    return placing(20, affinity=required("nodeAffinity", {"nodeSelectorTerms": _node_terms(count)}))


_EVERYWHERE: Object = {"namespaceSelector": {"matchExpressions": [{"key": "absent", "operator": "DoesNotExist"}]}}
_LABELLED: Object = {"namespaceSelector": {"matchLabels": {"team": "other"}}}
_PREFERENCES = [{"weight": 1 + number % 100, "preference": term} for number, term in enumerate(_node_terms(4_000))]
_SAID = r"bound|affinity|spread|node|port|volume|claim|gave up|cannot|not found"

PLACING: tuple[Beast, ...] = (
    Beast("anti-affinity", _apart(_terms(3_000)), _SAID),
    Beast("anti-affinity by expressions", _apart(_expressions(2_500)), _SAID),
    Beast("anti-affinity in all namespaces", _apart(_terms(2_000, **_EVERYWHERE)), _SAID),
    Beast("affinity", placing(10, affinity=required("podAffinity", _terms(3_000))), _SAID),
    Beast("weighted affinity", _rather("podAffinity", _terms(3_000)), _SAID),
    Beast("weighted anti-affinity", _rather("podAntiAffinity", _terms(2_000, **_LABELLED)), _SAID),
    Beast("a hundred rules", _apart(_terms(100, **_EVERYWHERE)), _SAID, short=True),
    Beast("spread constraints", placing(20, topologySpreadConstraints=_spread(1_000)), _SAID),
    Beast("node affinity", _on(4_000), _SAID),
    Beast("node affinity up to the bound", _on(450), _SAID),
    Beast("weighted node affinity", placing(20, affinity=preferred("nodeAffinity", _PREFERENCES)), _SAID),
    Beast("tolerations", placing(20, tolerations=tolerations(8_000)), _SAID),
    Beast("host ports", placing(20, hostNetwork=True, containers=_ports(5_000)), _SAID),
    Beast("containers", placing(20, containers=_containers(3_000)), _SAID),
    Beast("volumes without claims", placing(20, volumes=_volumes(3_000)), _SAID),
    Beast("a megabyte of environment", placing(50, containers=_environment(900)), _SAID),
    Beast("labels", many_labels, _SAID),
    Beast("a hundred claims each", many_entries, _SAID),
)
"""Pods of half a megabyte and more, as many as fit into a namespace without a quota."""


# --- Objects by the thousand, and objects that never rest ---

_turns = itertools.count()


async def idle_claims(tenant: Tenant) -> None:
    await tenant.crowd(10_000, lambda it: tenant.claim(f"claim-{it}", ONE))


async def crowded_claim(tenant: Tenant) -> None:
    """More pods on one claim than it takes."""
    await tenant.claim("shared", ONE)
    await tenant.pods(300, ["shared"])


async def without_template(tenant: Tenant) -> None:
    await tenant.pods(500, template="absent")


async def extended_template(tenant: Tenant) -> None:
    """A template that says its claims are another kind of claim."""
    mark = {"resource.kubernetes.io/extended-resource-claim": "true"}
    await tenant.template("extended", ONE, annotations=mark)
    await tenant.pods(30, template="extended")


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
    await tenant.pods(500, template="one", schedulingGates=gates)


async def nothing_yet(tenant: Tenant) -> None:
    await tenant.template("one", ONE)


async def come_and_go(tenant: Tenant) -> None:
    """Twenty pods a turn; those of an earlier turn go."""
    turn = next(_turns)
    await tenant.crowd(20, lambda it: tenant.pod(f"pod-{turn}-{it}", template="one"))
    await tenant.crowd(20, lambda it: tenant.delete(PODS, f"pod-{turn - 5}-{it}"))


async def relabel_claims(tenant: Tenant) -> None:
    patch = {"metadata": {"labels": {"turn": f"t{next(_turns)}"}}}
    await tenant.each(tenant.patch(RESOURCE_CLAIMS, f"claim-{number}", patch) for number in range(20))


async def relabel_pods(tenant: Tenant) -> None:
    patch = {"metadata": {"labels": {"app": f"t{next(_turns)}"}}}
    await tenant.each(tenant.patch(PODS, f"pod-{number}", patch) for number in range(20))


async def tell(tenant: Tenant) -> None:
    """A hundred events about a pod."""
    turn, now = next(_turns), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": tenant.namespace, "name": "pod-0"}
    base: Object = {"involvedObject": about, "type": "Warning", "reason": "FailedScheduling", "message": "x" * 1_000}
    base |= {"firstTimestamp": now, "lastTimestamp": now, "source": {"component": "tenant"}}

    def event(number: int) -> Object:
        return {"metadata": {"name": f"e-{turn}-{number}", "namespace": tenant.namespace}, **base}

    await tenant.crowd(100, lambda it: tenant.api.create(EVENTS, event(it)))


async def make_and_delete_claims(tenant: Tenant) -> None:
    """Twenty claims a turn; those of an earlier turn go."""
    turn = next(_turns)
    await tenant.each(tenant.claim(f"c-{turn}-{number}", ONE) for number in range(20))
    await tenant.each(tenant.delete(RESOURCE_CLAIMS, f"c-{turn - 5}-{number}") for number in range(20))


_APART = required("podAntiAffinity", [term(matchLabels={"app": "a"})])
_CROWDED = r"cannot satisfy|gave up|affinity|bound"
_NO_CLAIM = r"template|claim"

CROWDING: tuple[Beast, ...] = (
    Beast("claims that nothing uses", idle_claims, _CROWDED),
    Beast("a crowded claim", crowded_claim, r"bound|256|reserved"),
    Beast("pods that wait", waiting(2_000), _CROWDED),
    Beast("pods that keep away from each other", waiting(500, ONE, affinity=_APART), _CROWDED),
    Beast("pods without their template", without_template, _NO_CLAIM),
    Beast("a template of extended resources", extended_template, r"bound|extended", short=True),
    Beast("claims that stay", claims_that_stay, r"bound|delet"),
    Beast("pods that another gate holds", gated, r"gate", short=True),
    Beast("pods that come and go", nothing_yet, r"", come_and_go),
    Beast("claims that change", waiting(20), _CROWDED, relabel_claims),
    Beast("pods that change", waiting(20), _CROWDED, relabel_pods),
    Beast("pods that change and keep away", waiting(20, ONE, affinity=_APART), _CROWDED, relabel_pods, short=True),
    Beast("events", waiting(2), _CROWDED, tell),
    Beast("claims that come and go", nothing_yet, _CROWDED, make_and_delete_claims),
)
"""As fast as one small program writes."""
