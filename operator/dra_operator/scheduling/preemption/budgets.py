"""PodDisruptionBudgets as preemption looks at them: how many more pods of a selection may end.

They are broken only where a pod fits in no other way, as kube-scheduler breaks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dra_api.core import Pod
from dra_api.policy import PodDisruptionBudget
from dra_api.relations.label_selectors import Selector


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """``disrupted`` are the names of pods that the budget counts as ended already."""

    selector: Selector
    allowed: int
    disrupted: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, budget: PodDisruptionBudget) -> Budget:
        """An empty selector covers every pod of the namespace, as policy/v1 says."""
        selector = Selector.of(budget.spec.selector)
        disrupted = frozenset(budget.status.disrupted_pods or ())
        return cls(selector, budget.status.disruptions_allowed, disrupted)

    def covers(self, pod: Pod) -> bool:
        """Whether the end of the pod is charged to the budget."""
        return pod.metadata.name not in self.disrupted and self.selector.matches(pod.metadata.labels or {})


class BudgetsOfPods:
    """Which budgets cover which pod, looked up once for each pod and namespace."""

    def __init__(self, budgets: Callable[[str], Iterable[Budget]]) -> None:
        self._budgets = budgets
        self._of_namespace: dict[str, tuple[Budget, ...]] = {}
        self._of_pod: dict[str, tuple[Budget, ...]] = {}
        self.compared = 0
        """So many comparisons of a pod with a budget were made."""

    def broken_by(self, pods: Iterable[Pod]) -> list[Pod]:
        """Those of the pods, ended one after the other, whose end breaks a budget."""
        ended: Counter[Budget] = Counter()
        broken = []
        for pod in pods:
            budgets = self._covering(pod)
            ended.update(budgets)
            if any(ended[it] > it.allowed for it in budgets):
                broken.append(pod)
        return broken

    def _covering(self, pod: Pod) -> tuple[Budget, ...]:
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if uid not in self._of_pod:
            if namespace not in self._of_namespace:
                self._of_namespace[namespace] = tuple(self._budgets(namespace))
            there = self._of_namespace[namespace]
            self.compared += len(there)
            self._of_pod[uid] = tuple(it for it in there if it.covers(pod))
        return self._of_pod[uid]
