"""The roles of the manifests are what their users need: one verb more is not used, one verb less is missed.

A story that takes everything a user can ask of operator, plugin and ``kubectl dra`` runs where RBAC is enforced, and
every question to authorization is written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
import yaml
from command import ROOT, running
from deployment_site import Site, deployment_site
from dra_devcluster.apiserver.rbac import Rule
from dra_kube import (
    DEVICE_TAINT_RULES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    Api,
)
from manifest_accounts import USES as RARE
from manifest_accounts import Json, account, rules_of, single_rules
from rounds import LONG
from volume_lab import SELECTED, on_nodes, storage_class, uses, volume
from waiting import until

DRA, DRIVER = "resource.k8s.io", "simulated.dra.example.com"
ON = ("DRADeviceTaintRules", "DRAResourcePoolStatus", "GenericWorkload", "DRAWorkloadResourceClaims")
REVIEWS = {"authorization.k8s.io", "authentication.k8s.io"}
"""Everyone may ask for their own rights, by a role of Kubernetes. About the operator's, ``doctor`` asks in vain."""
GATES = ["--feature-gates", ",".join(f"{gate}=true" for gate in ON)]
ROLES = {
    "dra-operator": ("dra-operator", "dra-operator-leader-election"),
    "dra-plugin": ("dra-plugin",),
    "viewer": ("dra-viewer",),
}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with deployment_site() as made:
        yield made


@LONG
async def test_no_verb_is_missing_and_none_is_too_much(site: Site) -> None:
    await site.deploy([*GATES, "--preemption"])
    await site.kubectl("create", "serviceaccount", "viewer", "--namespace", "dra-system")
    await site.kubectl("create", "clusterrolebinding", "viewer", "--clusterrole=dra-viewer",
                       "--serviceaccount=dra-system:viewer")  # fmt: skip
    await site.runs()
    async with Api(site.cluster.connection()) as api:
        await the_story(site, api)
    objects = await site.rendered()
    rbac = rules_of([*objects, viewer_binding()])
    unused, missing, doubled, allowed = [], [], [], set()
    for name, roles in ROLES.items():
        asked = [each for each in site.requests if each.user.name == account(name).name]
        missing += [str(each) for each in asked if each.group not in REVIEWS and not rbac.decide(each).allowed]
        rules = list(single_rules(obj for obj in objects if obj["metadata"]["name"] in roles))
        doubled += [str(rule) for rule, times in Counter(rules).items() if times > 1]
        allowed |= {(name, *words(rule)) for rule in rules}
        unused += [(name, *words(rule)) for rule in rules if not any(rule.allows(each) for each in asked)]
    assert missing == []
    assert doubled == []
    assert [use for use in unused if use not in RARE] == []
    assert set(RARE) <= allowed, "an exception for what no role allows"


def words(rule: Rule) -> tuple[str, str]:
    """Verb and resource of a single rule."""
    return rule.verbs[0], rule.resources[0]


def viewer_binding() -> Json:
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": "dra-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dra-viewer"}
    return {"kind": "ClusterRoleBinding", "metadata": {"name": "viewer"}, "roleRef": role, "subjects": [subject]}


async def the_story(site: Site, api: Api) -> None:
    """Examples run, slices are repaired, volumes are reserved, pools are counted, pods end, and the rest is evicted."""
    await until("slices of the plugins", partial(slices, api))
    await a_claim_goes_when_its_pod_has_ended(api)
    await site.kubectl("apply", "-f", "manifests/examples")
    await site.kubectl("apply", "-f", "manifests/examples/more/pod-group.yaml")
    await site.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
    await slices_are_repaired(api)
    await volumes_are_reserved_and_requested(api)
    await pools_are_counted(api)
    await people_ask(site)
    await everything_is_evicted(api)


async def slices(api: Api) -> list[Json]:
    return [each for each in (await api.list(RESOURCE_SLICES))[0] if each["spec"]["driver"] == DRIVER]


async def slices_are_repaired(api: Api) -> None:
    changed, other = (await slices(api))[:2]
    wanted = changed["spec"]["devices"]
    changed["spec"]["devices"] = wanted[:1]
    await api.update(RESOURCE_SLICES, changed)
    extra = {**other["spec"], "pool": {**other["spec"]["pool"], "name": "unknown"}}
    await api.create(RESOURCE_SLICES, {"metadata": {"name": "extra"}, "spec": extra})

    async def as_before() -> bool:
        now = await slices(api)
        return "extra" not in {each["metadata"]["name"] for each in now} and all(
            each["spec"]["devices"] == wanted for each in now
        )

    await until("slices as they were", as_before)


async def volumes_are_reserved_and_requested(api: Api) -> None:
    """One claim has a volume that waits for it, another needs a new one."""
    for name, provisioner in (("there", "kubernetes.io/no-provisioner"), ("to-be-made", "csi.example.com")):
        await api.create(STORAGE_CLASSES, {**storage_class(name, provisioner), "metadata": {"name": name}})
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                 "storageClassName": name}  # fmt: skip
        await api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": named(name), "spec": claim})
        await api.create(PODS, pod(name, volumes=uses(name)))
    free = volume("free", affinity=on_nodes("node-1"), class_name="there", spec={"hostPath": {"path": "/tmp"}})
    await api.create(PERSISTENT_VOLUMES, {**free, "metadata": {"name": "free"}})
    await api.patch(PERSISTENT_VOLUMES, "free", {"status": {"phase": "Available"}}, subresource="status")

    async def reserved() -> bool:
        return "claimRef" in (await api.get(PERSISTENT_VOLUMES, "free"))["spec"]

    async def requested() -> bool:
        claim = await api.get(PERSISTENT_VOLUME_CLAIMS, "to-be-made", "default")
        return SELECTED in claim["metadata"].get("annotations", {})

    await until("the volume is reserved", reserved)
    await until("a node is selected for the new volume", requested)


