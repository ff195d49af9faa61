"""Feature gates by release: the facts, what a component takes, and what it says when it refuses (api.md section 2)."""

from __future__ import annotations

import pytest
from dra_api.gates import GATE_OF, TABLE, Component, FeatureGates, Gate, GateError, Stage, Step, defaults_of
from dra_api.releases import Release, release_of

OLD, NEW = Release.V1_36, Release.V1_37
SCHEDULER = Component("the scheduler", frozenset({"DRADeviceTaints", "DRADeviceTaintRules", "DRAAdminAccess"}))


@pytest.mark.parametrize(("name", "gate"), TABLE.items(), ids=TABLE)
def test_the_history_of_a_gate_is_one_that_kubernetes_allows(name: str, gate: Gate) -> None:
    """Features only become more mature, a lock stays, and what is not stable is not locked."""
    releases = [step.since for step in gate.steps]
    assert releases == sorted(set(releases))
    stages = [list(Stage).index(step.stage) for step in gate.steps]
    assert stages == sorted(stages)
    locks = [step.locked for step in gate.steps]
    assert locks == sorted(locks)
    assert all(step.stage is Stage.GA and step.default for step in gate.steps if step.locked)
    assert not any(step.default for step in gate.steps if step.stage is Stage.ALPHA)
    assert name not in gate.needs
    assert set(gate.needs) <= TABLE.keys()


@pytest.mark.parametrize("release", Release, ids=str)
def test_the_defaults_of_a_release_are_accepted(release: Release) -> None:
    FeatureGates.of({}, release)


@pytest.mark.parametrize("release", [r for r in Release if r >= Release.V1_34], ids=str)
def test_a_gate_that_is_on_by_default_needs_only_such_gates(release: Release) -> None:
    for name in TABLE:
        step = TABLE[name].at(release)
        if step is not None and step.default:
            needed = [TABLE[other].at(release) for other in TABLE[name].needs]
            assert all(other is not None and other.default for other in needed)


def test_every_attribute_is_a_gate_of_the_table() -> None:
    assert set(GATE_OF.values()) <= TABLE.keys()


@pytest.mark.rule("K37-EXT-01", "K37-GATE-04", "K37-PRIO-01", "K37-STAT-01")
@pytest.mark.parametrize(
    ("name", "release", "step"),
    [
        ("DRAAdminAccess", 32, (Stage.ALPHA, False, False)),
        ("DRAAdminAccess", 35, (Stage.BETA, True, False)),
        ("DRAAdminAccess", 36, (Stage.GA, True, True)),
        ("DRAPrioritizedList", 36, (Stage.GA, True, False)),
        ("DRAPrioritizedList", 37, (Stage.GA, True, True)),
        ("DRADeviceTaintRules", 36, (Stage.BETA, False, False)),
        ("DRADeviceTaintRules", 37, (Stage.GA, True, False)),
        ("DRAWorkloadResourceClaims", 37, (Stage.BETA, False, False)),
        ("DRAFractionalCapacityRange", 37, (Stage.BETA, False, False)),
        ("DRAExtendedResource", 36, (Stage.BETA, True, False)),
        ("DRAExtendedResource", 37, (Stage.GA, True, True)),
        ("DRAResourceClaimDeviceStatus", 36, (Stage.BETA, True, False)),
        ("DRAResourceClaimDeviceStatus", 37, (Stage.GA, True, True)),
        ("DRAResourceClaimGranularStatusAuthorization", 37, (Stage.BETA, True, False)),
        ("ResourceHealthStatus", 37, (Stage.BETA, True, False)),
    ],
)
def test_a_gate_is_in_each_release_what_kubernetes_made_of_it(
    name: str, release: int, step: tuple[Stage, bool, bool]
) -> None:
    found = TABLE[name].at(Release(release))
    assert found is not None
    assert (found.stage, found.default, found.locked) == step


@pytest.mark.rule("K37-GATE-03")
def test_a_release_does_not_have_gates_that_came_later_or_are_gone() -> None:
    assert TABLE["DRAConsumableCapacity"].at(Release.V1_33) is None
    assert TABLE["GangScheduling"].at(OLD) == Step(Release.V1_35, Stage.ALPHA, default=False)
    assert TABLE["GangScheduling"].at(NEW) is None
    assert not FeatureGates.of({}, Release.V1_33).consumable_capacity


def test_changes_count_beside_the_defaults_of_the_release() -> None:
    assert FeatureGates.of({"DRADeviceTaintRules": True}, OLD).taint_rules
    assert not FeatureGates.of({"DRADeviceTaintRules": False}, NEW).taint_rules
    assert FeatureGates.of({"DRAAdminAccess": False}, Release.V1_35).prioritized_list
    assert not FeatureGates.of({"DRAAdminAccess": False}, Release.V1_35).admin_access


def test_a_locked_gate_may_be_named_with_its_own_value() -> None:
    assert FeatureGates.of({"DRAAdminAccess": True}, OLD).admin_access


