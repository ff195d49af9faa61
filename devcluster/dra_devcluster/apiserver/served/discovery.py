"""Discovery: which groups, versions and resources are served, in the old form and in the aggregated one."""

from __future__ import annotations

from typing import Any

import orjson
from dra_api.releases.release import Release

from dra_devcluster.apiserver.errors import Json, PathNotFound, no_such_resource
from dra_devcluster.apiserver.structure import Resource, Structure

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


def version_of(release: Release) -> Json:
    """What the server says at ``/version``. It emulates none, and goes with components of the release before."""
    return {
        "major": "1",
        "minor": str(release.value),
        "emulationMajor": "1",
        "emulationMinor": str(release.value),
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": str(release.value - 1),
        "gitVersion": f"v{release}.0+dra-devcluster",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


def answer(structure: Structure, path: str, accept: str) -> tuple[bytes, str] | None:
    """The document for a discovery path and its content type; None for any other path.

    Raises a 404 for a version, PathNotFound for a group.
    """
    if path == "/":
        return orjson.dumps({"paths": _paths(structure)}), "application/json"
    parts = path.strip("/").split("/")
    if parts[0] not in ("api", "apis") or len(parts) > (2 if parts[0] == "api" else 3):
        return None
    if len(parts) == 1:
        version = next((v for v in ("v2", "v2beta1") if f"v={v};as=APIGroupDiscoveryList" in accept), None)
        if version:
            document = _aggregated(structure, version, core=parts[0] == "api")
            return orjson.dumps(document), AGGREGATED.format(version)
        return orjson.dumps(_core_versions() if parts[0] == "api" else _groups(structure)), "application/json"
    if parts[0] == "apis" and len(parts) == 2:
        return orjson.dumps({"kind": "APIGroup", "apiVersion": "v1", **_group(structure, parts[1])}), "application/json"
    group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
    return orjson.dumps(_resources(structure, group, version)), "application/json"


def _paths(structure: Structure) -> list[str]:
    found = ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
    for group, versions in versions_of(structure).items():
        if group:
            found += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
    return sorted(found)


def _core_versions() -> Json:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def versions_of(structure: Structure) -> dict[str, list[str]]:
    """The versions of each group, in the order of discovery: the preferred one first."""
    found: dict[str, list[str]] = {}
    for resource in structure.resources():
        versions = found.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
    return found


def _group(structure: Structure, group: str) -> Json:
    versions = versions_of(structure).get(group)
    if not group or not versions:
        raise PathNotFound
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _groups(structure: Structure) -> Json:
    groups = [_group(structure, group) for group in versions_of(structure) if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _resources(structure: Structure, group: str, version: str) -> Json:
    lines: list[Json] = []
    for resource in structure.resources():
        if (resource.group, resource.version) != (group, version):
            continue
        line: Json = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            line["shortNames"] = list(resource.short_names)
        if resource.categories:
            line["categories"] = list(resource.categories)
        lines.append(line)
        for sub in resource.subresources.values():
            group_version, kind = _body_of(resource, sub.kind)
            named = dict(zip(("group", "version"), group_version, strict=True)) if group_version else {}
            lines.append(
                {
                    "name": f"{resource.plural}/{sub.name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    **named,
                    "kind": kind,
                    "verbs": list(sub.verbs),
                }
            )
    if not lines and not structure.has_group(group):
        raise PathNotFound
    if not lines:
        raise no_such_resource()
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": lines,
    }


# Bodies of sub-resources that belong to another group than their resource.
_FOREIGN_BODIES = {
    "Eviction": ("policy", "v1"),
    "Scale": ("autoscaling", "v1"),
    "TokenRequest": ("authentication.k8s.io", "v1"),
}


def _body_of(resource: Resource, kind: str) -> tuple[tuple[str, str] | None, str]:
    return _FOREIGN_BODIES.get(kind), kind


def _aggregated(structure: Structure, version: str, *, core: bool) -> Json:
    items = []
    served = [resource for resource in structure.resources() if (resource.group == "") is core]
    for group, versions in versions_of(structure).items():
        if (group == "") is not core:
            continue
        listed = [
            _version(version, [r for r in served if (r.group, r.version) == (group, version)]) for version in versions
        ]
        meta: Json = {"creationTimestamp": None, **({"name": group} if group else {})}
        items.append({"metadata": meta, "versions": listed})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _version(version: str, resources: list[Resource]) -> Json:
    return {"version": version, "resources": [_discovered(resource) for resource in resources], "freshness": "Current"}


def _discovered(resource: Resource) -> Json:
    found: Json = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        found["shortNames"] = list(resource.short_names)
    if resource.categories:
        found["categories"] = list(resource.categories)
    subresources: list[Any] = []
    for sub in resource.subresources.values():
        group_version, kind = _body_of(resource, sub.kind)
        group, version = group_version or (resource.group, resource.version)
        subresources.append(
            {
                "subresource": sub.name,
                "responseKind": {"group": group, "version": version, "kind": kind},
                "verbs": list(sub.verbs),
            }
        )
    if subresources:
        found["subresources"] = subresources
    return found
