"""Questions to an API server with RBAC, and the answers of a real one of Kubernetes 1.36.

The same tables are asked of the development cluster, and of a real server where ``KUBEBUILDER_ASSETS`` has one. The
development cluster plays each release. Requests name the newest versions of the API; to an older server a client
speaks the newest that it serves.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import envtest
import pytest
from bare_client import PATCH, Answer, Client, client_of, path_of
from dra_api import yaml_text
from dra_api.conversion import VERSIONS, convert
from dra_api.releases import BUILT, NEWEST, Release
from dra_devcluster.apiserver import DevApiServer
from rounds import LONG

_needs_real = pytest.mark.skipif(envtest.assets() is None, reason="no KUBEBUILDER_ASSETS: NOT compared with a real one")
SERVERS = ["development", pytest.param("real", marks=_needs_real)]
"""The kinds of servers, as parameters of a test."""
_BEFORE_1_36 = "real-before-1.36"
_LESS_OFTEN = ("1.33", "1.34")  # between two that are asked, and no different
RELEASES = [
    *(pytest.param(name, marks=LONG if name in _LESS_OFTEN else ()) for name in BUILT),
    *(pytest.param(kind, marks=_needs_real) for kind in ("real", _BEFORE_1_36)),
]
"""The same, with the development cluster in each release, and a real server that asks no driver for its rights."""
_VERSIONED = re.compile(r"^/apis/(resource|scheduling)\.k8s\.io/(\w+)(?=/(?:namespaces/[^/]+/)?([a-z]+(/[^/]+/\w+)?))")

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
_REVIEWS = "authentication.k8s.io/v1"


class ReleaseClient(Client):
    """A client of a server that may not have the versions of the API that a path or object names."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: Sequence[tuple[str, str]],
        served: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(session, url, headers)
        self._served = served

    def _with(self, headers: Sequence[tuple[str, str]]) -> Client:
        return ReleaseClient(self._session, self._url, headers, self._served)

    def serves(self, path: str) -> bool:
        """Return whether the server has the kind, and the part of it, that the path names in some version."""
        found = _VERSIONED.match(path)
        return found is None or re.sub("/[^/]+/", "/", found[3]) in self._served

    async def call(self, method: str, path: str, body: object = None, **options: Any) -> Answer:
        found = _VERSIONED.match(path)
        served = self._served.get(re.sub("/[^/]+/", "/", found[3])) if found else None
        if found and served and found[2] not in served:
            version = f"{found[1]}.k8s.io/{served[0]}"
            path = f"/apis/{version}{path[found.end() :]}"
            if isinstance(body, dict) and body.get("kind") in VERSIONS:
                body = convert(body, version)
        return await super().call(method, path, body, **options)


async def _served(client: Client) -> dict[str, list[str]]:
    """Return the versions of each kind of the versioned groups, and of their parts, the newest first."""
    served: dict[str, list[str]] = {}
    for group in ("resource.k8s.io", "scheduling.k8s.io"):
        for line in (await client.get(f"/apis/{group}"))["versions"]:
            for resource in (await client.get(f"/apis/{group}/{line['version']}"))["resources"]:
                served.setdefault(resource["name"], []).append(line["version"])
    return served


@asynccontextmanager
async def rbac_server(kind: str, folder: Path) -> AsyncIterator[ReleaseClient]:
    """An administrator's client of a server: ``development``, or one of ``RELEASES``.

    It has the namespace ``default`` with its service account.
    """
    gates = {"DRAResourceClaimGranularStatusAuthorization": False} if kind == _BEFORE_1_36 else {}
    is_real = kind.startswith("real")
    async with _real(folder, gates) if is_real else _development(BUILT.get(kind, NEWEST)) as client:
        await client.until(f"{ACCOUNTS}/default", lambda answer: answer.code == 200)
        yield ReleaseClient(client._session, client._url, client._headers, await _served(client))


