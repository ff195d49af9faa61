"""Authorization: may this user do that?

::

    authorization = Authorization("rbac", store)
    authorization.require(Attributes(user, "get", resource="pods", namespace="default", name="web"))   # or a 403

In the mode ``rbac`` members of ``system:masters`` may do everything. Nodes may read and write their own objects, and
read the objects that their pods use. Roles and bindings grant the rest (`rbac`). A request without a token is one of
``system:anonymous``. In the mode ``always-allow`` every user with a token may do everything, and requests without one
are refused.

Users in the group ``system:nodes`` that are named ``system:node:<name>`` are nodes. They need no bindings. Admission
decides which of their own objects they may change, and how.

Each question is a line of the logger ``dra_devcluster.requests`` at level DEBUG, so that the log of a story shows which
rules its roles need.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from dra_api.codec import DecodeError, convert
from dra_api.core import Pod
from dra_api.references import claims_of_pod

from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.rbac import AUTHENTICATED, Attributes, Decision, Rbac, Rule, User
from dra_devcluster.apiserver.selectors import equals_of
from dra_devcluster.apiserver.store import Store
from dra_devcluster.apiserver.structure import load_data

Mode = Literal["always-allow", "rbac"]
_EVERYTHING: Final = Decision(True, "every known user may do everything here")
_ALL: Final = ("*",)

requests = logging.getLogger("dra_devcluster.requests")


class Authorization:
    """Answers questions in one mode, by the objects of a store."""

    def __init__(self, mode: Mode, store: Store) -> None:
        self.is_rbac = mode == "rbac"
        self.rbac = Rbac(store)
        self._nodes = NodeAuthorizer(store)

    def judge(self, asked: Attributes) -> Decision:
        """The answer, without a line in the log."""
        if not self.is_rbac:
            return _EVERYTHING
        if asked.user.is_master:
            return Decision(True)
        as_node = self._nodes.decide(asked)
        if as_node.allowed:
            return as_node
        by_roles = self.rbac.decide(asked)
        if by_roles.allowed:
            return by_roles
        return Decision(False, "\n".join(reason for reason in (as_node.reason, by_roles.reason) if reason))

    def allows(self, asked: Attributes) -> bool:
        """The answer to a question of the request being handled."""
        decision = self.judge(asked)
        requests.debug("%s: %s", asked, "allowed" if decision.allowed else "refused")
        return decision.allowed

    def require(self, asked: Attributes) -> None:
        """Raises a 403 unless it is allowed."""
        if not self.allows(asked):
            raise asked.refusal(self.judge(asked).reason)

    def rules_of(self, user: User, namespace: str) -> list[Rule]:
        """What the user may do in the namespace, as far as rules say it; nodes may do more."""
        if not self.is_rbac:
            return [Rule(_ALL, _ALL, _ALL), Rule(_ALL, urls=_ALL)]
        return list(self.rbac.rules_of(user, namespace))


Json = dict[str, Any]
_PREFIX: Final = "system:node:"
_GROUP: Final = "system:nodes"
_LEASES: Final = "kube-node-lease"


def node_user(name: str) -> User:
    return User(f"{_PREFIX}{name}", (_GROUP, AUTHENTICATED))


def node_of(user: User) -> str:
    """The name of the node that the user is, empty for other users."""
    is_node = _GROUP in user.groups and user.name.startswith(_PREFIX)
    return user.name.removeprefix(_PREFIX) if is_node else ""


class NodeAuthorizer:
    """Answers for nodes, by the pods that are bound to them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kinds: dict[tuple[str, str], Callable[[str, Attributes], str]] = {
            ("", "configmaps"): self._readable,
            ("", "secrets"): self._readable,
            ("", "persistentvolumeclaims"): self._gettable,
            ("", "persistentvolumes"): self._gettable,
            ("resource.k8s.io", "resourceclaims"): self._gettable,
            ("storage.k8s.io", "volumeattachments"): self._gettable,
            ("", "serviceaccounts"): self._account,
            ("coordination.k8s.io", "leases"): _own_object,
            ("storage.k8s.io", "csinodes"): _own_object,
            ("resource.k8s.io", "resourceslices"): self._slice,
            ("", "nodes"): _node,
            ("", "pods"): self._pod,
        }
        role = next(obj for obj in load_data("rbac.json") if obj["metadata"]["name"] == "system:node")
        self._rules = [Rule.of(rule) for rule in role["rules"]]

    def decide(self, asked: Attributes) -> Decision:
        """No, without a reason, for users that are no nodes."""
        node = node_of(asked.user)
        if not node:
            return Decision(False)
        judge = self._kinds.get((asked.group, asked.resource)) if asked.resource else None
        if judge is None:
            return Decision(any(rule.allows(asked) for rule in self._rules))
        objection = judge(node, asked)
        return Decision(not objection, objection.strip())

    # Each of these gives the objection: empty to allow, blank if there is nothing to say.

    def _readable(self, node: str, asked: Attributes) -> str:
        if asked.verb not in ("get", "list", "watch"):
            return "can only read resources of this type"
        if asked.subresource:
            return "cannot read subresource"
        return self._related(node, asked) if asked.namespace else "can only read namespaced object of this type"

    def _gettable(self, node: str, asked: Attributes) -> str:
        if asked.resource == "persistentvolumeclaims" and asked.subresource == "status":
            return self._related(node, asked) if asked.verb in ("update", "patch") else "can only update this type"
        if asked.verb != "get":
            return "can only get individual resources of this type"
        return "cannot get subresource" if asked.subresource else self._related(node, asked)

    def _account(self, node: str, asked: Attributes) -> str:
        if asked.verb == "get" and not asked.subresource:
            return self._readable(node, asked)
        if asked.verb != "create" or not asked.name:
            return "can only create tokens for individual service accounts"
        if asked.subresource != "token":
            return "can only create token subresource of serviceaccount"
        return self._related(node, asked)

    def _slice(self, node: str, asked: Attributes) -> str:
        if asked.subresource:
            return "cannot authorize ResourceSlice subresources"
        if asked.verb == "create":
            return ""
        if asked.verb in ("get", "update", "patch", "delete"):
            return self._related(node, asked)
        if equals_of(asked.field_selector).get("spec.nodeName") == node:
            return ""
        return "can only list/watch/deletecollection resourceslices with nodeName field selector"

    def _pod(self, node: str, asked: Attributes) -> str:
        match asked.subresource, asked.verb:
            case "", "get":
                return self._related(node, asked)
            case "", ("list" | "watch"):
                if equals_of(asked.field_selector).get("spec.nodeName") == node:
                    return ""
                if asked.name:
                    return self._related(node, asked)
                return "can only list/watch pods with spec.nodeName field selector"
            case ("", ("create" | "delete")) | ("status", ("update" | "patch")) | ("eviction", "create"):
                return ""
        return " "

    def _related(self, node: str, asked: Attributes) -> str:
        if not asked.name:
            return "No Object name found"
        pods = self._pods(node, asked.namespace)
        if self._is_own(node, asked) or any(asked.name in _used(asked.resource, pod) for pod in pods):
            return ""
        return f"no relationship found between node '{node}' and this object"

    def _is_own(self, node: str, asked: Attributes) -> bool:
        """Whether the object itself names the node, or a claim of the node's pods."""
        stored = self._store.collection(asked.group, asked.resource).get(asked.namespace, asked.name)
        if stored is None:
            return False
        obj = stored.decode()
        if asked.resource == "persistentvolumes":
            claim = dig(obj, "spec.claimRef") or {}
            pods = self._pods(node, claim.get("namespace", ""))
            return any(claim.get("name") in _used("persistentvolumeclaims", pod) for pod in pods)
        owned = asked.resource in ("pods", "resourceslices", "volumeattachments")
        return owned and dig(obj, "spec.nodeName") == node

    def _pods(self, node: str, namespace: str) -> Iterator[Json]:
        for stored in self._store.collection("", "pods").all(namespace):
            if stored.fields.get("spec.nodeName") == node:
                yield stored.decode()


