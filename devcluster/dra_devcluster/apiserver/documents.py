"""The documents of a server about itself: discovery and OpenAPI.

Discovery lists groups, versions and resources, in the old form and in the aggregated one (``answer``).

kubectl reads OpenAPI for explain, validation, server-side dry run and strategic merge by schema::

    v3_index(structure) -> Json                      /openapi/v3
    v3_document(structure, group, version)           /openapi/v3/apis/<group>/<version>; None when nothing is served
    v2_document(structure) -> Json                   /openapi/v2 (as JSON; definitions only)
    V2_PROTOBUF, v2_frame() -> bytes                 /openapi/v2 for clients that read protobuf only (kubectl)

They are built from the same components that the decoder uses, and computed when a client asks. The index carries a
digest of the content of each; clients use it for their caches. Texts for `kubectl explain` are
our own (`schema/descriptions.json`), keyed without version: a type means the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any

import orjson
from dra_api.releases import Release

from dra_devcluster.apiserver.errors import Json, PathNotFound, no_such_resource
from dra_devcluster.apiserver.structure import Resource, Structure, load_data

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


def answer(structure: Structure, path: str, accept: str) -> tuple[bytes, str]:
    """The document at a path and its content type. Raises a 404 for a version, PathNotFound for other paths."""
    if path == "/openapi/v2" and "protobuf" in accept and "json" not in accept:
        return v2_frame(), V2_PROTOBUF
    parts = path.strip("/").split("/")
    version = next((v for v in ("v2", "v2beta1") if f"v={v};as=APIGroupDiscoveryList" in accept), None)
    if version and parts in (["api"], ["apis"]):
        return orjson.dumps(_aggregated(structure, version, core=parts == ["api"])), AGGREGATED.format(version)
    return orjson.dumps(_document(structure, parts)), "application/json"


def _document(structure: Structure, parts: list[str]) -> Json:
    match parts:
        case [""]:
            return {"paths": _paths(structure)}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = [_group(structure, group) for group in versions_of(structure) if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group]:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(structure, group)}
        case ["api", version]:
            return _resources(structure, "", version)
        case ["apis", group, version]:
            return _resources(structure, group, version)
        case ["openapi", "v2"]:
            return v2_document(structure)
        case ["openapi", "v3"]:
            return v3_index(structure)
        case ["openapi", "v3", "api", version] if document := v3_document(structure, "", version):
            return document
        case ["openapi", "v3", "apis", group, version] if document := v3_document(structure, group, version):
            return document
    raise PathNotFound


def _paths(structure: Structure) -> list[str]:
    found = ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
    for group, versions in versions_of(structure).items():
        if group:
            found += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
    return sorted(found)


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


def _resources(structure: Structure, group: str, version: str) -> Json:
    lines: list[Json] = []
    for resource in _shown_resources(structure, group, version):
        lines.append(
            {
                "name": resource.plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": list(resource.verbs),
                **_other_names(resource),
            }
        )
        for sub in resource.subresources.values():
            body = _FOREIGN_BODIES.get(sub.kind)
            lines.append(
                {
                    "name": f"{resource.plural}/{sub.name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    **(dict(zip(("group", "version"), body, strict=True)) if body else {}),
                    "kind": sub.kind,
                    "verbs": list(sub.verbs),
                }
            )
    if not lines and not structure.has_group(group):
        raise PathNotFound
    if not lines:
        raise no_such_resource()
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": lines}


# Group and version of sub-resources' bodies that belong to another group than their resource.
_FOREIGN_BODIES = {
    "Eviction": ("policy", "v1"),
    "Scale": ("autoscaling", "v1"),
    "TokenRequest": ("authentication.k8s.io", "v1"),
}


def _aggregated(structure: Structure, version: str, *, core: bool) -> Json:
    items = []
    for group, versions in versions_of(structure).items():
        if (group == "") is not core:
            continue
        listed = [
            {
                "version": each,
                "resources": [_discovered(resource) for resource in _shown_resources(structure, group, each)],
                "freshness": "Current",
            }
            for each in versions
        ]
        meta: Json = {"creationTimestamp": None, **({"name": group} if group else {})}
        items.append({"metadata": meta, "versions": listed})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _other_names(resource: Resource) -> Json:
    """Return short names and categories, as both forms of discovery have them: only if there are some."""
    found = {"shortNames": list(resource.short_names), "categories": list(resource.categories)}
    return {key: names for key, names in found.items() if names}


def _discovered(resource: Resource) -> Json:
    subresources: list[Json] = []
    for sub in resource.subresources.values():
        group, version = _FOREIGN_BODIES.get(sub.kind, (resource.group, resource.version))
        kind = {"group": group, "version": version, "kind": sub.kind}
        subresources.append({"subresource": sub.name, "responseKind": kind, "verbs": list(sub.verbs)})
    return {
        "resource": resource.plural,
        "responseKind": _gvk(resource),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
        **_other_names(resource),
        **({"subresources": subresources} if subresources else {}),
    }


# The media type of the answer; clients ask for `...spec.v2@v1.0+protobuf`, which is no legal media type.
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_REF = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_INFO = {"title": "Kubernetes", "version": "v1.36.0"}
_PATCHES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
_STRATEGIC = "application/strategic-merge-patch+json"
# They show kubectl that the server validates and dry-runs by itself.
_WRITE_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def v3_index(structure: Structure) -> Json:
    paths = {}
    for group, version in dict.fromkeys((resource.group, resource.version) for resource in structure.resources()):
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        digest = blake2b(_builtin_digest() + str(structure.release).encode(), digest_size=16)
        for resource in _shown_resources(structure, group, version):
            digest.update(orjson.dumps([resource.plural, resource.definition], option=orjson.OPT_SORT_KEYS))
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest.hexdigest().upper()}"}
    return {"paths": paths}


def v3_document(structure: Structure, group: str, version: str) -> Json | None:
    resources = _shown_resources(structure, group, version)
    if not resources:
        return None
    schemas: Json = {}
    paths: Json = {}
    for resource in resources:
        for name, schema in _roots(structure, resource):
            _collect(structure, name, schema, schemas)
        paths |= _described_paths(resource)
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def v2_document(structure: Structure) -> Json:
    schemas: Json = {}
    for resource in structure.resources():
        for name, schema in _roots(structure, resource):
            _collect(structure, name, schema, schemas)
    text = orjson.dumps(schemas).replace(_REF.encode(), b"#/definitions/")
    return {"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": orjson.loads(text)}


def v2_frame() -> bytes:
    """A version 2 document without content, as protobuf: kubectl asks for it when version 3 does not know a kind, and
    needs to find nothing there to say that the kind does not exist."""
    title, version = _INFO["title"].encode(), _INFO["version"].encode()
    info = b"\x0a" + bytes([len(title)]) + title + b"\x12" + bytes([len(version)]) + version
    return b"\x0a\x032.0" + b"\x12" + bytes([len(info)]) + info + b"\x42\x00\x4a\x00"


@cache
def _builtin_digest() -> bytes:
    return blake2b(orjson.dumps([load_data("components.json"), load_data("descriptions.json")])).digest()


def _shown_resources(structure: Structure, group: str, version: str) -> list[Resource]:
    return [r for r in structure.resources() if (r.group, r.version) == (group, version)]


def _gvk(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _roots(structure: Structure, resource: Resource) -> Iterator[tuple[str, Json]]:
    """The named schemas from which everything else about a resource is reached."""
    if resource.definition is not None:
        name = ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])
        yield name, _whole(resource, resource.definition.get("schema", {}).get("openAPIV3Schema") or {"type": "object"})
        return
    for kind in [resource.kind, *(subresource.kind for subresource in resource.subresources.values())]:
        known = structure.component_name(resource, kind)
        if known:
            yield known, structure.components.raw[known]
    if structure.component_name(resource) is None:
        # Served without a schema of its own: any fields, but a kind that clients can find.
        name = f"io.k8s.api.{resource.group.split('.')[0] or 'core'}.{resource.version}.{resource.kind}"
        yield name, _whole(resource, {"type": "object", "x-kubernetes-preserve-unknown-fields": True})


def _whole(resource: Resource, defined: Json) -> Json:
    """A schema with what every object has."""
    properties = dict(defined.get("properties") or {})
    text = {"type": "string"}
    properties |= {"apiVersion": text, "kind": text}
    properties["metadata"] = {"allOf": [{"$ref": f"{_REF}{_META}.ObjectMeta"}]}
    return {**defined, "properties": properties, "x-kubernetes-group-version-kind": [_gvk(resource)]}


def _collect(structure: Structure, name: str, schema: Json, into: Json) -> None:
    """Add `schema` and all schemas that it refers to to `into`."""
    if name in into:
        return
    into[name] = _described(name, schema)
    for ref in _references(schema):
        _collect(structure, ref, structure.components.raw[ref], into)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str) and value.startswith(_REF):
                yield value.removeprefix(_REF)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _described(name: str, schema: Json) -> Json:
    """With the project's own descriptions, where there are any."""
    package, _version, short = name.rsplit(".", 2) if name.count(".") > 1 else ("", "", name)
    ours = load_data("descriptions.json")
    texts = ours.get(f"{package.rsplit('.', 1)[-1]}.{short}", {})
    if "x-kubernetes-group-version-kind" in schema:
        texts = ours["*"] | texts
    if not texts:
        return schema
    properties = {
        key: _with_description(value, texts[key]) if key in texts else value
        for key, value in schema.get("properties", {}).items()
    }
    described = {**schema, "properties": properties}
    return {**described, "description": texts[""]} if "" in texts else described


