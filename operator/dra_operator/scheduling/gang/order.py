"""Whose turn is next in a joint plan, where rules between pods make that matter.

A pod may need others to be there before it: by affinity to them, or by an even spread, which allows one more in a zone
once all other zones have one. Members are placed kind by kind first, and where there is such a rule equal members take
nodes in turns. If no plan comes of that and a rule of this sort kept a member from a node, any other kind may be next.

Members of the same kinds on the same nodes may lead to a plan or not, whatever their order was. So it is noted where
that failed, and looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.cycle.filter import PodFilter
from dra_operator.scheduling.cycle.result import NodeStatus, Obstructed
from dra_operator.scheduling.rules import DO_NOT_SCHEDULE, POD_AFFINITY, SPREAD
from dra_operator.scheduling.state.selection import affinity, anti_affinity

from .member import Frame, Kind, Member

HOSTNAME: Final = "kubernetes.io/hostname"
"""The label of which each node has a value of its own."""


class Order:
    """``is_free``: any kind may be next."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._matters = any(_may_need_others(member.pod) for member in members)
        self.is_free = False
        self.keeps_off = False
        """Whether a member that needs others was kept from a node."""
        self._state = 0
        """How many members of which kind are on which node: a number of which each digit is for one kind and node."""
        self._digits: dict[tuple[Kind, str], int] = {}
        self._failed: dict[int, bool] = {}
        """The states that lead to no plan, and whether a rule kept a member from a node then that others may fulfil."""

    def begin(self) -> None:
        """No member has a place."""
        self._state, self._failed = 0, {}

    def next(self, frames: Sequence[Frame]) -> Sequence[Member]:
        """The member whose turn it is, and those that may have it instead."""
        if not self.is_free:
            return self._members[len(frames) : len(frames) + 1]
        placed, first = {frame.member.number for frame in frames}, dict[Kind, Member]()
        for member in self._members:
            if member.number not in placed:
                first.setdefault(member.kind, member)
        return list(first.values())

    def after(
        self, before: Frame, member: Member, question: PodFilter, others: Sequence[Member], returns: int
    ) -> Frame:
        """The turn of a member that is equal to the one before it."""
        if not self._matters:
            return Frame(member, question, before.order, before.position, returns=returns)
        first = (before.first + before.position) % len(before.order)
        return Frame(member, question, before.order, 0, others=others, first=first, returns=returns)

    def place(self, member: Member, node: str) -> None:
        """The member is on the node."""
        self._state += self._digit(member, node) if self._matters else 0

    def remove(self, member: Member, node: str) -> None:
        """The reverse of ``place``."""
        self._state -= self._digit(member, node) if self._matters else 0

    def fail(self, frame: Frame) -> None:
        """With the members that have a place now there is no plan, since this one leads to none."""
        if self._matters:
            self._failed[self._state] = frame.needs_others

    def has_failed(self, frame: Frame, node: str) -> bool:
        """Whether it is known that there is none with this member on the node either."""
        known = self._failed.get(self._state + self._digit(frame.member, node)) if self._failed else None
        if known is not None:
            frame.has_fitted = True
            frame.needs_others |= known
        return known is not None

    def _digit(self, member: Member, node: str) -> int:
        pair = (member.kind, node)
        if pair not in self._digits:
            self._digits[pair] = (len(self._members) + 1) ** len(self._digits)
        return self._digits[pair]

    def refused(self, frame: Frame, answer: NodeStatus) -> None:
        """A node does not take the member."""
        if isinstance(answer, Obstructed) and answer.obstacle.reason in (POD_AFFINITY, SPREAD):
            self.keeps_off = frame.needs_others = True


def connects_nodes(pod: Pod) -> bool:
    """Whether it matters to others of the gang on other nodes where the pod is: not if it only wants a node alone."""
    return _may_need_others(pod) or any(it.key != HOSTNAME for it in anti_affinity(pod))


def _may_need_others(pod: Pod) -> bool:
    return bool(affinity(pod)) or any(
        it.when_unsatisfiable == DO_NOT_SCHEDULE for it in pod.spec.topology_spread_constraints or ()
    )
