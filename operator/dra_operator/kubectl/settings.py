"""The operator's settings that change answers: from the command line, else from its Lease.

Every command loads this module, so it stays light: names of controllers are read only if they are given.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dra_api.gates import GateError
from dra_api.leases import MIX, Lease
from dra_api.releases import Release, chosen
from dra_ledger.features import Features
from dra_ledger.taints import LeftAlone

from dra_operator.gates import REMEDY, accepted, features_of, parse_gates
from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.arguments import ORDERS, STRATEGIES
from dra_operator.kubectl.observed import Observed

if TYPE_CHECKING:
    from dra_operator.controllers.settings import OwnControllers


@dataclass(frozen=True)
class Settings:
    """What an answer takes over from the operator's settings. None is what was not given."""

    scheduler_name: str = "dra-scheduler"
    gates: Mapping[str, Any] | None = None
    release: Release | None = None
    controllers: OwnControllers | None = None
    scoring_strategy: str | None = None
    placement_strategy: str | None = None
    device_order: str | None = None
    mix: str = ""
    """As the Lease says it: what pods asked for lately."""
    preemption: bool = False
    """As the Lease says it: these three cannot be given."""
    preempt_other_schedulers: bool = False
    preemption_patience: float | None = None
    """None: the operator's default."""
    leaves: LeftAlone = field(default_factory=LeftAlone)
    """Devices that are left to other schedulers; as the Lease says it."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Settings:
        """Those of ``add_operator_arguments``. Raises Problem."""
        try:
            gates, release = parse_gates(options.feature_gates), chosen(options.kubernetes_version)
            accepted(gates, release)
        except GateError as error:
            raise Problem(f"--feature-gates: {error}; {REMEDY}", ExitCode.USAGE) from error
        try:
            controllers = _controllers(options.controllers)
        except ValueError as error:
            remedy = "name some of these, separated by commas, or auto"
            raise Problem(f"--controllers: {error}; {remedy}", ExitCode.USAGE) from error
        return cls(
            options.scheduler_name,
            gates or None,
            release,
            controllers,
            options.scoring_strategy,
            options.placement_strategy,
            options.device_order,
        )

    def completed(self, seen: Observed) -> Settings:
        """With what the operator of this scheduler name says on its Lease, in the place of what was not given."""
        name = f"dra-operator-{self.scheduler_name}"
        lease = next((lease for lease in seen.every(Lease) if lease.metadata.name == name), None)
        said = lease.settings if lease is not None else None
        if lease is None or said is None:
            return self
        try:
            gates, release = parse_gates(said.feature_gates), chosen(said.kubernetes_version)
            controllers = _controllers(said.controllers)
            leaves = LeftAlone.of(said.leave_drivers, said.leave_nodes, unmarked=said.own_devices_only)
            accepted(gates, self.release or release)
        except ValueError:
            return self  # of another version of the operator
        return replace(
            self,
            gates=gates if self.gates is None else self.gates,
            release=self.release or release,
            controllers=self.controllers or controllers,
            scoring_strategy=self.scoring_strategy or said.scoring_strategy,
            placement_strategy=self.placement_strategy or _known(said.placement_strategy, STRATEGIES),
            device_order=self.device_order or _known(said.device_order, ORDERS),
            mix=(lease.metadata.annotations or {}).get(MIX, ""),
            preemption=said.preemption,
            preempt_other_schedulers=said.preempt_other_schedulers,
            leaves=leaves,
            preemption_patience=said.preemption_patience,
        )

    def changed_gates(self, seen: Observed) -> dict[str, Any]:
        """What differs from the defaults of the release: by the API server, if its release counts, and by settings."""
        return {**(seen.gates if self.release is None else {}), **(self.gates or {})}

    def features(self, seen: Observed) -> Features:
        """The gates in force. Raises Problem."""
        try:
            return features_of(self.changed_gates(seen), self.release or seen.release)
        except GateError as error:
            raise Problem(f"--feature-gates: {error}; {REMEDY}", ExitCode.USAGE) from error


def _controllers(text: str) -> OwnControllers | None:
    """Return the controllers that a setting names, or None for ``auto``. Raises ValueError."""
    if text == "auto":
        return None
    from dra_operator.controllers.settings import own_controllers

    return own_controllers(text)


def _known(name: str, names: Sequence[str]) -> str | None:
    """A name that a newer version of the operator says is not known here."""
    return name if name in names else None
