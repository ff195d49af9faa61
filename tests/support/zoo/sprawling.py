"""Lists by the thousand in every field that a scheduler reads, and objects of a megabyte by the hundred."""

from __future__ import annotations

from typing import Any

from dra_kube import PERSISTENT_VOLUME_CLAIMS, Object

from zoo.asking import TOO_MANY, many, request, spec
from zoo.placing import HOST, placing
from zoo.tenant import Act, Beast, Tenant

_ZONES = [HOST, *(f"zone{number}.example.com/name" for number in range(12))]
"""Labels that every node of the cage has."""


def _values(count: int) -> list[str]:
    return [f"absent-{number}" for number in range(count)]


def _near(**term: Any) -> Object:
    term = {"labelSelector": {"matchLabels": {"app": "a0"}}, "topologyKey": HOST, **term}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _on(requirements: list[Object]) -> Object:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [it]} for it in requirements]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _absent(count: int) -> list[Object]:
    """Requirements that every node meets, so that all of its topologies count."""
    return [{"key": HOST, "operator": "In", "values": [f"none-{number}"]} for number in range(count)] + [
        {"key": HOST, "operator": "Exists"}
    ]


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


def _tolerations(count: int) -> list[Object]:
    return [
        {"key": f"k{number}.example.com/x", "operator": "Exists", "effect": "NoSchedule"} for number in range(count)
    ]


async def thousands_of_entries(tenant: Tenant) -> None:
    """Pods that ask for thousands of claims from one template."""
    await tenant.template("one", spec(request("req", kind="nothing")))
    entries = [{"name": f"e{number}", "resourceClaimTemplateName": "one"} for number in range(tenant.some(6_000))]
    plain = [{"name": "main", "image": "none"}]
    await tenant.each(tenant.pod(f"pod-{number}", resourceClaims=entries, containers=plain) for number in range(2))


async def hundreds_of_entries(tenant: Tenant) -> None:
    """Twenty pods that ask for as many claims as a pod may."""
    await tenant.template("one", spec(request("req", kind="nothing")))
    entries = [{"name": f"e{number}", "resourceClaimTemplateName": "one"} for number in range(500)]
    plain = [{"name": "main", "image": "none"}]
    await tenant.each(
        tenant.pod(f"pod-{number}", resourceClaims=entries, containers=plain) for number in range(tenant.some(20))
    )


async def extended_resources(tenant: Tenant) -> None:
    """Pods of thousands of containers that ask for a device each, by the name of its class."""
    wanted = {"deviceclass.resource.kubernetes.io/gpu": "1"}
    containers = [
        {"name": f"c{number}", "image": "none", "resources": {"requests": wanted, "limits": wanted}}
        for number in range(3_000)
    ]
    await tenant.each(tenant.pod(f"pod-{number}", containers=containers) for number in range(tenant.some(20)))


def owned(count: int) -> Act:
    """So many pods that say who owns them, twelve thousand times."""

    async def release(tenant: Tenant) -> None:
        claim = await tenant.claim("owner", spec(request("req")))
        owner = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "name": "owner",
            "uid": claim["metadata"]["uid"],
        }
        owners = [{**owner, "controller": False} for _ in range(8_000)]
        claims = [f"claim-{number}" for number in range(tenant.some(count))]
        await tenant.each(tenant.claim(it, spec(request("req")), ownerReferences=owners) for it in claims)
        await tenant.each(tenant.pod(f"pod-{it}", [it]) for it in claims)

    return release


async def large_template(tenant: Tenant) -> None:
    """Two hundred pods, whose template makes claims of half a megabyte."""
    entry = {"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 10_000}}}
    claim = spec(request("req"))
    claim["devices"]["config"] = [entry] * 32
    await tenant.template("large", claim, annotations={"note": "x" * 200_000})
    await tenant.each(tenant.pod(f"pod-{number}", template="large") for number in range(tenant.some(200)))


async def claimed_by_pods(tenant: Tenant) -> None:
    """Thousands of claims that say that one pod has made them."""
    await tenant.template("one", spec(request("req")))
    pod = await tenant.pod("pod-0", template="one")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-0", "uid": pod["metadata"]["uid"], "controller": True}
    note = {"resource.kubernetes.io/pod-claim-name": "entry-0"}
    await tenant.each(
        tenant.claim(f"claim-{number}", spec(request("req")), ownerReferences=[owner], annotations=note)
        for number in range(tenant.some(3_000))
    )


async def volumes_with_claims(tenant: Tenant) -> None:
    """Pods with hundreds of volumes each, which wait for claims that no controller binds."""
    names = [f"volume-{number}" for number in range(300)]
    room = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    await tenant.each(
        tenant.api.create(
            PERSISTENT_VOLUME_CLAIMS,
            {"metadata": {"name": name, "namespace": tenant.namespace}, "spec": room},
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


def _asking(count: int, claim: Object) -> Act:
    async def release(tenant: Tenant) -> None:
        await tenant.each(tenant.pod_with(f"pod-{number}", claim) for number in range(tenant.some(count)))

    return release


_NEVER = (
    r"cannot satisfy|gave up|no device|none of|not enough|[Nn]o combination|search|asks for|count|allocates at most"
)
_SAID = r"bound|affinity|spread|node|port|volume|claim|gave up|cannot|not found|large"

SPRAWLING: tuple[Beast, ...] = (
    Beast(
        "values by the thousand",
        placing(
            150,
            affinity=_near(
                labelSelector={"matchExpressions": [{"key": "app", "operator": "NotIn", "values": _values(40_000)}]}
            ),
        ),
        _SAID,
        real=True,
    ),
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
        placing(20, topologySpreadConstraints=_everywhere(), affinity=_on(_absent(330)), tolerations=_tolerations(240)),
        _SAID,
        short=True,
    ),
    Beast("megabytes of tolerations", placing(200, tolerations=_tolerations(10_000)), r"KiB", real=True),
    Beast("thousands of claims of one pod", thousands_of_entries, r"claim|cannot|large|KiB"),
    Beast("hundreds of claims of one pod", hundreds_of_entries, r"claim|cannot"),
    Beast("extended resources by the thousand", extended_resources, r"bound|cannot|KiB"),
    Beast("owners by the thousand", owned(100), r"bound|cannot|large", real=True),
    Beast("a template of half a megabyte", large_template, r"bound|allocates at most", real=True),
    Beast("claims that a pod never made", claimed_by_pods, r"bound|claim"),
    Beast("volumes with claims", volumes_with_claims, _SAID),
    Beast("choices with constraints", _asking(20, _choices()), _NEVER),
    Beast("more devices than numbers", _asking(50, spec(request("req", count=2**63 - 1))), TOO_MANY),
    Beast(
        "shares of all sizes",
        _asking(50, spec(*many(32, kind="share", capacity={"requests": {"memory": "1e18"}}))),
        _NEVER,
    ),
)
"""Up to a megabyte each, as many as one user makes in a minute."""
