"""Checks of a request: its body fits the kind, and the object meets its preconditions."""

from __future__ import annotations

from typing import Any

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json, bad_request, conflict, invalid
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.storage.store import Stored
from dra_devcluster.apiserver.structure import Schema, decode, refusal


def check_fields(schema: Schema, obj: Json, mode: str, title: str, write: Write) -> None:
    """Drop unknown fields, warn about them or refuse them (``fieldValidation``). Raises 400."""
    problems = decode(schema, obj)
    if any(problem.kind == "type" for problem in problems) or (problems and mode == "Strict"):
        raise bad_request(refusal(write.resource.version, title, problems))
    if mode in ("", "Warn"):
        write.warnings += [problem.text for problem in problems]


def check_version(write: Write, obj: Json) -> None:
    """The body must be of the kind that the URL names. Raises 400."""
    resource = write.resource
    version = obj.setdefault("apiVersion", resource.api_version)
    kind = obj.setdefault("kind", resource.kind)
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind != resource.kind:
        raise bad_request(f"the kind in the data ({kind}) does not match the expected kind ({resource.kind})")


def check_uid_stays(write: Write, stored: Stored, uid: Any) -> None:
    """A patch may name the UID of the object, and no other. Raises a 422."""
    resource = write.resource
    if uid and uid != stored.uid:
        raise invalid(resource.group, resource.kind, stored.name, [faults.immutable("metadata.uid", uid)])


def check_preconditions(write: Write, old: Json, uid: Any, revision: Any) -> None:
    """The object must be the one that the client means, in the state that it saw. Raises a 409."""
    resource, meta = write.resource, old["metadata"]
    if uid and uid != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
        raise conflict(resource.group, resource.plural, meta["name"], why)
    if revision and str(revision) != meta["resourceVersion"]:
        raise conflict(resource.group, resource.plural, meta["name"])
