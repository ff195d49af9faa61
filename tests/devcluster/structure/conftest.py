"""The structure of the built-in kinds, loaded once: no test here changes it."""

from __future__ import annotations

import pytest
from dra_devcluster.apiserver.structure import Schema, Structure


@pytest.fixture(scope="session")
def structure() -> Structure:
    return Structure.load()


@pytest.fixture(scope="session")
def pod_schema(structure: Structure) -> Schema:
    schema = structure.schema("", "v1", "Pod")
    assert schema is not None
    return schema
