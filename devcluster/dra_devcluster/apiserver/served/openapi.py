"""The OpenAPI documents that kubectl reads: explain, validation, server-side dry run, strategic merge by schema.

    v3_index(structure) -> Json                      /openapi/v3
    v3_document(structure, group, version)           /openapi/v3/apis/<group>/<version>; None when nothing is served
    v2_document(structure) -> Json                   /openapi/v2 (as JSON; definitions only)
    V2_PROTOBUF, v2_frame() -> bytes                 /openapi/v2 for clients that read protobuf only (kubectl)

They are built from the same components that the decoder uses; documents are computed when asked for, and the index
carries a digest of what went into each, by which clients keep them in their caches. Texts for `kubectl explain` are
our own (`schema/descriptions.json`), keyed without version: a type means the same in all of them.
"""

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any

import orjson

from dra_devcluster.apiserver.structure import Resource, Structure, load_data

Json = dict[str, Any]

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
    """Where the documents are."""
    paths = {}
    for group, version in _group_versions(structure):
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        digest = blake2b(_builtin_digest() + str(structure.release).encode(), digest_size=16)
        for resource in _resources(structure, group, version):
            digest.update(orjson.dumps([resource.plural, resource.definition], option=orjson.OPT_SORT_KEYS))
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest.hexdigest().upper()}"}
    return {"paths": paths}


def v3_document(structure: Structure, group: str, version: str) -> Json | None:
    """Paths and schemas of one group version."""
    resources = _resources(structure, group, version)
    if not resources:
        return None
    schemas: Json = {}
    paths: Json = {}
    for resource in resources:
        for name, schema in _roots(structure, resource):
            _collect(structure, name, schema, schemas)
        paths |= _paths(resource)
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": schemas}}


def v2_document(structure: Structure) -> Json:
    """All schemas as Swagger definitions."""
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


def _group_versions(structure: Structure) -> list[tuple[str, str]]:
    return list(dict.fromkeys((resource.group, resource.version) for resource in structure.resources()))


def _resources(structure: Structure, group: str, version: str) -> list[Resource]:
    return [r for r in structure.resources() if (r.group, r.version) == (group, version)]


def _gvk(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _roots(structure: Structure, resource: Resource) -> Iterator[tuple[str, Json]]:
    """The named schemas from which everything else about a resource is reached."""
    if resource.definition is not None:
        name = ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])
        yield name, _custom_schema(resource)
        return
    for kind in [resource.kind, *(subresource.kind for subresource in resource.subresources.values())]:
        known = structure.component_name(resource, kind)
        if known:
            yield known, structure.components.raw[known]
    if structure.component_name(resource) is None:
        # Served without a schema of its own: any fields, but a kind that clients can find.
        bare = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        yield (
            f"io.k8s.api.{resource.group.split('.')[0] or 'core'}.{resource.version}.{resource.kind}",
            _whole(resource, bare),
        )


def _custom_schema(resource: Resource) -> Json:
    defined = (resource.definition or {}).get("schema", {}).get("openAPIV3Schema") or {"type": "object"}
    return _whole(resource, defined)


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


def _paths(resource: Resource) -> Json:
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    collection = (
        f"{base}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}"
    )
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