async def pools_are_counted(api: Api) -> None:
    await api.create(RESOURCE_POOL_STATUS_REQUESTS, {"metadata": {"name": "all"}, "spec": {"driver": DRIVER}})

    async def counted() -> Any:
        return (await api.get(RESOURCE_POOL_STATUS_REQUESTS, "all")).get("status")

    await until("the pools are counted", counted)


async def a_claim_goes_when_its_pod_has_ended(api: Api) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "simulated"}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    await api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": named("short"), "spec": spec})
    ended = pod("short", restartPolicy="Never", resourceClaims=[{"name": "c", "resourceClaimTemplateName": "short"}])
    await api.create(PODS, ended)

    async def over() -> bool:
        phase = (await api.get(PODS, "short", "default")).get("status", {}).get("phase")
        claims = [each["metadata"]["name"] for each in (await api.list(RESOURCE_CLAIMS, "default"))[0]]
        return phase == "Succeeded" and not any(name.startswith("short-") for name in claims)

    await until("the pod ended and its claim is gone", over)
    await api.delete(PODS, "short", "default")


QUESTIONS = [
    *(f"why {what} {' '.join(GATES)}" for what in ("pod inline-claim", "claim external-claim", "-A")),
    *("top", "devices", "claims", "pools", "who node-1", "free", "topology node-1", "snapshot"),
    *("doctor", "drain node-1", f"taint {DRIVER}/node-1/gpu-0 --dry-run", "defrag --for mix"),
    *("lint --live -f manifests/examples/inline-claim.yaml", "fit -f manifests/examples/inline-claim.yaml"),
]
"""What a person with the ClusterRole dra-viewer may ask ``kubectl dra``: all but what changes something."""


async def people_ask(site: Site) -> None:
    """Nothing of it is refused; some answers end with the code 3, which says that something is in the way."""
    viewer = await site.account("viewer")
    for question in QUESTIONS:
        async with running(["kubectl-dra", *question.split()], cwd=ROOT, KUBECONFIG=viewer) as command:
            assert await command.end() in (0, 3), (question, command.output)


async def everything_is_evicted(api: Api) -> None:
    taint = {"key": "dra.example.com/unhealthy", "value": "Down", "effect": "NoExecute"}
    rule = {"deviceSelector": {"driver": DRIVER}, "taint": taint}
    await api.create(DEVICE_TAINT_RULES, {"metadata": {"name": "all"}, "spec": rule})

    async def evicted() -> bool:
        names = {each["metadata"]["name"] for each in (await api.list(PODS, "default"))[0]}
        status = (await api.get(DEVICE_TAINT_RULES, "all")).get("status")
        return "inline-claim" not in names and bool(status)

    await until("pods are evicted, and the rule says so", evicted)


def named(name: str) -> Json:
    return {"name": name, "namespace": "default"}


def pod(name: str, **spec: Any) -> Json:
    container: Json = {"name": "main", "image": "busybox:1.37", "command": ["true"]}
    if "resourceClaims" in spec:
        container["resources"] = {"claims": [{"name": "c"}]}
    return {
        "metadata": named(name),
        "spec": {"schedulerName": "dra-scheduler", "containers": [container], **spec},
    }


def without(rule: Json, resources: Sequence[str]) -> list[Json]:
    """The rule, with nothing but reading of the resources."""
    others = [each for each in rule["resources"] if each not in resources]
    reading = [verb for verb in rule["verbs"] if verb in ("get", "list", "watch")]
    parts = [{**rule, "resources": others}] if others else []
    return [*parts, {**rule, "resources": resources, "verbs": reading}] if reading else parts


REMOVED = [
    (("resourceclaims/binding",), "inline-claim.yaml"),
    (("resourceclaims/status", "resourceclaims/binding"), "inline-claim.yaml"),
    (("pods/binding",), "external-claim.yaml"),
    (("resourceclaims",), "inline-claim.yaml"),
]
"""What the operator is not allowed any more, and an example that needs it."""


@LONG
async def test_a_missing_permission_is_said_in_the_pod_and_its_grant_heals(site: Site) -> None:
    kubectl = site.kubectl
    await site.deploy()
    await site.runs()
    for resources, file in REMOVED:
        role = await kubectl.read("clusterrole", "dra-operator")
        role["rules"] = [part for rule in role["rules"] for part in without(rule, resources)]
        await kubectl("replace", "-f", "-", stdin=yaml.safe_dump(role))
        await kubectl("apply", "-f", f"manifests/examples/{file}")
        name = file.removesuffix(".yaml")

        async def said(name: str = name, resource: str = resources[0]) -> bool:
            pod = await kubectl.read("pod", name)
            events = await kubectl("events", "--for", f"pod/{name}")
            return f'resource "{resource}" in API group' in str(pod.get("status", {}).get("conditions")) + events

        await until(f"{name} says that {resources[0]} is not allowed", said)
        await kubectl("apply", "-k", "manifests/operator")
        await kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
        await kubectl("delete", "-f", f"manifests/examples/{file}", "--timeout=60s")
