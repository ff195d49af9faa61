"""The checks, one noun per file. A new file is entered in ``ALL``."""

from __future__ import annotations

from dra_driver_test.check import Check, entered

from . import (
    cdi,
    claims,
    concurrency,
    configuration,
    damage,
    edits,
    health,
    metadata,
    names,
    prepare,
    reboot,
    registration,
    restart,
    rolling,
    slices,
    unprepare,
    versions,
)

MODULES = (
    registration,
    prepare,
    claims,
    unprepare,
    concurrency,
    versions,
    configuration,
    names,
    cdi,
    edits,
    metadata,
    slices,
    restart,
    reboot,
    damage,
    rolling,
    health,
)


def all_checks() -> list[Check]:
    """All checks, in the order in which they run."""
    order = {module.__name__.rpartition(".")[2]: index for index, module in enumerate(MODULES)}
    return sorted(entered(), key=lambda one: order[one.name.partition(".")[0]])
