"""Lists by the thousand in every field that a scheduler reads, and objects of a megabyte by the hundred."""

from __future__ import annotations

import itertools
from typing import Any

from dra_kube import PERSISTENT_VOLUME_CLAIMS, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Object
from zoo.asking import STORAGE, TOO_MANY, Act, Beast, Tenant, asking, equal, many, request, spec
from zoo.placing import HOST, NEVER, ONE, placing, required, term, tolerations

_ZONES = [HOST, *(f"zone{number}.example.com/name" for number in range(12))]
"""Labels that every node of the cage has."""


def _near(**more: Any) -> Object:
    return required("podAffinity", [{**term(matchLabels={"app": "a0"}), **more}])


def _anywhere(count: int) -> Object:
    """Return ``count`` terms, of which every node meets the last one: all of its topologies count."""
    absent = [{"key": HOST, "operator": "In", "values": [f"none-{number}"]} for number in range(count)]
    terms = [{"matchExpressions": [it]} for it in (*absent, {"key": HOST, "operator": "Exists"})]
    return required("nodeAffinity", {"nodeSelectorTerms": terms})


def _everywhere() -> list[Object]:
    """Two constraints for each label of a node."""
    return [
        {
            "maxSkew": 5,
            "topologyKey": key,
            "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "a0"}},
            "nodeTaintsPolicy": "Honor",
        }
        for key in _ZONES
        for when in ("DoNotSchedule", "ScheduleAnyway")
    ]


def _entries(count: int) -> Object:
    """Return the spec of a pod that asks for ``count`` claims from one template."""
    entries = [{"name": f"e{number}", "resourceClaimTemplateName": "one"} for number in range(count)]
    return {"resourceClaims": entries, "containers": [{"name": "main", "image": "none"}]}


async def thousands_of_entries(tenant: Tenant) -> None:
    """Two pods that ask for thousands of claims."""
    await tenant.template("one", NEVER)
    pod = _entries(tenant.some(6_000))
    await tenant.each(tenant.pod(f"pod-{number}", **pod) for number in range(2))


async def hundreds_of_entries(tenant: Tenant) -> None:
    """Twenty pods that ask for as many claims as a pod may."""
    await tenant.template("one", NEVER)
    await tenant.pods(20, **_entries(500))


async def extended_resources(tenant: Tenant) -> None:
    """Pods of thousands of containers that ask for a device each, by the name of its class."""
    wanted = {"deviceclass.resource.kubernetes.io/gpu": "1"}
    containers = [
        {"name": f"c{number}", "image": "none", "resources": {"requests": wanted, "limits": wanted}}
        for number in range(3_000)
    ]
    await tenant.pods(20, containers=containers)


def owned(count: int) -> Act:
    """So many pods that say who owns them, twelve thousand times."""

    async def release(tenant: Tenant) -> None:
        claim = await tenant.claim("owner", ONE)
        owner = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "name": "owner",
            "uid": claim["metadata"]["uid"],
        }
        owners = [{**owner, "controller": False} for _ in range(8_000)]
        claims = [f"claim-{number}" for number in range(tenant.some(count))]
        await tenant.each(tenant.claim(it, ONE, ownerReferences=owners) for it in claims)
        await tenant.each(tenant.pod(f"pod-{it}", [it]) for it in claims)

    return release


async def large_template(tenant: Tenant) -> None:
    """Two hundred pods, whose template makes claims of half a megabyte."""
    entry = {"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 10_000}}}
    claim = spec(request("req"))
    claim["devices"]["config"] = [entry] * 32
    await tenant.template("large", claim, annotations={"note": "x" * 200_000})
    await tenant.pods(200, template="large")


async def claimed_by_pods(tenant: Tenant) -> None:
    """Thousands of claims that say that one pod has made them."""
    await tenant.template("one", ONE)
    pod = await tenant.pod("pod-0", template="one")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-0", "uid": pod["metadata"]["uid"], "controller": True}
    note = {"resource.kubernetes.io/pod-claim-name": "entry-0"}
    await tenant.crowd(3_000, lambda it: tenant.claim(f"claim-{it}", ONE, ownerReferences=[owner], annotations=note))


async def volumes_with_claims(tenant: Tenant) -> None:
    """Pods with hundreds of volumes each, which wait for claims that no controller binds."""
    names = [f"volume-{number}" for number in range(300)]
    await tenant.each(
        tenant.api.create(
            PERSISTENT_VOLUME_CLAIMS,
            {"metadata": {"name": name, "namespace": tenant.namespace}, "spec": STORAGE},
        )
        for name in names
    )
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    await placing(100, volumes=volumes)(tenant)


def _choices() -> Object:
    """32 requests of 8 alternatives with 16 tolerations each, and 32 constraints."""
    keys = [{"key": f"k{number}.example.com/x", "operator": "Exists"} for number in range(16)]
    requests = [
        {
            "name": f"r{number}",
            "firstAvailable": [
                {"name": f"a{entry}", "deviceClassName": "hard", "count": 1 + entry % 2, "tolerations": keys}
                for entry in range(8)
            ],
        }
        for number in range(32)
    ]
    constraints = [
        {
            "requests": [f"r{number}", f"r{(number + 1) % 32}"],
            "matchAttribute": f"hard.example.com/{('three', 'four', 'eight')[number % 3]}",
        }
        for number in range(32)
    ]
    return spec(*requests, constraints=constraints)


_NEVER = (
    r"cannot satisfy|gave up|no device|none of|not enough|[Nn]o combination|search|asks for|count|allocates at most"
)
_SAID = r"bound|affinity|spread|node|port|volume|claim|gave up|cannot|not found|large"
_OTHERS = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [f"absent-{n}" for n in range(40_000)]}]}

