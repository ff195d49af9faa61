"""The operator decides as the release of its API server does, from its start to its end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from dra_api.gates import GateError
from dra_api.releases import NEWEST, Release
from dra_devcluster.apiserver import documents
from dra_operator.allocator import Features
from dra_operator.app.control_plane import AGREED_SECONDS, ReleaseInForce
from dra_operator.app.settings import OperatorSettings
from supervised import Supervising


def said(minor: str) -> dict[str, Any]:
    return {"major": "1", "minor": minor}


def test_the_server_decides_about_the_defaults_of_gates() -> None:
    old = ReleaseInForce({"DRADeviceTaints": True}, None)
    old.decide(said("35"))
    assert old.features.device_taints
    assert not old.features.consumable_capacity
    assert (old.release, old.note) == (Release.V1_35, "as Kubernetes 1.35")
    new = ReleaseInForce({}, None)
    new.decide(said("37"))
    assert new.features == Features()


def test_a_release_that_was_chosen_counts_whatever_the_server_is() -> None:
    chosen = ReleaseInForce({}, Release.V1_34)
    chosen.decide(said("36"))
    assert chosen.release == Release.V1_34
    assert not chosen.features.device_taints


@pytest.mark.rule("K37-GATE-03")
def test_the_minimum_compatibility_version_of_the_server_counts_unless_a_gate_or_release_is_named() -> None:
    version = {**said("37"), "minCompatibilityMajor": "1", "minCompatibilityMinor": "37"}
    for gates, chosen, is_on in (
        ({}, None, True),
        ({"DRAFractionalCapacityRange": False}, None, False),
        ({}, Release.V1_37, False),
    ):
        in_force = ReleaseInForce(gates, chosen)
        in_force.decide(version)
        assert in_force.features.fractional_capacity_ranges is is_on


def test_the_servers_of_a_control_plane_that_is_upgraded_do_not_change_it_to_and_fro(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    release = ReleaseInForce({}, None)
    for minor in ("35", "36", "35", "36"):
        release.decide(said(minor))
    assert release.release == Release.V1_35
    assert [record.message for record in caplog.records] == ["deciding as Kubernetes 1.35"]


def test_an_upgrade_is_told_once_and_by_the_probe_until_the_operator_is_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While both releases answer nothing is said: the old one is what all API servers have."""
    caplog.set_level(logging.WARNING)
    now = [0.0]
    release = ReleaseInForce({}, None, lambda: now[0])
    release.decide(said("36"))
    for minor in ("36", "37", "36", "37"):
        assert release.heard(said(minor)) == Release.V1_36
        assert release.note == "as Kubernetes 1.36"
    now[0] += AGREED_SECONDS
    for _ in range(3):
        assert release.heard(said("37")) == Release.V1_37
    note = "as Kubernetes 1.36, but all API servers are Kubernetes 1.37 now; restart the operator to decide as they do"
    assert release.note == note
    assert [record.message for record in caplog.records] == [note]
    assert release.release == Release.V1_36


def test_an_operator_that_started_in_the_middle_of_an_upgrade_says_so() -> None:
    now = [0.0]
    release = ReleaseInForce({}, None, lambda: now[0])
    release.decide(said("37"))
    release.heard(said("36"))
    assert release.note == (
        "as Kubernetes 1.37, but an API server is Kubernetes 1.36; restart the operator once all of them have the same "
        "release"
    )
    now[0] += AGREED_SECONDS
    release.heard(said("37"))
    assert release.note == "as Kubernetes 1.37"


@pytest.mark.rule("K37-GATE-02")
def test_a_gate_that_the_server_s_release_has_locked_is_refused_at_the_start() -> None:
    with pytest.raises(GateError, match="DRAAdminAccess is locked to true in Kubernetes 1\\.36"):
        ReleaseInForce({"DRAAdminAccess": False}, None).decide(said("36"))
    ReleaseInForce({"DRAAdminAccess": False}, None).decide(said("35"))


async def test_a_server_that_is_newer_than_we_know_is_told_in_the_log_and_by_the_probe(
    supervising: Supervising, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = documents.version_of
    monkeypatch.setattr(documents, "version_of", lambda release: made(release) | {"emulationMinor": "99"})
    note = f"the API server is Kubernetes 1.99; it is treated as {NEWEST}, the newest known here"
    async with supervising(OperatorSettings()) as site:
        await site.ready()
        notes = {check.name: check.note for check in site.supervisor.health.readiness()}
    assert notes["kubernetes"] == note
    assert [record.levelname for record in caplog.records if record.message == note] == ["WARNING"]
