"""A plan for all pods of a gang, or why there is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from dra_operator.allocator import AllocationError
from dra_operator.scheduling.cycle.attempt import Aborted
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.cycle.result import NoPlace

from .domains import EVERYWHERE, NOTHING_SAME, Domain, SameValues, domains_of
from .explanation import unplaced
from .joint_search import JointPlan, Search, Work, Worth
from .member import Member, members_of


def joint_plan(states: Sequence[CycleState], same: SameValues = NOTHING_SAME) -> Work[JointPlan | NoPlace]:
    """Places and devices for all these pods of one gang, whose claims are in order, or why there are none.

    ``same``: what the places have in common. Pauses as ``cycle.plan`` does.
    """
    members = members_of(states)
    try:
        domains = yield from domains_of(states, same)
        if isinstance(domains, NoPlace):
            return domains
        found, search = yield from searched(members, domains)
        if found is not None:
            return found
        if search.failed is None or search.has_given_up:
            return NoPlace(f"gave up: too many ways to place {len(members)} pods together were tried", is_error=True)
        refusal = yield from unplaced(search.failed, search.failure(same), is_confined=domains != [EVERYWHERE])
        if same.are_given(states):
            return refusal
        found, ideal = yield from searched(members, domains, is_empty=True)
        if found is None and not (ideal.has_given_up or ideal.has_left_orders):
            too_large = "the pods would not fit even if all nodes and devices were free"
            refusal = replace(refusal, message=f"{refusal.message}; {too_large}")
    except (AllocationError, Aborted) as error:
        return NoPlace(str(error), is_error=True)
    return refusal


def searched(
    members: Sequence[Member], domains: Collection[Domain], *, is_empty: bool = False, worth: Worth = None
) -> Work[tuple[JointPlan | None, Search]]:
    """The plan, and the search that has found it or knows why there is none. Raises AllocationError and Aborted.

    Where rules between pods connect the nodes, it is asked first whether the members fit without them. Mostly a gang
    waits because they do not. That is soon found out, while there are more ways to keep the rules than can be tried.
    """
    search = Search(members, is_empty=is_empty, worth=worth)
    if search.is_connected:
        loose = Search(members, is_empty=is_empty, worth=worth, minds_pods=False)
        found = yield from loose.in_domains(domains)
        if found is None and not loose.has_given_up:
            return None, loose
    found = yield from search.in_domains(domains)
    return found, search
