"""Which rights the operators of a cluster need: those of ``app.rights`` for the settings on their Leases."""

from __future__ import annotations

from typing import Final

from dra_api.leases import Lease

from dra_operator.app.rights import Right, Work, lease_rights, needed
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings

LEASE_PREFIX: Final = "dra-operator-"
"""Of the Lease's name, before the name of the scheduler."""


def needed_rights(seen: Observed) -> dict[Right, str]:
    """Those of the operators that have a Lease, by what they are for; none without one."""
    found: dict[Right, str] = {}
    for lease in seen.every(Lease):
        if not lease.metadata.name.startswith(LEASE_PREFIX):
            continue
        settings = Settings(lease.metadata.name.removeprefix(LEASE_PREFIX)).completed(seen)
        work = Work(settings.controllers, settings.features(seen), settings.preemption)
        found |= {right: rule.purpose for right, rule in needed(work).items()}
        found |= dict.fromkeys(lease_rights(lease.metadata.name), "to lead")
    return found
