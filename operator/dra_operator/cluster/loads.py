"""What the pods of each node ask for, summed up as pods come and go.

A pod counts from the moment its node is decided, which is before the binding is written; a finished pod counts no more.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_operator.placement import add, subtract

_NONE: dict[str, int] = {}


class NodeLoads:
    """Requests per node, in billionths."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, Mapping[str, int]]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self.touched: set[str] = set()
        """Nodes whose sum changed; for whoever keeps up with it, and empties this."""

    def place(self, pod: str, node: str, requests: Mapping[str, int]) -> None:
        """The pod runs, or is about to run, on the node; this replaces what was known about the pod."""
        self.forget(pod)
        self._pods[pod] = (node, requests)
        self._used[node] = add(self._used.get(node, _NONE), requests)
        self.touched.add(node)

    def forget(self, pod: str) -> None:
        """The pod asks for nothing any more."""
        node, requests = self._pods.pop(pod, ("", _NONE))
        if not node:
            return
        self.touched.add(node)
        rest = subtract(self._used[node], requests)
        if rest:
            self._used[node] = rest
        else:
            del self._used[node]

    def used(self, node: str) -> Mapping[str, int]:
        """The sum on one node."""
        return self._used.get(node, _NONE)

    def node_of(self, pod: str) -> str | None:
        """Where the pod was placed, if it was."""
        entry = self._pods.get(pod)
        return entry[0] if entry else None