@pytest.mark.rule("K37-GATE-01", "K37-GATE-02")
@pytest.mark.parametrize(
    ("changes", "release", "said"),
    [
        ({"DRADeviceTaint": True}, OLD, "unknown feature gate DRADeviceTaint; did you mean DRADeviceTaints?"),
        ({"Nope": True}, OLD, "unknown feature gate Nope; known are DRAAdminAccess, DRADeviceTaintRules"),
        (
            {"GenericWorkload": True},
            OLD,
            "the scheduler does not look at GenericWorkload, only at DRAAdminAccess, DRADeviceTaintRules, "
            "DRADeviceTaints",
        ),
        ({"DRADeviceTaints": "yes"}, OLD, "neither true nor false: DRADeviceTaints"),
        (
            {"DRADeviceTaintRules": True},
            Release.V1_34,
            "Kubernetes 1.34 has no feature gate DRADeviceTaintRules, which came with 1.35: leave it out",
        ),
        (
            {"DRAAdminAccess": False},
            OLD,
            "feature gate DRAAdminAccess is locked to true in Kubernetes 1.36: leave it out",
        ),
        (
            {"DRADeviceTaints": False, "DRADeviceTaintRules": True},
            OLD,
            "feature gate DRADeviceTaintRules is on and needs DRADeviceTaints, which is off: "
            "set DRADeviceTaintRules=false, or leave DRADeviceTaints on",
        ),
        (
            {"DRADeviceTaints": False},
            NEW,
            "feature gate DRADeviceTaintRules is on by default in Kubernetes 1.37 and needs DRADeviceTaints, which is "
            "off: set DRADeviceTaintRules=false, or leave DRADeviceTaints on",
        ),
    ],
)
def test_a_refusal_names_gate_release_and_remedy(changes: dict[str, object], release: Release, said: str) -> None:
    with pytest.raises(GateError) as caught:
        FeatureGates.of(changes, release, SCHEDULER)
    assert str(caught.value).startswith(said)


def test_what_a_component_does_not_look_at_is_no_condition() -> None:
    """DRAWorkloadResourceClaims needs GenericWorkload, at which nodes do not look."""
    node = Component("a node", frozenset({"DRAWorkloadResourceClaims"}))
    assert FeatureGates.of({"DRAWorkloadResourceClaims": True}, OLD, node).workload_resource_claims
    with pytest.raises(GateError, match="needs GenericWorkload, which is off"):
        FeatureGates.of({"DRAWorkloadResourceClaims": True}, OLD)


@pytest.mark.rule("K37-GATE-07")
def test_binding_conditions_need_a_place_to_be_reported_in() -> None:
    off = {"DRAResourceClaimDeviceStatus": False, "DRAResourceClaimGranularStatusAuthorization": False}
    with pytest.raises(GateError, match=r"DRADeviceBindingConditions is on by default .* and needs DRAResourceClaimDe"):
        FeatureGates.of(off, OLD)
    assert not FeatureGates.of({**off, "DRADeviceBindingConditions": False}, OLD).binding_conditions


@pytest.mark.rule("K37-GATE-03")
@pytest.mark.parametrize(
    ("version", "is_on"),
    [
        ({"minor": "37"}, False),
        ({"minor": "37", "minCompatibilityMajor": "1", "minCompatibilityMinor": "36"}, False),
        ({"minor": "37", "minCompatibilityMajor": "1", "minCompatibilityMinor": "37"}, True),
        ({"minor": "38", "minCompatibilityMajor": "1", "minCompatibilityMinor": "37"}, True),
        ({"minor": "36", "minCompatibilityMajor": "1", "minCompatibilityMinor": "37"}, False),
        (
            {
                "minor": "37",
                "emulationMajor": "1",
                "emulationMinor": "36",
                "minCompatibilityMajor": "1",
                "minCompatibilityMinor": "37",
            },
            False,
        ),
    ],
    ids=["not said", "plain", "told", "newer than known", "older", "emulated"],
)
def test_a_gate_may_be_on_where_no_older_component_has_to_be_compatible(version: dict[str, str], is_on: bool) -> None:
    said = {"major": "1", **version}
    gates = FeatureGates.of(defaults_of(said), release_of(said)[0])
    assert gates.fractional_capacity_ranges is is_on


@pytest.mark.rule("K37-CG-09", "K37-DA-12", "K37-FR-06", "K37-ONO-04", "K37-PS-03")
@pytest.mark.parametrize("name", [name for name in GATE_OF.values() if TABLE[name].steps[0].since is NEW])
def test_a_feature_of_1_37_is_unknown_before(name: str) -> None:
    """Its gate can be set from 1.37 on, together with those that it needs."""
    attribute = next(attribute for attribute, gate in GATE_OF.items() if gate == name)
    needed = {other: True for other in (name, *TABLE[name].needs) if other in GATE_OF.values()}
    assert getattr(FeatureGates.of(needed, NEW), attribute)
    with pytest.raises(GateError, match=f"Kubernetes 1.36 has no feature gate {name}, which came with 1.37"):
        FeatureGates.of({name: True}, OLD)
