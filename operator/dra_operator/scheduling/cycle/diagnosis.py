"""Why no node takes the pod, in one line: equal reasons counted together, the most frequent first.

Nodes that cannot serve the same request differ in their numbers, which change all the time and tell little. They count
as one reason, with the numbers of the node that comes closest; without numbers where no node has a device that
matches, since then none is close.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dra_operator.allocator import AllocationError, Refusal, RefusedClaim
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.wording import counted

TOO_FEW_DEVICES: Final = Reason("too-few-devices", "cannot satisfy {subject} (too few free devices match)")

RefusedRequest = tuple[RefusedClaim, str]
"""A claim, and the name of one of its requests."""

SHOWN_REASONS = 4
LONGEST_DIAGNOSIS_CHARACTERS = 1024  # characters of an event's message


def _rank(refusal: Refusal) -> tuple[tuple[int, ...], str]:
    """For the closest node; of nodes that are equally close the first by name, whichever was asked first: a line that
    changed with the order of the nodes would be news at each attempt."""
    return tuple(-each for each in refusal.closeness), refusal.node


class Reasons:
    """The nodes' answers, counted as they come."""

    def __init__(self) -> None:
        self.obstacles: Counter[Obstacle] = Counter()
        self._refused: Counter[RefusedRequest] = Counter()
        self._best: dict[RefusedRequest, Refusal] = {}
        self._errors: Counter[str] = Counter()
        """What cannot be decided, by the number of nodes."""
        self._lines: dict[RefusedRequest, Counter[str]] = {}

    def add(self, obstacle: Obstacle, nodes: int = 1) -> None:
        """So many nodes have the obstacle."""
        self.obstacles[obstacle] += nodes

    def fail(self, error: AllocationError) -> None:
        """A node on which the claims cannot be decided."""
        self._errors[str(error)] += 1

    def refuse(self, refusal: Refusal) -> None:
        """A node whose devices do not serve the claims."""
        request = (refusal.claim, refusal.request)
        self._refused[request] += 1
        self._lines.setdefault(request, Counter())[refusal.line()] += 1
        best = self._best.get(request)
        if best is None or _rank(refusal) < _rank(best):
            self._best[request] = refusal

    def refuse_others(self, claim: RefusedClaim, request: str, nodes: int) -> None:
        """So many nodes, not looked at one by one, cannot serve the request either."""
        if (claim, request) in self._best:
            self._refused[(claim, request)] += nodes
        else:
            self.add(Obstacle(TOO_FEW_DEVICES, claim.named(request)), nodes)

    @property
    def main(self) -> str:
        """What most nodes lack: the kind of an obstacle, or ``devices``."""
        counts = Counter({"devices": self._refused.total() + self._errors.total(), "no-nodes": 0})
        for obstacle, nodes in self.obstacles.items():
            counts["devices" if obstacle.reason is TOO_FEW_DEVICES else obstacle.reason.name] += nodes
        return max(counts, key=lambda kind: counts[kind]) if counts.total() else "no-nodes"

    def line(self, nodes: int) -> str:
        """``0/3 nodes are available: 2 Insufficient cpu, 1 ...``; rare reasons are only counted."""
        if not nodes:
            return "0/0 nodes are available: the cluster has no nodes"
        reasons = [(count, obstacle.text) for obstacle, count in self.obstacles.items()]
        reasons += [(count, self._reason(request)) for request, count in self._refused.items()]
        if self._errors:
            reasons.append((self._errors.total(), self._error()))
        reasons.sort(key=lambda item: (-item[0], item[1]))
        line = ""
        for shown in range(SHOWN_REASONS, 0, -1):
            parts = [f"{count} {reason}" for count, reason in reasons[:shown]]
            hidden = sum(count for count, _ in reasons[shown:])
            parts += [f"{hidden} for other reasons"] if hidden else []
            line = f"0/{nodes} nodes are available: {', '.join(parts)}"
            if len(line) <= LONGEST_DIAGNOSIS_CHARACTERS:
                return line
        return line[: LONGEST_DIAGNOSIS_CHARACTERS - 3] + "..."

    def _error(self) -> str:
        """The error of most nodes, of those of equally many the first by its text."""
        text, _ = min(self._errors.items(), key=lambda item: (-item[1], item[0]))
        others = len(self._errors) - 1
        return f"error: {text}" + (f" ({counted(others, 'other error')} not shown)" if others else "")

    def _reason(self, request: RefusedRequest) -> str:
        best, lines = self._best[request], self._lines[request]
        looked_at = lines.total()
        if not best.has_prospects and (len(lines) > 1 or looked_at < self._refused[request]):
            where = f" on the {looked_at} nodes looked at" if looked_at < self._refused[request] else ""
            return best.without_numbers(f"no device matches{where}")
        return best.line(*([f"best node: {best.node}"] if len(lines) > 1 else []))