@asynccontextmanager
async def _development(release: Release) -> AsyncIterator[Client]:
    groups = ("GenericWorkload", "DRAWorkloadResourceClaims") if release >= Release.V1_36 else ()
    gates = dict.fromkeys(("DRAResourceClaimDeviceStatus", *groups), True)  # the former is off in 1.32
    async with (
        DevApiServer(release=release, authorization="rbac", feature_gates=gates) as server,
        client_of(server) as client,
    ):
        yield client


@asynccontextmanager
async def _real(folder: Path, gates: Mapping[str, bool]) -> AsyncIterator[Client]:
    binaries = envtest.assets()
    assert binaries is not None
    with envtest.real_api_server(binaries, folder, gates=gates) as kubeconfig:
        config = yaml_text.load(kubeconfig.read_text())
        url, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"}) as session:
            yield Client(session, url)


async def new_account(client: Client, name: str) -> None:
    await client.post(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})


async def token_of(client: Client, name: str, **spec: Any) -> str:
    """A token of the service account; ``spec`` is that of the TokenRequest."""
    request = {"apiVersion": _REVIEWS, "kind": "TokenRequest", "spec": spec}
    return str((await client.post(f"{ACCOUNTS}/{name}/token", request))["status"]["token"])


async def whoami(client: Client) -> dict[str, Any]:
    review = {"apiVersion": _REVIEWS, "kind": "SelfSubjectReview"}
    info: dict[str, Any] = (await client.post(f"/apis/{_REVIEWS}/selfsubjectreviews", review))["status"]["userInfo"]
    return info


Json = dict[str, Any]
API = "rbac.authorization.k8s.io"
RBAC = f"/apis/{API}/v1"


def role(name: str, *rules: Json, namespace: str = "", **more: Any) -> Json:
    place = {"namespace": namespace} if namespace else {}
    kind = "Role" if namespace else "ClusterRole"
    meta = {"name": name, **place, **more.pop("meta", {})}
    return {"apiVersion": f"{API}/v1", "kind": kind, "metadata": meta, "rules": list(rules), **more}


def binding(name: str, to: str, *subjects: str, namespace: str = "", kind: str = "ClusterRole") -> Json:
    """Subjects are ``User:name``, ``Group:name`` and ``ServiceAccount:namespace/name``."""
    made = []
    for subject in subjects:
        sort, _, who = subject.partition(":")
        place, _, account = who.rpartition("/")
        made.append({"kind": sort, "name": account, "namespace": place} if place else {"kind": sort, "name": who})
    return {
        "apiVersion": f"{API}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": API, "kind": kind, "name": to},
        "subjects": made,
    }


def rule(verbs: str, resources: str, group: str = "", names: str = "") -> Json:
    found: Json = {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split()}
    return {**found, "resourceNames": names.split()} if names else found


def urls(verbs: str, paths: str) -> Json:
    return {"verbs": verbs.split(), "nonResourceURLs": paths.split()}


OBJECTS: list[Json] = [
    role("reader", rule("get list", "pods pods/log"), rule("get", "configmaps", names="one two"),
         urls("get", "/logs/*")),
    role("scaler", rule("update", "*/scale", "*")),
    role("role-maker", rule("create update patch", "roles clusterroles rolebindings clusterrolebindings", API)),
    role("role-escalator", rule("escalate", "clusterroles roles", API)),
    role("role-binder", rule("bind", "clusterroles", API, names="reader")),
    role("secrets", rule("get", "secrets"), namespace="default"),
    binding("alice-reads", "reader", "User:alice"),
    binding("scalers", "scaler", "Group:scalers"),
    binding("makers", "role-maker", "User:dave", "User:eve", "User:frank"),
    binding("makers-read", "reader", "User:dave"),
    binding("escalators", "role-escalator", "User:eve"),
    binding("binders", "role-binder", "User:frank"),
    binding("lost", "nowhere", "User:carol", "User:carla"),
    binding("lost-here", "nowhere-here", "User:carla", namespace="default"),
    binding("alice-secrets", "secrets", "User:alice", namespace="default", kind="Role"),
    binding("robot-edits", "system:aggregate-to-edit", "ServiceAccount:kube-public/robot", namespace="default"),
    binding("devs-view", "system:aggregate-to-view", "Group:devs", namespace="default"),
]  # fmt: skip


