"""Parses a URL into the resource, namespace, object and sub-resource of a request."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Target:
    """``/apis/<group>/<version>/namespaces/<namespace>/<plural>/<name>/<subresource>/<tail>``, each part may be ''."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    tail: str = ""  # what follows a sub-resource: the path behind ``proxy``


def parse_target(path: str) -> Target | None:
    """The target of a URL path; None when the path is not one of a resource."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    # ``namespaces/x/status`` is the namespace's own sub-resource, ``namespaces/x/pods`` are pods inside.
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource, "/".join(rest[3:]))
