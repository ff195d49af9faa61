"""What becomes of pods that are placed in an overlay: new ones, and the successors of evicted ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dra_api.core import Pod

from dra_operator.commands.simulated.placing import NotPlaced, Placed
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.facts import devices_of, ledger_of
from dra_operator.kubectl.free import Members, best_offer
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling.preemption import priority

from .overlay import Overlay


class PodFact(Fact, frozen=True):
    """Where a pod would be; ``reason`` says why not if ``node`` is empty."""

    pod: str
    node: str = ""
    devices: tuple[str, ...] = ()
    reason: str = ""

    @classmethod
    def of(cls, outcome: Placed | NotPlaced, pod: str = "") -> PodFact:
        """``pod``: the name to tell, if it is not that of the outcome."""
        name = pod or outcome.pod.key
        if isinstance(outcome, NotPlaced):
            return cls(pod=name, reason=outcome.reason)
        return cls(pod=name, node=outcome.node, devices=outcome.devices)


class LeftFact(Fact, frozen=True):
    """The largest request of a class that still fits, and where; ``keeps_away`` as in ``free``."""

    device_class: str
    largest: int
    node: str = ""
    keeps_away: str = ""

    @property
    def text(self) -> str:
        """``2 gpu on gpu-1``."""
        tolerated = f" ({self.keeps_away})" if self.keeps_away else ""
        return f"{self.largest} {self.device_class}" + (f" on {self.node}{tolerated}" if self.largest else "")


def left_in(made: Pipeline) -> Sequence[LeftFact]:
    """By class, as the view is now."""
    ledger = ledger_of(made)
    members, devices = Members(ledger), devices_of(made, ledger)
    found = []
    for name in members.classes:
        best = best_offer(made, name, members.of(name, devices))
        if best is None:
            found.append(LeftFact(device_class=name, largest=0))
        else:
            found.append(LeftFact(device_class=name, largest=best.largest, node=best.node, keeps_away=best.keeps_away))
    return found


def successors(overlay: Overlay, pods: Iterable[Pod]) -> Mapping[str, Placed | NotPlaced]:
    """By the key of the pod, which was evicted. Those of the most important pods are placed first, then of the oldest;
    each leaves less for the next."""
    in_order = sorted(pods, key=lambda pod: (-priority(pod), pod.metadata.creation_timestamp or "", pod.key))
    return {pod.key: overlay.place(overlay.successor(pod)) for pod in in_order}
