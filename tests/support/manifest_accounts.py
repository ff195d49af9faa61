"""The accounts of the manifests: what their roles allow, rule by rule, what they ask for, and uses of every verb."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bare_client import DRA, NODES, Client, path_of, pod
from command import ROOT
from dra_api import yaml_text
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import ResourceClaim, ResourcePoolStatusRequest
from dra_devcluster.apiserver.rbac import GROUP, Attributes, Rbac, Rule, User
from dra_devcluster.apiserver.store import Store
from dra_kube import (
    EVENTS,
    LEASES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    Api,
    Conflict,
    Election,
    Forbidden,
    LeaseLock,
)
from dra_kubeletplugin import ClaimRef, DeviceStatus, report_devices
from dra_kubeletplugin.slices.writer import RateLimit, SliceView, SliceWriter, stored
from dra_operator.app.leader import lease_name
from dra_operator.kube import EventReason, EventRecorder
from dra_operator.kube.claims import ClaimWriter
from dra_operator.kube.writers import PoolRequestWriter
from objects import on_node

Json = dict[str, Any]


class _Recorder(logging.Handler):
    def __init__(self, seen: set[Attributes]) -> None:
        super().__init__(logging.DEBUG)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        asked = record.args[0] if isinstance(record.args, tuple) else None
        if isinstance(asked, Attributes) and asked.resource:
            self._seen.add(asked)


@contextmanager
def recorded() -> Iterator[set[Attributes]]:
    """Every question about a resource that development clusters of this process answer meanwhile."""
    log, seen = logging.getLogger("dra_devcluster.requests"), set[Attributes]()
    handler, level = _Recorder(seen), log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        yield seen
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = True


_RBAC_KINDS = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")


def rules_of(objects: Iterable[Json]) -> Rbac:
    """Roles and bindings, as objects of manifests, as an authorizer; other objects are left out."""
    store = Store()
    rbac = Rbac(store)
    for obj in objects:
        if obj["kind"] in _RBAC_KINDS:
            store.collection(GROUP, f"{obj['kind'].lower()}s").put({**obj, "metadata": dict(obj["metadata"])}, {})
    return rbac


def namespace_of(name: str) -> str:
    """Where the manifests put what has this name."""
    return "dra-plugins" if name == "dra-plugin" else "dra-system"


def account(name: str) -> User:
    """A service account of the manifests as a user, without its groups."""
    return User(f"system:serviceaccount:{namespace_of(name)}:{name}")


def single_rules(objects: Iterable[Json]) -> Iterator[Rule]:
    """What the roles allow, in rules of one verb and one resource."""
    for obj in objects:
        if obj["kind"] in ("ClusterRole", "Role"):
            for rule in obj["rules"]:
                yield from Rule.of(rule).parts()


FILES = (
    *("operator/namespace", "operator/rbac", "operator/policy", "operator/viewer"),
    *("plugin/namespace", "plugin/rbac", "plugin/policy"),
)
REPORTING = ("components/device-status/rbac", "components/device-status/policy")
"""What a plugin gets whose driver reports devices."""
DRIVER = "simulated.dra.example.com"
SLICES = f"{DRA}/resourceslices"
ON_NODE_1 = {
    "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu"}]},
    "nodeSelector": on_node("node-1"),
}
"""The allocation of a claim whose device is on node-1."""
VIEWER = "vera"
"""A person in the group ``viewers``, to which ``grant`` binds the role for people."""
_NODE = "authentication.kubernetes.io/node-name"
_VIEWERS: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "dra-viewers"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dra-viewer"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "viewers"}],
}


def objects(files: Iterable[str] = FILES) -> list[Json]:
    """Namespaces, accounts, roles, bindings and the policies, as the manifests have them."""
    texts = [(ROOT / "manifests" / f"{file}.yaml").read_text() for file in files]
    return [obj for text in texts for obj in yaml_text.load_all(text)]


async def grant(client: Client, *more: Json) -> None:
    """Create all of it, and ``more``, as administrator."""
    for obj in [*objects(), _VIEWERS, *more]:
        await client.post(path_of(obj), obj)


def operator(client: Client) -> Client:
    return _as_account(client, "dra-operator")


def plugin_on(client: Client, node: str) -> Client:
    """The plugin, with a token that names the node, or with one that names none."""
    return _as_account(client, "dra-plugin", **({_NODE: node} if node else {}))


def viewer(client: Client) -> Client:
    """A person who may view."""
    return client.impersonating(VIEWER, "viewers", "system:authenticated")


def _as_account(client: Client, name: str, **extra: str) -> Client:
    namespace = namespace_of(name)
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return client.impersonating(account(name).name, *groups, **extra)


def slice_of(node: str, name: str = "") -> dict[str, Any]:
    """A slice of a node, or of all nodes."""
    pool = {"name": node or "all", "generation": 1, "resourceSliceCount": 1}
    where = {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"slice-of-{node or 'all'}"},
        "spec": {"driver": DRIVER, "pool": pool, "devices": [{"name": "gpu"}], **where},
    }


async def furnish(client: Client) -> None:
    """Two nodes, a slice of each and one of all nodes, made by the administrator."""
    for node in ("node-1", "node-2"):
        await client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    for node in ("node-1", "node-2", ""):
        await client.post(SLICES, slice_of(node))


# --- Uses of verbs that the roles of the manifests grant and an everyday story does not need, by account and verb ---

Use = Callable[[Api, Api], Awaitable[None]]
"""What is done with the account's Api, and the administrator's. Raises Forbidden, or fails, where it may not."""


async def an_event_is_repeated(operator: Api, administrator: Api) -> None:
    """The second event of a text counts up the first one."""
    recorder = EventRecorder(operator, "dra-operator", clock=lambda: 0.0, now=lambda: "2026-01-01T00:00:00Z")
    about = convert(Pod, {**pod("p"), "metadata": {"name": "p", "namespace": "default", "uid": "u"}})
    writing = asyncio.create_task(recorder.run())
    for _ in range(2):
        recorder.post(about, EventReason.FAILED_SCHEDULING, "because")
    await recorder.flush(30)
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    events = [event for event in (await administrator.list(EVENTS, "default"))[0] if event["message"] == "because"]
    counts = [event["count"] for event in events]
    await administrator.delete(EVENTS, events[0]["metadata"]["name"], "default")
    if counts != [2]:
        raise Forbidden(403, "Forbidden", f"one event that counts 2 was expected: {counts}")


async def a_deleted_lease_is_written_again(operator: Api, administrator: Api) -> None:
    """The manifests have the Lease; if it is gone all the same, its leader goes on."""
    name = lease_name("dra-scheduler")
    lock = LeaseLock(operator, "kube-system", name, Election("test"))
    assert await lock.attempt()
    await administrator.delete(LEASES, name, "kube-system")


async def an_old_request_is_deleted(operator: Api, administrator: Api) -> None:
    """A ResourcePoolStatusRequest goes when it is a day old."""
    body = {"metadata": {"name": "old"}, "spec": {"driver": DRIVER}}
    made = await administrator.create(RESOURCE_POOL_STATUS_REQUESTS, body)
    try:
        request = convert(ResourcePoolStatusRequest, made)
        await PoolRequestWriter(operator, lambda _: None).delete(request)
    except Forbidden:
        await administrator.delete(RESOURCE_POOL_STATUS_REQUESTS, "old")
        raise


async def a_large_template_is_read(operator: Api, administrator: Api) -> None:
    """Little is kept of it, and a claim is made from the whole."""
    body = {"metadata": {"name": "large"}, "spec": {"spec": {"devices": {}}}}
    await administrator.create(RESOURCE_CLAIM_TEMPLATES, body, "default")
    try:
        await ClaimWriter(operator, lambda *_: None, lambda *_: None, lambda: None).template("default", "large")
    finally:
        await administrator.delete(RESOURCE_CLAIM_TEMPLATES, "large", "default")


async def a_slice_is_read_after_a_conflict(plugin: Api, administrator: Api) -> None:
    """The publisher wants to see what another one wrote."""
    old = await administrator.get(RESOURCE_SLICES, "slice-of-node-1")
    label = {"metadata": {"labels": {"changed": old["metadata"]["resourceVersion"]}}}
    await administrator.patch(RESOURCE_SLICES, "slice-of-node-1", label)
    view = SliceView(60.0)
    with suppress(Conflict):
        await SliceWriter(plugin, view, RateLimit(50.0, 100)).delete(stored(old))
    (seen,) = view.pool("node-1", 0.0)
    assert seen.slice.metadata.resource_version != old["metadata"]["resourceVersion"]


async def a_driver_speaks_of_its_devices(plugin: Api, administrator: Api) -> None:
    """``status.devices`` of a claim on the plugin's own node."""
    held = convert(ResourceClaim, await plugin.get(RESOURCE_CLAIMS, "here", "default"))
    claim = ClaimRef("default", "here", held.metadata.uid)
    before = len(held.status.devices or ())
    said = [DeviceStatus(pool="node-1", device="gpu", data={"round": before})] if not before else []
    try:
        await report_devices(plugin, DRIVER, claim, said, part="node-1")
    except Exception as error:  # the API server says 403 for one verb and 422 for the other
        raise Forbidden(403, "Forbidden", str(error)) from error


USES: dict[tuple[str, str, str], Use] = {
    ("dra-operator", "patch", "events"): an_event_is_repeated,
    ("dra-operator", "delete", "resourcepoolstatusrequests"): an_old_request_is_deleted,
    ("dra-operator", "get", "resourceclaimtemplates"): a_large_template_is_read,
    ("dra-operator", "create", "leases"): a_deleted_lease_is_written_again,
    ("dra-plugin", "get", "resourceslices"): a_slice_is_read_after_a_conflict,
}
REPORTING_USES: dict[tuple[str, str, str], Use] = {
    ("dra-plugin", "patch", "resourceclaims/status"): a_driver_speaks_of_its_devices,
    ("dra-plugin", "associated-node:patch", "resourceclaims/driver"): a_driver_speaks_of_its_devices,
}
"""Those of a plugin whose driver reports devices."""
