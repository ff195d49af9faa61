"""coordination.k8s.io/v1 Lease: which of several processes works, and until when."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from .codec import DecodeError, decode
from .meta import Object, Part
from .values import parse_time

LEASE_NAMESPACE: Final = "kube-system"
"""The namespace of the Leases of operators, unless they are told another one, and of Kubernetes' own components."""

SETTINGS: Final = "dra.kopf.dev/settings"
"""Annotation of the Lease of an operator: those of its settings that decide what fits, as JSON."""

MIX: Final = "dra.kopf.dev/placement-mix"
"""Annotation of the Lease of an operator: what pods asked for lately, if it places pods by that."""

SHARED: Final = "dra.kopf.dev/shared-drivers"
"""Annotation of the Lease of an operator: whose devices other schedulers allocated lately, as JSON: driver to time."""

MOST_AHEAD_SECONDS: Final = 3600.0
"""A holder's clock may be ahead by as much."""


class PublishedSettings(Part, frozen=True):
    """As the operator was given them."""

    feature_gates: str = ""
    kubernetes_version: str = "auto"
    controllers: str = "auto"
    scoring_strategy: str = "LeastAllocated"
    placement_strategy: str = "first-fit"
    device_order: str = "reference"
    preemption: bool = False
    preempt_other_schedulers: bool = False
    own_devices_only: bool = False
    leave_drivers: str = ""
    leave_nodes: str = ""
    preemption_patience: float = 30.0


class LeaseSpec(Part, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(Object, frozen=True):
    spec: LeaseSpec = LeaseSpec()

    def is_held(self, now: datetime) -> bool:
        """Return whether a holder has renewed it in time."""
        renewed = parse_time(self.spec.renew_time)
        if not self.spec.holder_identity or renewed is None or self.is_ahead(now):
            return False
        # A difference and not a sum: the writer of a Lease may name the year 9999, or a number of any size.
        return (now - renewed).total_seconds() <= (self.spec.lease_duration_seconds or 0)

    def is_ahead(self, now: datetime) -> bool:
        """Return whether its time is so far in the future that it says nothing: nobody knows what was renewed when."""
        renewed = parse_time(self.spec.renew_time)
        return renewed is not None and (renewed - now).total_seconds() > MOST_AHEAD_SECONDS

    @property
    def settings(self) -> PublishedSettings | None:
        """What the leader says of itself; None if it says nothing, or nothing that can be read."""
        text = (self.metadata.annotations or {}).get(SETTINGS)
        try:
            return decode(PublishedSettings, text) if text is not None else None
        except DecodeError:
            return None
