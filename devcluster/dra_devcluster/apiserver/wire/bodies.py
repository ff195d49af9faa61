"""Requests on the wire: the target in the URL, the query, the body.

Flags in the query of a URL.

Parses a URL into the resource, namespace, object and sub-resource of a request.

Reads request bodies and writes response bodies: media types, the size limit, and the shape that the client asked
for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

import orjson
import yaml
from aiohttp import web
from dra_api import yaml_text

from dra_devcluster.apiserver.errors import Json, bad_request, not_acceptable, too_large, unsupported_media_type
from dra_devcluster.apiserver.wire.protobuf import MalformedProtobuf, decode_protobuf


def flag(query: Mapping[str, str], name: str) -> bool:
    """A flag is set by its mere presence, unless it says ``false`` or ``0``."""
    return name in query and query[name].lower() not in ("false", "0")


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


BODY_BYTES = 3 * 2**20  # as the real server's
JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
PATCHES: dict[str, Literal["json", "merge", "strategic", "apply"]] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
_READABLE = (JSON, YAML, PROTOBUF)

Shape = Literal["object", "table", "metadata"]
_ONE = "PartialObjectMetadata"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the Accept header asks for."""

    shape: Shape = "object"
    yaml: bool = False
    version: str = "v1"  # of meta.k8s.io, for tables and metadata
    is_list: bool = False  # metadata of a list

    def check_metadata(self, group: str, kind: str, *, is_list: bool) -> None:
        """Metadata of an object and of a list of them have different names. Raises a 406."""
        if self.shape == "metadata" and self.is_list is not is_list:
            package = group.partition(".")[0] or "core"
            asked, there = (f"{_ONE}List", "not a list") if self.is_list else (_ONE, "a list")
            raise not_acceptable(f"you requested {asked}, but the requested object is {there} (*{package}.{kind})")


async def read_body(request: web.BaseRequest) -> bytes:
    """The whole body. Raises 413 beyond the limit."""
    if request.content_length is not None and request.content_length > BODY_BYTES:
        raise too_large(BODY_BYTES)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > BODY_BYTES:
            raise too_large(BODY_BYTES)
    return bytes(body)


def media_type(request: web.BaseRequest) -> str:
    """The Content-Type without its parameters; JSON when there is none."""
    return request.headers.get("Content-Type", JSON).partition(";")[0].strip().lower() or JSON


def parse_object(body: bytes, kind_of_body: str) -> Json:
    """The object of a body. Raises 400 for malformed content and 415 for unknown media types."""
    if kind_of_body == PROTOBUF:
        try:
            return decode_protobuf(body)
        except MalformedProtobuf as error:
            raise bad_request(str(error)) from error
    if kind_of_body not in _READABLE:
        raise unsupported_media_type(_READABLE)
    document = parse_document(body, is_yaml=kind_of_body == YAML)
    if not isinstance(document, dict):
        raise bad_request("the body of the request is not a JSON object: an object has at least apiVersion and kind")
    return document


def parse_document(body: bytes, *, is_yaml: bool = False) -> Any:
    """Any JSON (or YAML) document. Raises 400."""
    try:
        return _yaml(body) if is_yaml else orjson.loads(body)
    except (orjson.JSONDecodeError, yaml.YAMLError, RecursionError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type json or yaml): {error}") from error


def _yaml(body: bytes) -> Any:
    try:
        return orjson.loads(body)  # JSON is YAML, and the usual case
    except orjson.JSONDecodeError:
        document = yaml_text.load(body)
    # Converted to JSON and back: dates become texts, and keys that JSON does not allow are refused.
    try:
        return orjson.loads(orjson.dumps(document))
    except TypeError as error:
        raise yaml.YAMLError(str(error)) from error


_CLAUSE = re.compile(r"\s*(?P<type>[^;,\s]+)(?P<parameters>(?:;[^,]*)?)")
_SHAPES: dict[str, Shape] = {
    "Table": "table",
    _ONE: "metadata",
    f"{_ONE}List": "metadata",
}
_META_VERSIONS = ("v1", "v1beta1")
_META_GROUP = "meta.k8s.io"


def wanted(accept: str) -> Wanted:
    """The first clause of the Accept header that can be met. Raises 406."""
    if not accept or accept == JSON:
        return Wanted()
    for clause in accept.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            continue
        parameters = dict(part.strip().partition("=")[::2] for part in match["parameters"].split(";") if part)
        shape = _SHAPES.get(parameters.get("as", ""))
        version = parameters.get("v", "")
        is_served = shape is not None and version in _META_VERSIONS and parameters.get("g") == _META_GROUP
        if "as" in parameters and not is_served:
            continue
        is_list = parameters.get("as") == f"{_ONE}List"
        if match["type"] in (JSON, "application/*", "*/*"):
            return Wanted(shape or "object", version=version or "v1", is_list=is_list)
        if match["type"] == YAML:
            return Wanted(shape or "object", yaml=True, version=version or "v1", is_list=is_list)
    raise not_acceptable(f"only the following media types are accepted: {JSON}, {YAML}")


def respond(
    body: bytes, want: Wanted = Wanted(), code: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> web.Response:
    """A response of JSON bytes, as YAML if so asked."""
    kind = JSON
    if want.yaml:
        body, kind = yaml.safe_dump(orjson.loads(body), sort_keys=False).encode(), YAML
    return web.Response(body=body, status=code, headers=headers, content_type=kind)