def _own_object(node: str, asked: Attributes) -> str:
    """About Leases and CSINodes, of which each node has one with its name."""
    is_lease = asked.resource == "leases"
    what = "node lease" if is_lease else "CSINode"
    if asked.verb not in ("get", "create", "update", "patch", "delete"):
        return f"can only get, create, update, patch, or delete a {what}"
    if is_lease and asked.namespace != _LEASES:
        return f'can only access leases in the "{_LEASES}" system namespace'
    if not is_lease and asked.subresource:
        return "cannot authorize CSINode subresources"
    if asked.verb != "create" and asked.name != node:
        return f"can only access {what} with the same name as the requesting node"
    return ""


def _node(node: str, asked: Attributes) -> str:
    match asked.subresource, asked.verb:
        case ("", ("create" | "update" | "patch")) | ("status", ("update" | "patch")):
            return ""
        case "", ("get" | "list" | "watch"):
            if asked.name == node:
                return ""
            what = f"'{asked.name}'" if asked.name else "all nodes"
            return f"node '{node}' cannot read {what}, only its own Node object"
    return " "


def _used(resource: str, pod: Json) -> set[str]:
    """The names of the objects of the pod's own namespace, of a kind, that the pod uses."""
    if resource == "serviceaccounts":
        return {dig(pod, "spec.serviceAccountName") or "default"}
    if resource == "resourceclaims":
        try:
            return {use.name for use in claims_of_pod(convert(Pod, pod))}
        except DecodeError:
            return set()
    if resource == "persistentvolumeclaims":
        volumes = dig(pod, "spec.volumes") or ()
        generated = {f"{pod['metadata']['name']}-{volume['name']}" for volume in volumes if "ephemeral" in volume}
        return generated | set(_named(pod.get("spec"), {"persistentVolumeClaim": "claimName"}))
    return set(_named(pod.get("spec"), _REFERENCES[resource])) if resource in _REFERENCES else set()


_REFERENCES: Final = {
    "configmaps": {"configMap": "name", "configMapRef": "name", "configMapKeyRef": "name"},
    "secrets": {"secret": "secretName", "secretRef": "name", "secretKeyRef": "name", "imagePullSecrets": "name"},
}


def _named(part: Any, keys: dict[str, str]) -> Iterator[str]:
    """The names that members with one of the keys hold, wherever they are."""
    if isinstance(part, list):
        for entry in part:
            yield from _named(entry, keys)
    elif isinstance(part, dict):
        for key, value in part.items():
            for reference in value if isinstance(value, list) else [value]:
                if key in keys and isinstance(reference, dict):
                    yield str(reference.get(keys[key]) or reference.get("name") or "")
            yield from _named(value, keys)
