"""The feature gates that the API server uses: those that decide which fields exist, and who may write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from dra_api.gates import FeatureGates, UnknownGate
from dra_api.strategy import GATED_FIELDS

_NAMES: Final = {field.name: field.encode_name for field in msgspec.structs.fields(FeatureGates)}
_FIELDS: Final = frozenset(field for fields in GATED_FIELDS.values() for field in fields)

GATES: Final = frozenset(_NAMES[field] for field in _FIELDS & _NAMES.keys()) | {
    "DRADeviceBindingConditions",
    "DRAResourceClaimGranularStatusAuthorization",
}
"""Their names. Binding conditions take two gates, one of which has fields of its own."""


def gates_of(values: Mapping[str, bool]) -> FeatureGates:
    """The defaults of Kubernetes 1.36 with these changes. Raises UnknownGate, also for gates without effect here."""
    gates = FeatureGates.of(values)
    if idle := sorted(values.keys() - GATES):
        raise UnknownGate(f"the API server does not look at {', '.join(idle)}, only at {', '.join(sorted(GATES))}")
    return gates
