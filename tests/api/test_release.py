"""Which release of Kubernetes decides: the one that is chosen, or the nearest to that of the API server."""

from __future__ import annotations

import pytest
from dra_api.releases import BUILT, NEWEST, Release, chosen, release_of

TREATED = "it is treated as"


@pytest.mark.parametrize(
    ("minor", "release"), [("32", Release.V1_32), ("35", Release.V1_35), ("36", Release.V1_36), ("36+", Release.V1_36)]
)
def test_the_release_of_the_server_counts(minor: str, release: Release) -> None:
    assert release_of({"major": "1", "minor": minor}) == (release, "")


@pytest.mark.rule("K37-GATE-03")
def test_a_server_that_emulates_an_older_release_counts_as_that_one() -> None:
    version = {"major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "36"}
    assert release_of(version) == (Release.V1_36, "")
    assert release_of({**version, "emulationMajor": "", "emulationMinor": ""}) == (Release.V1_37, "")


@pytest.mark.parametrize(
    ("version", "release", "note"),
    [
        ({"major": "1", "minor": "99"}, NEWEST, f"the API server is Kubernetes 1.99; {TREATED} {NEWEST}, the newest"),
        ({"major": "2", "minor": "0"}, NEWEST, f"the API server is Kubernetes 2.0; {TREATED} {NEWEST}, the newest"),
        ({"major": "1", "minor": "9"}, Release.V1_32, f"the API server is Kubernetes 1.9; {TREATED} 1.32, the oldest"),
        ({}, NEWEST, "the API server does not tell its version"),
        ({"major": "1", "minor": None}, NEWEST, "the API server does not tell its version"),
        ({"major": "1", "minor": "9" * 5000}, NEWEST, f"the API server is Kubernetes 1.999999999; {TREATED}"),
    ],
    ids=str,
)
def test_a_server_of_no_known_release_is_treated_as_the_nearest_and_that_is_said(
    version: dict[str, object], release: Release, note: str
) -> None:
    found, said = release_of(version)
    assert found == release
    assert said.startswith(note)


def test_only_a_release_that_is_built_can_be_chosen() -> None:
    assert chosen("auto") is None
    assert [chosen(name) for name in BUILT] == [release for release in Release if release <= NEWEST]
    for name in ("1.31", "1.99", "1.4", "36", ""):
        with pytest.raises(ValueError, match=r"not among 1\.32"):
            chosen(name)


def test_releases_are_named_as_people_do() -> None:
    assert f"{Release.V1_36}" == str(Release.V1_36) == "1.36"
    assert Release.V1_36 < Release.V1_37
