"""The feature gates that the API server uses: those that decide which fields exist, and who may write them."""

from __future__ import annotations

from typing import Final

from dra_api.releases.gates import GATE_OF, Component
from dra_api.strategy import GATED_FIELDS

_ATTRIBUTES: Final = {attribute for fields in GATED_FIELDS.values() for attribute in fields}

API_SERVER: Final = Component(
    "the API server",
    frozenset(GATE_OF[attribute] for attribute in _ATTRIBUTES & GATE_OF.keys())
    # Binding conditions take two gates, one of which has fields of its own.
    | {"DRADeviceBindingConditions", "DRAResourceClaimGranularStatusAuthorization"}
    # What ranges may say, and fields that are refused without their gate.
    | {"DRAFractionalCapacityRange", "DRAPartitionableDevicesType"}
    # Whether PodGroups are served, and pods name them; up to 1.36 whether they have a priority and say how they end.
    | {"GenericWorkload", "WorkloadAwarePreemption"}
    # No field has it: the gate before needs it.
    | {"GangScheduling"},
)
