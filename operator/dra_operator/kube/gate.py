"""Opening a scheduling gate in a pod as the server has it: the gate goes, and the choice of nodes is narrowed.

The API server lets the required node affinity of a gated pod only be narrowed: a pod without terms may get any,
otherwise requirements may be appended to the terms that are there. Terms are alternatives, so each gets them; a term
without requirements selects no node and stays as it is.
"""

from __future__ import annotations

from dra_api.codec import to_dict
from dra_api.core import NodeSelectorTerm
from dra_kube import Object

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def open_gate(spec: Object, gate: str, reach: NodeSelectorTerm) -> bool:
    """Change the spec of a pod in place; False if the gate is open already."""
    gates = spec.get("schedulingGates") or []
    rest = [item for item in gates if item.get("name") != gate]
    if len(rest) == len(gates):
        return False
    spec["schedulingGates"] = rest
    wanted = {field: items for field, items in to_dict(reach).items() if items}
    if wanted:
        _narrow(spec, wanted)
    return True


def _narrow(spec: Object, wanted: Object) -> None:
    affinity = spec["affinity"] = spec.get("affinity") or {}
    nodes = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    if not terms:
        nodes[_REQUIRED] = {"nodeSelectorTerms": [wanted]}
    for term in terms:
        if term.get("matchExpressions") or term.get("matchFields"):
            for field, items in wanted.items():
                before = term.get(field) or []
                term[field] = [*before, *(item for item in items if item not in before)]
