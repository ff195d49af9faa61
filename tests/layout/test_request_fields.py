"""A gated field of requests is known to few files: those of the recipe in CONTRIBUTING.md.

Before there was a registry, each field was named by sixteen to twenty-four files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import pytest
from dra_api.gates import GATE_OF, TABLE, FeatureGates
from dra_api.releases import NEWEST, Release
from dra_api.resource import DeviceRequest, DeviceRequestAllocationResult, DeviceSubRequest, ExactDeviceRequest
from dra_api.strategy import GATED_FIELDS
from dra_api.validation.requests import REQUEST_FIELDS, Place, RequestField

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("proto/dra_api", "ledger", "operator", "simulator", "kubeletplugin", "devcluster")
MOST_FILES: Final = 6
BY_THE_RECIPE: Final = [field for field in REQUEST_FIELDS if field.since >= Release.V1_37]
STRUCTS: Final[dict[Place, type[msgspec.Struct]]] = {
    Place.REQUEST: DeviceRequest,
    Place.EXACTLY: ExactDeviceRequest,
    Place.ALTERNATIVE: DeviceSubRequest,
    Place.RESULT: DeviceRequestAllocationResult,
}


def files_that_name(field: RequestField) -> list[str]:
    """The files with its name in JSON, its gate, or an access to its attribute."""
    gate = GATE_OF[field.gate]
    named = re.compile(rf'\b{field.name}\b|\b{gate}\b|\.{field.attribute}\b|\b{field.attribute}:|"{field.attribute}"')
    files = (file for folder in SOURCES for file in sorted((ROOT / folder).rglob("*.py")))
    return [str(file.relative_to(ROOT)) for file in files if named.search(file.read_text())]


@pytest.mark.parametrize("field", BY_THE_RECIPE, ids=[field.name for field in BY_THE_RECIPE])
def test_a_field_with_its_gate_is_named_by_few_files(field: RequestField) -> None:
    named = files_that_name(field)
    assert "proto/dra_api/validation/requests.py" in named
    assert len(named) <= MOST_FILES, named


@pytest.mark.parametrize("field", REQUEST_FIELDS, ids=[field.name for field in REQUEST_FIELDS])
def test_a_row_names_a_gate_a_struct_has_the_field_and_a_server_drops_it(field: RequestField) -> None:
    assert field.gate in {one.name for one in msgspec.structs.fields(FeatureGates)}
    assert TABLE[GATE_OF[field.gate]].at(NEWEST) is not None
    for place in field.places:
        assert (field.attribute, field.name) in {
            (one.name, one.encode_name) for one in msgspec.structs.fields(STRUCTS[place])
        }
    assert set(field.paths("spec.devices")) <= set(GATED_FIELDS["ResourceClaim"][field.gate])
    assert set(field.paths("spec.spec.devices")) <= set(GATED_FIELDS["ResourceClaimTemplate"][field.gate])
