"""JSON patch (RFC 6902), by the jsonpatch library.

A member that an object does not have counts as null, as on the real server: ``test`` finds a null there, ``copy`` takes
one, ``replace`` adds the member. So does a missing ``value``.
"""

from copy import deepcopy
from typing import Any

import jsonpatch
import jsonpointer

from .errors import PatchRefused

# The real server's limit on the number of operations of one patch.
_MOST_OPERATIONS = 10_000
_UNFIT = (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError, RecursionError)


def json_patch(document: Any, operations: Any) -> Any:
    """A changed copy of `document`; raises PatchRefused when an operation is malformed, misses its target or a
    `test` fails."""
    if operations is None:
        return document
    if not isinstance(operations, list):
        raise PatchRefused("a JSON patch is a list of operations")
    if len(operations) > _MOST_OPERATIONS:
        raise PatchRefused(f"the JSON patch has {len(operations)} operations, more than {_MOST_OPERATIONS}")
    try:
        changed = deepcopy(document)
        for operation in operations:
            if (strict := _strict(changed, operation)) is not None:
                changed = jsonpatch.JsonPatch([strict]).apply(changed, in_place=True)
        return changed
    except _UNFIT as fault:
        # As on the real server, the text does not name the operation.
        raise PatchRefused("the server rejected our request due to an error in our request") from fault


def _strict(document: Any, operation: dict[str, Any]) -> dict[str, Any] | None:
    """The operation as RFC 6902 would write it; None for one that changes nothing."""
    what = operation["op"]
    if what in ("add", "replace", "test"):
        operation = {"value": None, **operation}
    if what not in ("replace", "test", "copy"):
        return operation
    holder, key = jsonpointer.JsonPointer(operation["from" if what == "copy" else "path"]).to_last(document)
    if not isinstance(holder, dict) or key is None or key in holder:
        return operation
    if what == "test":
        return operation if operation["value"] is not None else None
    return {"op": "add", "path": operation["path"], "value": operation.get("value")}