async def create(client: Client, obj: Json) -> Answer:
    return await client.call("POST", path_of(obj), obj)


def no(verb: str, resource: str, name: str = "", *, group: str = "", namespace: str = "", why: str = "") -> str:
    """The refusal of a request, with ``{}`` for the user."""
    plural = resource.partition("/")[0] + (f".{group}" if group else "")
    title = f'{plural} "{name}"' if name else plural
    place = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    asked = f'User "{{}}" cannot {verb} resource "{resource}" in API group "{group}" {place}'
    return f"{title} is forbidden: {asked}{f': {why}' if why else ''}"


class Asked(NamedTuple):
    """A request that needs no body, and the message of its refusal; none if it is allowed, whatever comes then."""

    user: str
    method: str
    path: str
    refusal: str = ""
    group: str = ""


_NS, _CORE, _DRA = "/api/v1/namespaces/default", "/api/v1", "/apis/resource.k8s.io/v1"
_LOST = 'RBAC: clusterrole.rbac.authorization.k8s.io "nowhere" not found'
_BOTH = (
    'RBAC: [clusterrole.rbac.authorization.k8s.io "nowhere" not found, '
    'clusterrole.rbac.authorization.k8s.io "nowhere-here" not found]'
)
_ROBOT = "system:serviceaccount:kube-public:robot"
_ANONYMOUS = "system:anonymous"

ACCESS = [
    Asked("alice", "GET", f"{_NS}/pods"),
    Asked("alice", "GET", f"{_CORE}/pods"),
    Asked("alice", "GET", f"{_NS}/pods?watch=true", no("watch", "pods", namespace="default")),
    Asked("alice", "GET", f"{_NS}/pods/x"),
    Asked("alice", "GET", f"{_NS}/pods/x/log"),
    Asked("alice", "GET", f"{_NS}/pods/x/status", no("get", "pods/status", "x", namespace="default")),
    Asked("alice", "POST", f"{_NS}/pods", no("create", "pods", namespace="default")),
    Asked("alice", "DELETE", f"{_NS}/pods/x", no("delete", "pods", "x", namespace="default")),
    Asked("alice", "DELETE", f"{_NS}/pods", no("deletecollection", "pods", namespace="default")),
    Asked("alice", "PATCH", f"{_NS}/pods/x", no("patch", "pods", "x", namespace="default")),
    Asked("alice", "PUT", f"{_NS}/pods/x", no("update", "pods", "x", namespace="default")),
    Asked("alice", "GET", f"{_NS}/configmaps/one"),
    Asked("alice", "GET", f"{_NS}/configmaps/three", no("get", "configmaps", "three", namespace="default")),
    Asked("alice", "GET", f"{_NS}/configmaps", no("list", "configmaps", namespace="default")),
    Asked("alice", "GET", f"{_NS}/configmaps?fieldSelector=metadata.name%3Done",
          no("list", "configmaps", "one", namespace="default")),
    Asked("alice", "GET", f"{_NS}/secrets/x"),
    Asked("alice", "GET", f"{_CORE}/namespaces/kube-system/secrets/x",
          no("get", "secrets", "x", namespace="kube-system")),
    Asked("alice", "GET", f"{_NS}", no("get", "namespaces", "default", namespace="default")),
    Asked("alice", "GET", f"{_CORE}/namespaces", no("list", "namespaces")),
    Asked("alice", "GET", f"{_CORE}/nodes/a<b>&c", no("get", "nodes", "a<b>&c")),
    Asked("alice", "GET", "/apis/nowhere.example.com/v1/things", no("list", "things", group="nowhere.example.com")),
    Asked("alice", "GET", "/logs/x"),
    Asked("alice", "POST", "/logs/x", 'forbidden: User "{}" cannot post path "/logs/x"'),
    Asked("alice", "GET", "/metrics", 'forbidden: User "{}" cannot get path "/metrics"'),
    Asked("alice", "GET", "/readyz/ping", 'forbidden: User "{}" cannot get path "/readyz/ping"'),
    Asked("alice", "GET", "/version"),
    Asked("alice", "GET", "/readyz"),
    Asked("alice", "GET", "/api"),
    Asked("bob", "GET", f"{_NS}/pods", no("list", "pods", namespace="default")),
    Asked("carol", "GET", f"{_NS}/pods", no("list", "pods", namespace="default", why=_LOST)),
    Asked("carla", "GET", f"{_NS}/pods", no("list", "pods", namespace="default", why=_BOTH)),
    Asked("carla", "GET", f"{_CORE}/nodes", no("list", "nodes", why=_LOST)),
    Asked("mary", "GET", f"{_NS}/pods", group="devs"),
    Asked("mary", "GET", f"{_NS}/secrets", no("list", "secrets", namespace="default"), "devs"),
    Asked("mary", "GET", f"{_CORE}/pods", no("list", "pods"), "devs"),
    Asked("tom", "PUT", "/apis/apps/v1/namespaces/default/deployments/x/scale", group="scalers"),
    Asked("tom", "PUT", "/apis/apps/v1/namespaces/default/deployments/x",
          no("update", "deployments", "x", group="apps", namespace="default"), "scalers"),
    Asked(_ROBOT, "DELETE", f"{_NS}/pods/x"),
    Asked(_ROBOT, "GET", f"{_CORE}/namespaces/kube-public/pods", no("list", "pods", namespace="kube-public")),
    Asked(_ANONYMOUS, "GET", "/healthz"),
    Asked(_ANONYMOUS, "GET", "/api", 'forbidden: User "{}" cannot get path "/api"'),
    Asked(_ANONYMOUS, "GET", f"{_NS}/pods", no("list", "pods", namespace="default")),
]  # fmt: skip

