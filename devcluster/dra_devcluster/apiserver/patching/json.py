"""JSON patch (RFC 6902), by the jsonpatch library."""

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
    if not isinstance(operations, list):
        raise PatchRefused("a JSON patch is a list of operations")
    if len(operations) > _MOST_OPERATIONS:
        raise PatchRefused(f"the JSON patch has {len(operations)} operations, more than {_MOST_OPERATIONS}")
    try:
        return jsonpatch.JsonPatch(operations).apply(document)
    except _UNFIT as fault:
        # As on the real server, the text does not name the operation.
        raise PatchRefused("the server rejected our request due to an error in our request") from fault
