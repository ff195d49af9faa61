"""Promises: a place for each pod of a Workload that has none yet, with its devices.

The planner finds seats, and the controller has the rest of the operator leave them alone, as nominations: a pod of the
same or of a lower priority that the operator places goes elsewhere. Other schedulers do not know them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dra_api.kueue import ResourceFlavor, Workload
from dra_ledger.errors import shortened
from msgspec.structs import replace

from dra_operator.allocator import DeviceId
from dra_operator.commands.placing import Placed
from dra_operator.controllers import Control
from dra_operator.scheduling.state import Nomination

from .pod_sets import set_of
from .workloads import CHECK_MESSAGE_CHARACTERS

SHOWN_NODES: Final = 8


class PromisedWorkload(NamedTuple):
    """A Workload to be placed, with the nodes of its pods in an earlier round, by pod set.

    ``flavors`` are its own ones as they were when it was promised a place.
    """

    workload: Workload
    nodes: Mapping[str, Sequence[str]] = {}
    flavors: Mapping[str, ResourceFlavor] = {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one Workload. ``seats`` are what its pods get; ``reason`` says why they get nothing.

    ``fits_never``: not even in an empty cluster. ``is_final``: no change of the cluster can help.
    """

    workload: Workload
    seats: tuple[Nomination, ...] = ()
    reason: str = ""
    fits_never: bool = False
    is_final: bool = False

    @classmethod
    def without_place(
        cls,
        workload: Workload,
        reason: str,
        *,
        seats: tuple[Nomination, ...] = (),
        fits_never: bool = False,
        is_final: bool = False,
    ) -> Outcome:
        """Return the outcome with the reason cut: it quotes text of a tenant, perhaps a megabyte."""
        said = shortened(reason, CHECK_MESSAGE_CHARACTERS) or "its pods cannot be placed"
        return cls(workload, seats, said, fits_never, is_final)

    @property
    def fits(self) -> bool:
        """Whether all pods have a place."""
        return not self.reason

    @property
    def nodes(self) -> Mapping[str, Sequence[str]]:
        """The nodes by pod set."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for seat in self.seats:
            found[set_of(seat.pod)].append(seat.node)
        return found


def seat_of(workload: Workload, placed: Placed) -> Nomination:
    """Return what one pod is promised, under a UID of its own: the pod may be nominated as well."""
    pod, meta = placed.pod, placed.pod.metadata
    # The UID of the Workload is part of it: set b-c of job a and set c of job a-b have pods of the same name.
    pod = replace(pod, metadata=replace(meta, uid=f"promised {workload.metadata.uid}/{meta.name}"))
    allocations = tuple(placed.plan.allocations.values())
    return Nomination(pod, placed.node, allocations, placed.plan.requests_of(placed.pod), workload=workload)


class Promises:
    """The seats of all promises, by the UID of the Workload. ``keep`` sets the seats of one."""

    def __init__(self, control: Control) -> None:
        self._queues, self._cluster = control.queues, control.cluster
        self._seats: dict[str, tuple[Nomination, ...]] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def is_taken(self, seats: Iterable[Nomination]) -> bool:
        """Return whether a claim got one of the whole devices since these seats were planned."""
        usage = self._cluster.allocated_devices.usage
        return any(not usage.is_free(device) for device in _whole_devices(seats))

    def keep(self, uid: str, seats: tuple[Nomination, ...]) -> bool:
        """Keep these seats for a Workload, in the place of its former ones, or none any more.

        Return whether that leaves something free.
        """
        before, known = self._seats.get(uid, ()), self._cluster.nominated_pods
        if before == seats:
            return False
        if seats:
            known.is_on = True
            self._seats[uid] = seats
        else:
            self._seats.pop(uid, None)
        is_left_over = self._is_left_over(before, seats)
        kept = {seat.pod.metadata.uid for seat in seats}
        for seat in seats:
            if known.get(seat.pod.metadata.uid) != seat:
                self._queues.add(self._cluster.nominate(seat))
        for seat in before:
            if seat.pod.metadata.uid not in kept:
                self._queues.add(self._cluster.end_nomination(seat.pod.metadata.uid))
        return is_left_over

    def end_others(self, uids: Collection[str]) -> bool:
        """End all promises except these. Return whether that leaves something free."""
        is_left_over = False
        for uid in self._seats.keys() - uids:
            is_left_over |= self.keep(uid, ())
        return is_left_over

    def _is_left_over(self, before: Sequence[Nomination], now: Sequence[Nomination]) -> bool:
        """Return whether a promise that changes leaves something free: its pods got other devices, or other nodes."""
        usage, kept, known = self._cluster.allocated_devices.usage, _whole_devices(now), set[DeviceId]()
        for seat in before:
            known |= (devices := _whole_devices((seat,)))
            if not devices and seat not in now:
                return True  # nobody keeps account of what it had
        return any(usage.is_free(device) for device in known - kept)


def _whole_devices(seats: Iterable[Nomination]) -> set[DeviceId]:
    """Return the devices that are promised to one pod alone."""
    results = (result for seat in seats for allocation in seat.allocations for result in allocation.results)
    return {DeviceId.of(it) for it in results if not it.admin_access and it.share_id is None}


def shown_nodes(seats: Sequence[Nomination]) -> str:
    """Return the names of the nodes, or the first ones and the number of the others."""
    nodes = sorted({seat.node for seat in seats})
    shown = ", ".join(nodes[:SHOWN_NODES])
    return shown if len(nodes) <= SHOWN_NODES else f"{shown} and {len(nodes) - SHOWN_NODES} more nodes"