_UNRELATED = "no relationship found between node 'node-1' and this object"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces"
_LEASE = {"group": "coordination.k8s.io", "namespace": "kube-node-lease"}
_SELECT = "can only list/watch/deletecollection resourceslices with nodeName field selector"
_ONE = "can only get individual resources of this type"


def _node(method: str, path: str, refusal: str = "") -> Asked:
    return Asked("system:node:node-1", method, path, refusal, "system:nodes")


NODES = [
    _node("GET", f"{_CORE}/nodes/node-1"),
    _node("GET", f"{_CORE}/nodes?fieldSelector=metadata.name%3Dnode-1"),
    _node("GET", f"{_CORE}/nodes/node-2",
          no("get", "nodes", "node-2", why="node 'node-1' cannot read 'node-2', only its own Node object")),
    _node("GET", f"{_CORE}/nodes",
          no("list", "nodes", why="node 'node-1' cannot read all nodes, only its own Node object")),
    _node("GET", f"{_CORE}/pods?fieldSelector=spec.nodeName%3Dnode-1"),
    _node("GET", f"{_CORE}/pods",
          no("list", "pods", why="can only list/watch pods with spec.nodeName field selector")),
    _node("GET", f"{_NS}/pods/x", no("get", "pods", "x", namespace="default", why=_UNRELATED)),
    _node("PUT", f"{_NS}/pods/x", no("update", "pods", "x", namespace="default")),
    _node("POST", f"{_NS}/pods/x/binding", no("create", "pods/binding", "x", namespace="default")),
    _node("GET", f"{_NS}/pods/here"),
    _node("GET", f"{_NS}/secrets/used"),
    _node("GET", f"{_NS}/secrets/x", no("get", "secrets", "x", namespace="default", why=_UNRELATED)),
    _node("GET", f"{_CORE}/secrets", no("list", "secrets", why="can only read namespaced object of this type")),
    _node("PUT", f"{_NS}/secrets/used",
          no("update", "secrets", "used", namespace="default", why="can only read resources of this type")),
    _node("GET", f"{_NS}/configmaps/used"),
    _node("GET", f"{_NS}/configmaps/x", no("get", "configmaps", "x", namespace="default", why=_UNRELATED)),
    _node("GET", f"{_NS}/persistentvolumeclaims/used"),
    _node("GET", f"{_NS}/persistentvolumeclaims", no("list", "persistentvolumeclaims", namespace="default", why=_ONE)),
    _node("GET", f"{_DRA}/namespaces/default/resourceclaims/used"),
    _node("GET", f"{_DRA}/namespaces/default/resourceclaims/x",
          no("get", "resourceclaims", "x", group="resource.k8s.io", namespace="default", why=_UNRELATED)),
    _node("GET", f"{_DRA}/namespaces/default/resourceclaims",
          no("list", "resourceclaims", group="resource.k8s.io", namespace="default", why=_ONE)),
    _node("PUT", f"{_DRA}/namespaces/default/resourceclaims/used/status",
          no("update", "resourceclaims/status", "used", group="resource.k8s.io", namespace="default", why=_ONE)),
    _node("GET", f"{_DRA}/resourceslices?fieldSelector=spec.nodeName%3Dnode-1"),
    _node("GET", f"{_DRA}/resourceslices", no("list", "resourceslices", group="resource.k8s.io", why=_SELECT)),
    _node("DELETE", f"{_DRA}/resourceslices?fieldSelector=spec.nodeName%3Dnode-2",
          no("deletecollection", "resourceslices", group="resource.k8s.io", why=_SELECT)),
    _node("GET", f"{_DRA}/resourceslices/x",
          no("get", "resourceslices", "x", group="resource.k8s.io", why=_UNRELATED)),
    _node("GET", f"{_DRA}/deviceclasses", no("list", "deviceclasses", group="resource.k8s.io")),
    _node("GET", f"{_LEASES}/kube-node-lease/leases/node-1"),
    _node("GET", f"{_LEASES}/kube-node-lease/leases/node-2",
          no("get", "leases", "node-2", **_LEASE,
             why="can only access node lease with the same name as the requesting node")),
    _node("GET", f"{_LEASES}/default/leases/node-1",
          no("get", "leases", "node-1", group="coordination.k8s.io", namespace="default",
             why='can only access leases in the "kube-node-lease" system namespace')),
    _node("GET", f"{_LEASES}/kube-node-lease/leases",
          no("list", "leases", **_LEASE, why="can only get, create, update, patch, or delete a node lease")),
    _node("GET", "/apis/storage.k8s.io/v1/csinodes/node-2",
          no("get", "csinodes", "node-2", group="storage.k8s.io",
             why="can only access CSINode with the same name as the requesting node")),
    _node("GET", "/apis/storage.k8s.io/v1/csidrivers"),
    _node("POST", f"{_NS}/serviceaccounts/default/token"),
    _node("POST", f"{_NS}/serviceaccounts/other/token",
          no("create", "serviceaccounts/token", "other", namespace="default", why=_UNRELATED)),
    _node("POST", f"{_NS}/serviceaccounts",
          no("create", "serviceaccounts", namespace="default",
             why="can only create tokens for individual service accounts")),
]  # fmt: skip
"""What a node may read: ``used`` is used by the pod ``here``, which runs on node-1."""

