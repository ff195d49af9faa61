"""A driver and its controller write events in their own name about their own pod, as the policies say, and no others.

The thief has the token of a pod of the driver, and more rights than the roles give: the policy holds for every verb.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bare_client import DRA, EVENTS, NAMESPACES, PATCH, Answer, Client, client_of, path_of, pod
from command import ROOT
from dra_api import yaml_text
from dra_devcluster.apiserver import DevApiServer
from dra_kube import Api, connection
from dra_kubeletplugin import Owner, Pool, device
from dra_kubeletplugin.commands.subcommands import create
from dra_kubeletplugin.slices import SlicePublisher
from rbac_cases import RELEASES, rbac_server
from waiting import until

Json = dict[str, Any]
NODE, POD = "node-1", "driver-x"


class Theft(NamedTuple):
    """A request with words of its refusal, which are empty if it is allowed."""

    method: str
    path: str
    body: Json | None
    refused: str


class Site(NamedTuple):
    """An account, its driver, and where its objects come from."""

    namespace: str
    account: str
    driver: str
    objects: Callable[[Path], list[Json]]

    @property
    def events(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/events"

    def user(self, client: Client, **extra: str) -> Client:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated")
        prefixed = {f"authentication.kubernetes.io/{key.replace('_', '-')}": value for key, value in extra.items()}
        return client.impersonating(f"system:serviceaccount:{self.namespace}:{self.account}", *groups, **prefixed)

    def event(self, name: str) -> Json:
        """What the account may write."""
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace, "name": POD, "uid": "uid-x"}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name},
            "involvedObject": about,
            "type": "Warning",
            "reason": "ContestedPool",
            "message": "another client",
            "source": {"component": self.driver},
            "reportingComponent": self.driver,
            "reportingInstance": POD,
        }


def _of_the_manifests(_: Path) -> list[Json]:
    texts = [(ROOT / f"manifests/plugin/{file}.yaml").read_text() for file in ("namespace", "rbac", "policy")]
    return [obj for text in texts for obj in yaml_text.load_all(text)]


def _generated(name: str, *, network_attached: bool) -> Callable[[Path], list[Json]]:
    def objects(folder: Path) -> list[Json]:
        paths = create(name, folder / "new", network_attached=network_attached)
        (manifest,) = (path for path in paths if path.name.endswith("_driver.yaml"))
        groups = ("rbac.authorization.k8s.io", "admissionregistration.k8s.io")
        return [
            obj
            for obj in yaml_text.load_all(manifest.read_text())
            if obj["kind"] in ("Namespace", "ServiceAccount") or obj["apiVersion"].startswith(groups)
        ]

    return objects


SITES = {
    "manifests": Site("dra-plugins", "dra-plugin", "simulated.dra.example.com", _of_the_manifests),
    "new": Site("gpu-driver", "gpu-driver", "gpu.example.com", _generated("gpu.example.com", network_attached=False)),
    "controller": Site(
        "net-driver", "net-driver-controller", "net.example.com", _generated("net.example.com", network_attached=True)
    ),
}


def thefts(site: Site) -> list[Theft]:
    """What a thief tries, from an event that the account may write."""

    def new(refused: str, **fields: Any) -> Theft:
        return Theft("POST", site.events, {**site.event("new"), **fields}, refused)

    def about(**fields: str) -> Theft:
        return new("only about its own pod", involvedObject={**site.event("new")["involvedObject"], **fields})

    who = "only as component"
    return [
        new(""),
        new("", source={"component": site.driver, "host": NODE}),
        new(who, source={"component": site.driver, "host": "node-2"}),
        new(who, source={"component": "kubelet"}, reportingComponent="kubelet"),
        new(who, source={"component": "kubelet"}),
        new(who, source={}),
        new(who, reportingComponent="kubelet"),
        new(who, reportingInstance="driver-y"),
        about(name="driver-y"),
        about(uid="uid-y"),
        about(uid=""),
        about(kind="Node"),
        about(kind="ResourceClaim", apiVersion="resource.k8s.io/v1"),
        Theft("PATCH", f"{site.events}/theirs", {"count": 2}, who),
        Theft("DELETE", f"{site.events}/theirs", None, who),
        Theft("PATCH", f"{site.events}/ours", {"source": {"component": "kubelet"}}, who),
        Theft("PATCH", f"{site.events}/ours", {"count": 2}, ""),
        Theft("DELETE", f"{site.events}/ours", None, ""),
    ]


async def sent(client: Client, theft: Theft) -> Answer:
    kind = PATCH["merge"] if theft.method == "PATCH" else "application/json"
    return await client.call(theft.method, theft.path, theft.body, kind=kind, dryRun="All")


async def furnished(client: Client, site: Site, folder: Path) -> Client:
    """Create what the site has, more rights for its account, and an event of its own and one of the kubelet."""
    for obj in site.objects(folder):
        await client.post(path_of(obj), obj)
    group = "rbac.authorization.k8s.io"
    rights = {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "update", "delete"]}
    subject = {"kind": "ServiceAccount", "name": site.account, "namespace": site.namespace}
    for more in (
        {"kind": "ClusterRole", "rules": [rights]},
        {"kind": "ClusterRoleBinding", "subjects": [subject],
         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "more"}},
    ):  # fmt: skip
        obj = {"apiVersion": f"{group}/v1", "metadata": {"name": "more"}, **more}
        await client.post(path_of(obj), obj)
    theirs = site.event("theirs")
    theirs |= {"source": {"component": "kubelet"}, "reportingComponent": "kubelet"}
    for event in (theirs, site.event("ours")):
        await client.post(site.events, event)
    return client


@pytest.fixture(params=RELEASES)
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with rbac_server(request.param, tmp_path) as client:
        yield client


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
async def test_a_thief_of_a_drivers_token_writes_events_of_its_pod_only(
    server: Client, site: Site, tmp_path: Path
) -> None:
    client = await furnished(server, site, tmp_path)
    thief = site.user(client, pod_name=POD, pod_uid="uid-x", node_name=NODE)
    foreign = thefts(site)[3]

    async def in_force() -> bool:
        return (await sent(thief, foreign)).code == 403

    await until("the policy is in force", in_force)
    wrong = []
    for theft in thefts(site):
        answer = await sent(thief, theft)
        is_refused = answer.code == 403 and f"this user may write events {theft.refused}" in answer.message
        if not (is_refused if theft.refused else answer.code < 300):
            wrong.append((theft, answer.body.decode()))
    assert not wrong, "\n".join(map(str, wrong))
    elsewhere = {**site.event("new"), "metadata": {"name": "new", "namespace": "default"}}
    elsewhere["involvedObject"] = {**elsewhere["involvedObject"], "namespace": "default"}
    answer = await thief.call("POST", EVENTS, elsewhere, dryRun="All")
    assert f"only about its own pod '{site.namespace}/{POD}'" in answer.message
    answer = await site.user(client).call("POST", site.events, site.event("new"), dryRun="All")
    assert "no pod association found for user" in answer.message
    for theft in thefts(site):
        assert (await sent(client, theft)).code < 300, "others are not concerned"


async def test_the_node_part_of_a_network_driver_writes_no_events(server: Client, tmp_path: Path) -> None:
    site = SITES["controller"]
    for obj in site.objects(tmp_path):
        await server.post(path_of(obj), obj)
    node = site._replace(account="net-driver").user(server, pod_name=POD, pod_uid="uid-x", node_name=NODE)
    answer = await node.call("POST", site.events, site.event("new"), dryRun="All")
    assert (answer.code, 'cannot create resource "events"' in answer.message) == (403, True)


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
async def test_the_event_of_a_contested_pool_passes_the_policy(site: Site, tmp_path: Path) -> None:
    """With the rights of the role alone, and a token bound to a pod on a node."""
    is_controller = site.account.endswith("-controller")
    async with DevApiServer(authorization="rbac") as server, client_of(server) as client:
        for obj in site.objects(tmp_path):
            await client.post(path_of(obj), obj)
        await client.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        made = pod(POD, serviceAccountName=site.account, nodeName=NODE)
        made["metadata"]["namespace"] = site.namespace
        own = await client.post(f"{NAMESPACES}/{site.namespace}/pods", made)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": POD, "uid": own["metadata"]["uid"]}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
        accounts = f"{NAMESPACES}/{site.namespace}/serviceaccounts/{site.account}/token"
        token = (await client.post(accounts, asked))["status"]["token"]
        pool = site.driver.partition(".")[0] if is_controller else NODE
        wanted = Pool.of([device("a")], all_nodes=True) if is_controller else Pool.of([device("a")])
        owner = None if is_controller else Owner.node(NODE)
        async with (
            Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig", token))) as api,
            SlicePublisher(api, site.driver, owner=owner, sync_delay=0.05) as publisher,
        ):
            publisher.publish({pool: wanted})
            await publisher.settled()
            (stored,) = (await client.get(f"{DRA}/resourceslices"))["items"]
            stored["spec"]["devices"] = [{"name": "b"}]
            await client.put(f"{DRA}/resourceslices/{stored['metadata']['name']}", stored)

            async def told() -> list[Json] | None:
                return (await client.get(site.events))["items"] or None

            (event,) = await until("the event of the contest", told)
    assert event["involvedObject"]["uid"] == own["metadata"]["uid"]
    who = f"a second controller of driver {site.driver}" if is_controller else f"runs on node {NODE}, each undoes"
    assert who in event["message"]
    assert ("node" in event["message"]) is not is_controller
