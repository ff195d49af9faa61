"""Patches: converts the stored object to the served version, applies the patch, and updates the object as usual."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import orjson

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.apply import ApplyConflict, ApplyRefused, Writer, apply_patch
from dra_devcluster.apiserver.errors import (
    Json,
    StatusError,
    bad_request,
    conflict,
    invalid,
    name_mismatch,
    name_missing,
    not_found,
)
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.patching import PatchRefused, json_patch, merge_patch, strategic_merge_patch
from dra_devcluster.apiserver.storage.metadata import dig, to_served
from dra_devcluster.apiserver.storage.store import Stored
from dra_devcluster.apiserver.structure import decode
from dra_devcluster.clock import now

from .checks import check_fields, check_uid_stays, check_version
from .write import create, update

Format = Literal["json", "merge", "strategic", "apply"]


def patch(
    write: Write, name: str, format_: Format, document: Any, *, force: bool = False, mode: str = ""
) -> tuple[Stored, bool]:
    """Apply a patch; returns the object and whether it is new (only ``apply`` creates). Raises 400 to 422."""
    resource = write.resource
    stored = write.registry.collection(resource).get(write.namespace, name)
    write.verb = "apply" if format_ == "apply" else "patch"
    if format_ == "apply":
        return _apply(write, stored, name, document, force=force, mode=mode)
    if stored is None:
        raise not_found(resource.group, resource.plural, name)
    served = to_served(resource, stored.decode())
    try:
        if format_ == "json":
            changed = json_patch(served, document)
        elif format_ == "merge":
            changed = merge_patch(served, _object(document))
        else:
            changed = strategic_merge_patch(served, _object(document), resource.schema)
    except PatchRefused as error:
        raise _refused(error, format_, document) from error
    changed = _object(changed)
    try:
        check_version(write, changed)
        check_fields(resource.schema, changed, mode, resource.kind, write)
    except StatusError as error:
        raise _misfit(changed, error) from error
    given = (changed.get("metadata") or {}).get("name")
    if not given:
        raise name_missing(name)
    if given != name:
        raise name_mismatch(given, name)
    return update(write, stored, changed), False


def _object(document: Any) -> Json:
    if not isinstance(document, dict):
        raise bad_request("the patch must result in an object, not in a list, a string or a number")
    return document


def _misfit(changed: Json, error: StatusError) -> StatusError:
    """The refusal of a patch whose result is no object of the kind."""
    why = error.message.rpartition(" cannot be handled as ")[2].partition(": ")[2] or error.message
    return invalid("", "", "", [faults.invalid("patch", orjson.dumps(changed).decode(), why)])


def _refused(error: PatchRefused, format_: Format, document: Any) -> StatusError:
    if format_ == "json" and isinstance(document, list):
        return StatusError(422, "Invalid", str(error), {})
    return bad_request(str(error))


def _apply(
    write: Write, stored: Stored | None, name: str, document: Any, *, force: bool, mode: str
) -> tuple[Stored, bool]:
    resource = write.resource
    config = _object(document)
    if not config.get("apiVersion") or not config.get("kind"):
        raise bad_request("an applied configuration needs apiVersion and kind")
    check_version(write, config)
    _check_applied(write, name, config, mode)
    meta = config.setdefault("metadata", {})
    if meta.get("name", name) != name:
        raise name_mismatch(meta["name"], name)
    if stored is None and write.subresource:
        raise not_found(resource.group, resource.plural, name)
    if stored is None:
        write.registry.authorization.require(write.asks("create", name))
        if uid := meta.get("uid"):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict(resource.group, resource.plural, name, why)
        if not meta.get("name"):
            raise name_missing(name)
    meta["name"] = name
    live = to_served(resource, stored.decode()) if stored is not None else None
    writer = Writer(write.manager, resource.api_version, write.subresource, "Apply")
    try:
        applied = apply_patch(live, config, resource.schema, by=writer, now=now(), force=force)
    except ApplyRefused as error:
        raise bad_request(str(error)) from error
    except ApplyConflict as error:
        causes = [
            {"reason": "FieldManagerConflict", "message": message, "field": field} for field, message in error.causes
        ]
        raise StatusError(409, "Conflict", str(error), {"causes": causes}) from error
    decode(resource.schema, applied)
    if stored is None:
        return create(write, applied), True
    check_uid_stays(write, stored, meta.get("uid"))
    return update(write, stored, applied), False


def _check_applied(write: Write, name: str, config: Json, mode: str) -> None:
    """The configuration itself stays as it was written: two writings of one quantity are two values for an apply.

    Undeclared fields cannot have an owner, so they are refused rather than dropped, whatever the mode.
    """
    resource, read = write.resource, deepcopy(config)
    unknown = [problem for problem in decode(resource.schema, read) if problem.kind == "unknown"]
    if unknown:
        namespace = dig(config, "metadata.namespace") or ""
        what = f"{namespace}/{name}; {resource.group}/{resource.version}, Kind={resource.kind}"
        texts = "\n".join(f".{problem.path}: field not declared in schema" for problem in unknown)
        raise StatusError(500, "", f"failed to create typed patch object ({what}): {texts}")
    check_fields(resource.schema, read, mode, resource.kind, write)
