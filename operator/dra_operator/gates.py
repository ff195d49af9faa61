"""Feature gates and the release of Kubernetes as the command line takes them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from dra_api.gates import Component, FeatureGates, GateError
from dra_api.releases import BUILT, NEWEST, Release
from dra_ledger.features import GATES, Features

REMEDY: Final = "write NAME=true or NAME=false, separated by commas"
OPERATOR: Final = Component("the operator", GATES)


def parse_gates(text: str) -> dict[str, Any]:
    """``A=true,B=false`` as a mapping; a value that is neither, or both, stays a text. ``features_of`` refuses it."""
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        said = {"true": True, "false": False}.get(value, value)
        name = name.strip()
        found[name] = said if found.get(name, said) == said else "true and false"
    return found


def features_of(changes: Mapping[str, Any], release: Release = NEWEST) -> Features:
    """The release's features with these gates changed. Raises GateError, also for gates without effect here."""
    features = Features.of(FeatureGates.of(changes, release, OPERATOR))
    if features.node_allocatable_resources and release < Release.V1_37:
        raise GateError(
            f"feature gate DRANodeAllocatableResources: the first alpha of Kubernetes {release} is not supported, only "
            f"the second one of 1.37: leave it out"
        )
    return features


def accepted(changes: Mapping[str, Any], release: Release | None) -> Features:
    """The features with these changes, in the newest release that takes them if none is given.

    Raises GateError: what the release says, or the newest one if none takes them.
    """
    for candidate in reversed(BUILT.values()) if release is None else ():
        with suppress(GateError):
            return features_of(changes, candidate)
    return features_of(changes, release or NEWEST)
