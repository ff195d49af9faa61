"""Scheduling gates that hold a pod back from the operator, in words."""

from __future__ import annotations

from dra_api.core import Pod

from dra_operator.scheduling.state import GATE, OPENED_LAST, is_at_gate


def gates_of_others(pod: Pod) -> list[str]:
    """The gates that others remove before it is the operator's turn."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    after_ours = OPENED_LAST if GATE in gates else frozenset()
    return [] if is_at_gate(pod) else [name for name in gates if name != GATE and name not in after_ours]


def gated_by_others(pod: Pod) -> str:
    """Which gates are removed in which order, as a clause about the pod."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    after_ours = OPENED_LAST if GATE in gates else frozenset()
    then = f"; then the operator allocates its devices and removes {GATE}" if GATE in gates else ""
    last = "".join(f"; {name} is removed after that" for name in gates if name in after_ours)
    alike = [name for name in gates if name != GATE and name.startswith(GATE.partition("/")[0])]
    misspelt = "".join(f"; {name} is not the operator's gate, which is {GATE}" for name in alike)
    return f"waits for its scheduling gates to be removed: {', '.join(gates_of_others(pod))}{then}{last}{misspelt}"
