"""An answer goes by what the operator says of itself on its Lease, unless the viewer says otherwise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from dra_api.codec import convert, encode
from dra_api.core import Pod
from dra_api.leases import MIX, SETTINGS, Lease, PublishedSettings
from dra_api.releases import Release
from dra_api.resource import DeviceClass
from dra_operator.app.run import published
from dra_operator.app.settings import OperatorSettings
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.sanitized import without_secrets
from dra_operator.kubectl.settings import Settings
from dra_operator.scheduling import PLACEMENT_STRATEGY_ANNOTATION as STRATEGY
from msgspec.structs import replace

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def seen(text: str | None, name: str = "dra-operator-dra-scheduler") -> Observed:
    annotations: dict[str, Any] = {"other": "x"} | ({SETTINGS: text} if text is not None else {})
    lease = convert(Lease, {"metadata": {"name": name, "namespace": "kube-system", "annotations": annotations}})
    return Observed([lease], NOW, release=Release.V1_36)


SAID = PublishedSettings(
    feature_gates="DRADeviceTaintRules=true",
    kubernetes_version="1.36",
    controllers="placement",
    scoring_strategy="MostAllocated",
    placement_strategy="frag",
    device_order="aligned",
    own_devices_only=True,
    leave_drivers="a.example.com, b.example.com",
    leave_nodes="pool=theirs",
)
TEXT = encode(SAID).decode()


def test_what_the_operator_says_counts() -> None:
    made = pipeline(seen(TEXT))
    assert made.cluster.features.taint_rules
    assert made.settings.release is Release.V1_36
    assert str(made.controllers) == "placement"
    assert made.settings.scoring_strategy == "MostAllocated"
    assert (made.settings.placement_strategy, made.settings.device_order) == ("frag", "aligned")
    leaves = made.cluster.inventory.territory.leaves
    assert leaves.unmarked
    assert leaves.drivers == {"a.example.com", "b.example.com"}
    assert leaves.nodes is not None
    assert leaves.nodes({"pool": "theirs"})


def test_what_the_viewer_says_counts_more() -> None:
    given = Settings(
        gates={"DRADeviceTaintRules": False}, scoring_strategy="LeastAllocated", placement_strategy="packing"
    )
    made = pipeline(seen(TEXT), given)
    assert not made.cluster.features.taint_rules
    assert made.settings.scoring_strategy == "LeastAllocated"
    assert (made.settings.placement_strategy, made.settings.device_order) == ("packing", "aligned")
    assert str(made.controllers) == "placement"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[]",
        "{",
        '{"placementStrategy": "of a later version"}',
        '{"featureGates": 1}',
        '{"featureGates": "DRADeviceTaintRules=true", "leaveNodes": "("}',
        '{"featureGates": "Nope=true"}',
    ],
)
def test_what_cannot_be_read_counts_as_nothing_said(text: str | None) -> None:
    made = pipeline(seen(text))
    assert not made.cluster.features.taint_rules
    assert str(made.controllers) == "templates, release, placement, eviction, allocation"


def test_the_mix_is_learned_if_a_strategy_or_a_class_asks_for_it() -> None:
    def learns(strategy: str, named: str = "") -> bool:
        class_ = convert(DeviceClass, {"metadata": {"name": "gpu", "annotations": {STRATEGY: named}}})
        objects = without_secrets([class_])
        return pipeline(Observed(objects, NOW), Settings(placement_strategy=strategy)).allocator.looks_at_mix

    assert learns("frag")
    assert learns("first-fit", "fgd")
    assert not learns("packing", "unknown")


def test_the_mix_of_the_operator_counts() -> None:
    said = seen(TEXT).objects[0]
    meta = said.metadata
    mix = '[{"weight": 5, "exactly": {"deviceClassName": "gpu"}}]'
    lease = replace(said, metadata=replace(meta, annotations={**(meta.annotations or {}), MIX: mix}))
    class_ = convert(DeviceClass, {"metadata": {"name": "gpu"}})
    made = pipeline(Observed(without_secrets([lease, class_]), NOW))
    made.learner.see(Pod(), [])
    assert [it.alternative.class_.metadata.name for it in made.allocator.learned.mix.classes] == ["gpu"]


def test_another_operator_says_nothing_about_this_one() -> None:
    assert not pipeline(seen(TEXT, "dra-operator-other")).cluster.features.taint_rules


def test_the_operator_says_what_it_was_given() -> None:
    given = OperatorSettings(
        feature_gates=SAID.feature_gates,
        kubernetes_version=SAID.kubernetes_version,
        controllers=SAID.controllers,
        scoring_strategy="MostAllocated",
        placement_strategy="frag",
        device_order="aligned",
        own_devices_only=True,
        leave_drivers=SAID.leave_drivers,
        leave_nodes=SAID.leave_nodes,
    )
    assert published(given) == SAID