def _with_description(schema: Json, text: str) -> Json:
    # Beside a bare $ref nothing else is read.
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**rest, "description": text, "allOf": [{"$ref": schema["$ref"]}]}
    return {**schema, "description": text}


def _described_paths(resource: Resource) -> Json:
    base = f"/{'apis' if resource.group else 'api'}/{resource.api_version}"
    collection = f"{base}{'/namespaces/{namespace}' if resource.namespaced else ''}/{resource.plural}"
    gvk = {"x-kubernetes-group-version-kind": _gvk(resource), "responses": {"200": {"description": "OK"}}}
    write = {**gvk, "parameters": _WRITE_PARAMETERS}
    # Custom resources have no strategic merge patch: they lack the schema's patch hints.
    formats = _PATCHES if resource.definition is not None else (*_PATCHES, _STRATEGIC)
    patch = {**write, "requestBody": {"content": {kind: {"schema": {"type": "object"}} for kind in formats}}}
    operations: dict[str, tuple[str, str, Json]] = {
        "list": (collection, "get", gvk),
        "create": (collection, "post", write),
        "deletecollection": (collection, "delete", gvk),
        "get": (collection + "/{name}", "get", gvk),
        "update": (collection + "/{name}", "put", write),
        "patch": (collection + "/{name}", "patch", patch),
        "delete": (collection + "/{name}", "delete", gvk),
    }
    paths: Json = {}
    for verb in resource.verbs:
        if verb in operations:
            path, method, operation = operations[verb]
            paths.setdefault(path, {})[method] = {**operation, "x-kubernetes-action": verb}
    return paths
