"""Device taints and tolerations. Spec: api.md sections 4 and 6."""

from __future__ import annotations

from typing import Final

from dra_api.resource import DeviceTaint, DeviceToleration
from dra_api.validation.errors import Errors, invalid, not_supported, required
from dra_api.validation.formats import checked, label_key, label_value

_EFFECTS: Final = {"None", "NoSchedule", "NoExecute"}
_OPERATORS: Final = {"Equal", "Exists"}


def taint(taint: DeviceTaint, path: str, old: DeviceTaint | None = None) -> Errors:
    """A taint; an effect that ``old`` already had is valid, even if it is unknown."""
    yield from checked(label_key, taint.key, f"{path}.key")
    yield from checked(label_value, taint.value, f"{path}.value")
    if old is not None and old.effect == taint.effect:
        return
    if not taint.effect:
        yield required(f"{path}.effect")
    elif taint.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", taint.effect, _EFFECTS)


def toleration(toleration: DeviceToleration, path: str) -> Errors:
    """A toleration; no key tolerates all keys, no effect all effects."""
    if toleration.key:
        yield from checked(label_key, toleration.key, f"{path}.key")
    match toleration.operator:
        case "Exists":
            if toleration.value:
                yield invalid(f"{path}.value", toleration.value, "must be empty for operator `Exists`")
        case "Equal":
            yield from checked(label_value, toleration.value, f"{path}.value")
        case "":
            yield required(f"{path}.operator")
        case operator:
            yield not_supported(f"{path}.operator", operator, _OPERATORS)
    if toleration.effect and toleration.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", toleration.effect, _EFFECTS)
