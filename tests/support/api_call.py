"""What a request to an API server asks for: verb, resource, namespace and name, as RBAC and audit logs name them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_QUESTIONS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})
"""Groups whose objects are posted to be answered: the server stores none of them."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request: ``resource`` has its sub-resource with it (``pods/status``); for other paths it is the path."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    version: str = ""

    @property
    def is_write(self) -> bool:
        """Whether it may change something; the question which rights an account has is posted, and changes nothing."""
        return self.verb in WRITES and self.group not in _QUESTIONS

    def __str__(self) -> str:
        place = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {self.resource}{f' {place}' if place else ''}"


def api_call(method: str, target: str) -> ApiCall:
    """The call behind an HTTP request for ``target``, a path with its query."""
    url = urlsplit(target)
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    depth = {"api": 2, "apis": 3}.get(parts[0], len(parts))
    group, rest = parts[1] if parts[0] == "apis" and len(parts) > 1 else "", parts[depth:]
    version = parts[depth - 1] if parts[0] in ("api", "apis") and len(parts) >= depth else ""
    if not rest:
        return ApiCall("get" if method == "GET" else method.lower(), group, url.path, version=version)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    resource = f"{plural}/{subresource}" if subresource else plural
    return ApiCall(_verb(method, name, url.query), group, resource, namespace, name, version)


def _verb(method: str, name: str, query: str) -> str:
    if method == "GET":
        watches = parse_qs(query).get("watch", ["false"])[0] not in ("false", "0")
        return "watch" if watches else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return _VERBS.get(method, method.lower())