SPRAWLING: tuple[Beast, ...] = (
    Beast("values by the thousand", placing(150, affinity=_near(labelSelector=_OTHERS)), _SAID, real=True),
    Beast(
        "namespaces by the thousand",
        placing(50, affinity=_near(namespaces=[f"ns-{n}" for n in range(40_000)])),
        _SAID,
        real=True,
    ),
    Beast(
        "a node selector by the thousand",
        placing(50, nodeSelector={f"label{n}": "x" for n in range(20_000)}),
        _SAID,
        real=True,
    ),
    Beast(
        "spread over selected nodes",
        placing(20, topologySpreadConstraints=_everywhere(), affinity=_anywhere(330), tolerations=tolerations(240)),
        _SAID,
        short=True,
    ),
    Beast("megabytes of tolerations", placing(200, tolerations=tolerations(10_000)), r"KiB", real=True),
    Beast("thousands of claims of one pod", thousands_of_entries, r"claim|cannot|large|KiB"),
    Beast("hundreds of claims of one pod", hundreds_of_entries, r"claim|cannot"),
    Beast("extended resources by the thousand", extended_resources, r"bound|cannot|KiB"),
    Beast("owners by the thousand", owned(100), r"bound|cannot|large", real=True),
    Beast("a template of half a megabyte", large_template, r"bound|allocates at most", real=True),
    Beast("claims that a pod never made", claimed_by_pods, r"bound|claim"),
    Beast("volumes with claims", volumes_with_claims, _SAID),
    Beast("choices with constraints", asking(20, _choices()), _NEVER),
    Beast("more devices than numbers", asking(50, spec(request("req", count=2**63 - 1))), TOO_MANY),
    Beast(
        "shares of all sizes",
        asking(50, spec(*many(32, kind="share", capacity={"requests": {"memory": "1e18"}}))),
        _NEVER,
    ),
)
"""Up to a megabyte each, as many as one user makes in a minute."""


# --- Objects on which hundreds of pods wait, and that change ten times a second ---

_turns = itertools.count()
_BESIDE = required("podAffinity", [term(matchLabels={"mood": "good"})])
# what another namespace uses and gives back all the time
_VISITORS = spec(*many(9, kind="visitor"), request("never", kind="nothing"), constraints=[equal("absent")])


async def sharers(tenant: Tenant) -> None:
    """A thousand pods of one claim, which has no devices."""
    await tenant.claim("shared", NEVER)
    await tenant.pods(1_000, ["shared"])


async def replace_the_claim(tenant: Tenant) -> None:
    await tenant.delete(RESOURCE_CLAIMS, "shared")
    await tenant.again(tenant.claim("shared", NEVER))


async def relabel_the_claim(tenant: Tenant) -> None:
    await tenant.patch(RESOURCE_CLAIMS, "shared", {"metadata": {"annotations": {"turn": f"{next(_turns)}"}}})


async def moody(tenant: Tenant) -> None:
    """Pods that run, and hundreds that want to be near those of a certain mood, but have no devices."""
    await tenant.template("one", ONE)
    await tenant.template("never", NEVER)
    await tenant.each(tenant.pod(f"calm-{number}", template="one") for number in range(8))
    await tenant.pods(500, template="never", affinity=_BESIDE)


async def change_mood(tenant: Tenant) -> None:
    """All that run change a label that decides about the others."""
    patch = {"metadata": {"labels": {"mood": ("good", "bad")[next(_turns) % 2]}}}
    await tenant.each(tenant.patch(PODS, f"calm-{number}", patch) for number in range(8))


async def running(tenant: Tenant) -> None:
    names = [f"pod-{number}" for number in range(20)]
    await tenant.each(tenant.pod_with(name, ONE) for name in names)


async def take_finalizers(tenant: Tenant) -> None:
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
    await tenant.pods(500, template="shy")


async def replace_the_template(tenant: Tenant) -> None:
    if next(_turns) % 2:
        await tenant.delete(RESOURCE_CLAIM_TEMPLATES, "shy")
    else:
        await tenant.again(tenant.template("shy", NEVER))


async def immediate(tenant: Tenant) -> None:
    """Claims that want devices at once, and never get any."""
    note = {"dra.kopf.dev/allocate": "immediate"}
    await tenant.crowd(2_000, lambda it: tenant.claim(f"claim-{it}", _VISITORS, annotations=note))


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


_RESTLESS = r"bound|cannot satisfy|gave up|affinity|claim|template"
_ANY = r""

RESTLESS: tuple[Beast, ...] = (
    Beast("a claim of a thousand pods that comes and goes", sharers, _RESTLESS, replace_the_claim),
    Beast("a claim of a thousand pods that changes", sharers, _RESTLESS, relabel_the_claim),
    Beast("labels that sway others", moody, _RESTLESS, change_mood, short=True),
    Beast("finalizers that are taken away", running, r"bound", take_finalizers, short=True),
    Beast("claims that are immediate now and then", running, r"bound", take_annotations),
    Beast("annotations of megabytes", running, r"bound", write_megabytes),
    Beast("a template that comes and goes", waits_for_template, _RESTLESS, replace_the_template),
    Beast("pods that wait for a neighbour's devices", placing(2_000, _VISITORS), _RESTLESS),
    Beast(
        "important pods that wait for them",
        placing(500, _VISITORS, priorityClassName="system-cluster-critical"),
        _RESTLESS,
    ),
    Beast("immediate claims", immediate, _ANY),
    Beast("pods of no scheduler", of_nobody, _ANY),
)
"""As fast as one small program writes."""
