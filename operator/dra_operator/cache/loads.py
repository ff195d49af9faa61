"""The pods on each node with the sum of their requests, and the nodes that have gained room since.

A pod counts from the moment its node is decided, which is before the binding is written; a finished pod counts no more.
Pods are known by UID: a pod and its successor of the same name overlap whenever the new one's first event comes before
the old one's last.

If a thousand pods lack cpu, the cpu of a pod that finishes may help any of them, and it is gone when the first one has
been tried. So ``FreedNodes`` remembers where room came free, and the others are first asked whether they would fit on
one of these nodes as it is now.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping

from dra_api.core import Pod

from dra_operator.scheduling.state import PodsByNode, add, subtract

_NONE: dict[str, int] = {}


class NodeLoads:
    """Requests per node, in billionths. ``pods_by_node`` has the pods that count, for rules between pods.

    ``freed`` gets the name of a node whenever room comes free on it.
    """

    def __init__(self, pods_by_node: PodsByNode, freed: Callable[[str], None]) -> None:
        self._pods_by_node, self._freed = pods_by_node, freed
        self._pods: dict[str, tuple[str, Mapping[str, int]]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._priorities: Counter[int] = Counter()
        self.touched: set[str] = set()
        """Nodes whose sum changed since the last reader that keeps up with the sums emptied this set."""

    def place(self, pod: Pod, node: str, requests: Mapping[str, int]) -> bool:
        """The pod runs, or is about to run, on the node; this replaces what was known. Whether room came free."""
        uid = pod.metadata.uid
        before, wanted = self._pods.get(uid, ("", _NONE))
        if (before, wanted) == (node, requests):
            self._pods_by_node.put(pod, node)
            return False
        self._drop(uid)
        self._pods_by_node.put(pod, node)
        self._pods[uid] = (node, requests)
        self._priorities[pod.spec.priority or 0] += 1
        self._used[node] = add(self._used.get(node, _NONE), requests)
        self.touched.add(node)
        moved = before not in ("", node)
        is_less = moved or any(requests.get(name, 0) < amount for name, amount in wanted.items())
        if is_less:
            self._freed(before)
        return is_less

    def load(self, placed: Iterable[tuple[Pod, Mapping[str, int]]]) -> None:
        """As ``place`` for each on the node that it has, with a sum that is made once per node."""
        sums: dict[str, dict[str, int]] = {}
        for pod, requests in placed:
            uid, node = pod.metadata.uid, pod.spec.node_name
            if uid in self._pods:
                self.forget(uid)
            self._pods_by_node.put(pod, node)
            self._pods[uid] = (node, requests)
            self._priorities[pod.spec.priority or 0] += 1
            total = sums.get(node)
            if total is None:
                total = sums[node] = dict(self._used.get(node, _NONE))
            for name, amount in requests.items():
                total[name] = total.get(name, 0) + amount
        self._used.update(sums)
        self.touched.update(sums)

    def forget(self, uid: str) -> bool:
        """The pod asks for nothing any more. Whether room came free."""
        node = self._drop(uid)
        if node:
            self._freed(node)
        return bool(node)

    def _drop(self, uid: str) -> str:
        """The pod counts no more; the node on which it did."""
        node, requests = self._pods.pop(uid, ("", _NONE))
        if not node:
            return ""
        if (place := self._pods_by_node.at(uid)) is not None:
            self._priorities -= Counter([place[0].spec.priority or 0])
        self._pods_by_node.remove(uid)
        self.touched.add(node)
        rest = subtract(self._used[node], requests)
        if rest:
            self._used[node] = rest
        else:
            del self._used[node]
        return node

    def has_lower(self, priority: int) -> bool:
        """Whether a pod that counts has a lower priority."""
        return any(it < priority for it in self._priorities)

    def used(self, node: str) -> Mapping[str, int]:
        """The sum on one node."""
        return self._used.get(node, _NONE)

    def node_of(self, uid: str) -> str | None:
        """Where the pod was placed, if it was."""
        entry = self._pods.get(uid)
        return entry[0] if entry else None

    def requests_of(self, uid: str) -> Mapping[str, int]:
        """Return the requests of the pod on the node on which it was placed."""
        return self._pods.get(uid, ("", _NONE))[1]

    def renew(self, pod: Pod) -> None:
        """Another version of a pod, which counts as before if it does."""
        entry = self._pods.get(pod.metadata.uid)
        if entry is not None:
            self._pods_by_node.put(pod, entry[0])

    def take_out(self, uid: str) -> tuple[str, Mapping[str, int]] | None:
        """The pod does not count for now; what ``place`` needs to have it count again, None if it did not."""
        entry = self._pods.get(uid)
        self._drop(uid)
        return entry

    def __iter__(self) -> Iterator[str]:
        """The UIDs of the pods that count."""
        return iter(self._pods)


class FreedNodes:
    """Names of nodes, in the order in which room came free on them last."""

    def __init__(self) -> None:
        self._freed_at: OrderedDict[str, int] = OrderedDict()
        self.number = 0
        """How often room came free."""

    def freed(self, node: str) -> None:
        """A pod left the node, or takes less of it than before."""
        self.number += 1
        self._freed_at.pop(node, None)
        self._freed_at[node] = self.number

    def gone(self, node: str) -> None:
        """There is no such node any more."""
        self._freed_at.pop(node, None)

    def since(self, number: int) -> Iterator[str]:
        """The nodes on which room came free after this number of times, the latest first."""
        for node, freed_at in reversed(self._freed_at.items()):
            if freed_at <= number:
                return
            yield node