POD_ON_NODE_1: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "here"},
    "spec": {
        "nodeName": "node-1",
        "serviceAccountName": "default",
        "containers": [{
            "name": "c",
            "image": "i",
            "envFrom": [{"secretRef": {"name": "used"}}],
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "used", "key": "a"}}}],
        }],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "used"}}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "used"}],
    },
}  # fmt: skip


class Granted(NamedTuple):
    """A role or binding that ``user`` creates, and the message of its refusal; none if it is created."""

    user: str
    obj: Json
    refusal: str = ""


def _more(kind: str, name: str, user: str, *lacking: str) -> str:
    held = f'user "{user}" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held'
    return f'{kind}.{API} "{name}" is forbidden: {held}:\n' + "\n".join(lacking)


GRANTS = [
    Granted("dave", role("d1", rule("get list", "pods"))),
    Granted("dave", role("d2", rule("get delete", "pods secrets")),
            _more("clusterroles", "d2", "dave", '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}',
                  '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}')),
    Granted("dave", role("d3", rule("get", "configmaps", names="one three")),
            _more("clusterroles", "d3", "dave",
                  '{APIGroups:[""], Resources:["configmaps"], ResourceNames:["three"], Verbs:["get"]}')),
    Granted("dave", role("d4", urls("get", "/logs/a /metrics")),
            _more("clusterroles", "d4", "dave", '{NonResourceURLs:["/metrics"], Verbs:["get"]}')),
    Granted("dave", role("d5", rule("*", "*", "*")),
            _more("clusterroles", "d5", "dave", '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}')),
    Granted("dave", role("d6", rule("delete", "pods"), namespace="default"),
            _more("roles", "d6", "dave", '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}')),
    Granted("dave", role("d7", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}),
            f'clusterroles.{API} "d7" is forbidden: must have cluster-admin privileges to use the aggregationRule'),
    Granted("eve", role("e1", rule("delete", "pods"))),
    Granted("dave", binding("db1", "reader", "User:x")),
    Granted("dave", binding("db2", "cluster-admin", "User:x"),
            _more("clusterrolebindings", "db2", "dave", '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}',
                  '{NonResourceURLs:["*"], Verbs:["*"]}')),
    Granted("dave", binding("db3", "nowhere", "User:x"), f'clusterrolebindings.{API} "nowhere" not found'),
    Granted("dave", binding("db4", "secrets", "User:x", namespace="default", kind="Role"),
            _more("rolebindings", "db4", "dave", '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}')),
    Granted("dave", binding("db5", "reader", "User:x", namespace="default")),
    Granted("frank", binding("fb1", "reader", "User:x")),
    Granted("frank", binding("fb2", "scaler", "User:x"),
            _more("clusterrolebindings", "fb2", "frank", '{APIGroups:["*"], Resources:["*/scale"], Verbs:["update"]}')),
    Granted("", role("v1", {"verbs": []}),
            f'ClusterRole.{API} "v1" is invalid: [rules[0].verbs: Required value: verbs must contain at least one '
            "value, rules[0].apiGroups: Required value: resource rules must supply at least one api group, "
            "rules[0].resources: Required value: resource rules must supply at least one resource]"),
    Granted("", role("v2", {**urls("get", "/x"), "resources": ["pods"]}),
            f'ClusterRole.{API} "v2" is invalid: rules[0].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply '
            "to both regular resources and non-resource URLs"),
    Granted("", role("v3", urls("get", "/x"), namespace="default"),
            f'Role.{API} "v3" is invalid: rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot '
            "apply to non-resource URLs"),
    Granted("", role("v4", aggregationRule={}),
            f'ClusterRole.{API} "v4" is invalid: aggregationRule.clusterRoleSelectors: Required value: at least one '
            "clusterRoleSelector required if aggregationRule is non-nil"),
    Granted("", binding("v5", "x", "User:", kind="Role"),
            f'ClusterRoleBinding.{API} "v5" is invalid: [roleRef.kind: Unsupported value: "Role": supported values: '
            '"ClusterRole", subjects[0].name: Required value]'),
    Granted("", binding("v6", "a/b", "ServiceAccount:x", "Robot:r"),
            f'ClusterRoleBinding.{API} "v6" is invalid: [roleRef.name: Invalid value: "a/b": may not contain \'/\', '
            'subjects[0].namespace: Required value, subjects[1].kind: Unsupported value: "Robot": supported values: '
            '"ServiceAccount", "User", "Group"]'),
]  # fmt: skip


async def ask(client: Client, asked: Asked) -> Answer:
    """Send the request in the name of its user, with an empty object where a body is expected."""
    path, _, query = asked.path.partition("?")
    body: Json | None = {} if asked.method in ("POST", "PUT", "PATCH") else None
    kind = PATCH["merge"] if asked.method == "PATCH" else "application/json"
    pairs = dict(pair.replace("%3D", "=").split("=", 1) for pair in query.split("&") if pair)
    caller = client.impersonating(asked.user, *([asked.group] if asked.group else []))
    return await caller.call(asked.method, path, body, kind=kind, **pairs)
