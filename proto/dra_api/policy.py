"""policy/v1 PodDisruptionBudget: how many pods of a selection may be ended at the same time."""

from __future__ import annotations

from .meta import LabelSelector, Object, Part


class PodDisruptionBudgetSpec(Part, frozen=True):
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Part, frozen=True):
    """``disrupted_pods``: pods whose eviction was accepted and is not seen yet, by name, with its time."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class PodDisruptionBudget(Object, frozen=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
