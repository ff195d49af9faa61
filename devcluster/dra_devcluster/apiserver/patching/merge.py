"""JSON merge patch (RFC 7386): a null deletes, an object merges, anything else replaces."""

from typing import Any

from .errors import PatchRefused


def merge_patch(document: Any, patch: Any) -> Any:
    """`document` with `patch` applied; neither is changed, unchanged parts are shared. Raises PatchRefused."""
    try:
        return _merge(document, patch)
    except RecursionError as fault:
        raise PatchRefused("the patch is nested too deeply") from fault


def _merge(document: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged
