"""Who makes room for a pod that no node takes: the seam of PostFilter.

``post_filter`` decides inside the scheduling cycle, by what the cycle knows, and writes nothing. Its nomination is
carried out after the pod was told why it waits, beside the writes of other pods. The pod is tried again when what the
victims had comes free, as after any other refusal. ``preempt`` is the one that the operator may have; by default it has
none.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from dra_api.core import Pod

from dra_operator.scheduling import CycleState, Elapsed, Pause, PostFilterResult, Unschedulable
from dra_operator.scheduling.gang import SameValues
from dra_operator.scheduling.preemption import GangNomination
from dra_operator.scheduling.state import Gang


class MakesRoom(Protocol):
    """Ends pods so that another one fits."""

    def post_filter(self, failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
        """A nomination, or None. See ``scheduling.PostFilter``."""
        ...

    def for_gang(
        self, gang: Gang, states: Sequence[CycleState], same: SameValues
    ) -> Generator[Pause, Elapsed, GangNomination | None]:
        """The same for a gang without a joint plan; the first of the states is its leader's."""
        ...

    def forget_gang(self, gang: Gang) -> None:
        """The gang lacks pods: what was kept for it is free."""
        ...

    def forget(self, pod: Pod) -> None:
        """The pod is not tried: what was kept for it, and for the gang with which it was nominated, is free."""
        ...

    def prospect(self, pod: Pod, gang: Gang | None = None) -> str:
        """A clause about what the pod, or all of its gang, waits for, if it is nominated."""
        ...

    async def prepare_candidate(self, pod: Pod, nominated: PostFilterResult | None) -> None:
        """End the victims; without a nomination, forget what is out of date.

        Raises KubeError and PlacementFailed, after which the pod is tried again.
        """
        ...

    async def prepare_for_gang(self, gang: Gang, pods: Sequence[Pod], nominated: GangNomination | None) -> None:
        """The same for a gang; the first of the pods is its leader."""
        ...
