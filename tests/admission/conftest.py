"""The cluster of most tests of admission: two nodes of two devices, and a template for one of them."""

from __future__ import annotations

import pytest
from admission_world import AdmissionWorld
from dra_kube import RESOURCE_CLAIM_TEMPLATES
from objects import Make


@pytest.fixture
def world() -> AdmissionWorld:
    made = AdmissionWorld()
    made.furnish(nodes=2, devices=2)
    made.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return made
