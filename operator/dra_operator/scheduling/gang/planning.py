"""Plan all pods of a gang together, or say why that is impossible, with the reasons of the member without a node."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from dra_operator.allocator import AllocationError
from dra_operator.scheduling.cycle.attempt import Aborted, plan
from dra_operator.scheduling.cycle.filter import (
    TOO_FEW_DEVICES,
    Faulty,
    Lacking,
    NodeStatus,
    NoPlace,
    Obstructed,
    Reasons,
)
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.gang.joint_search import JointPlan, JointSearch, Work, Worth
from dra_operator.scheduling.gang.members import (
    EVERYWHERE,
    GangDomain,
    Member,
    MemberFrame,
    SameValues,
    domains_of,
    members_of,
)
from dra_operator.scheduling.pieces import Elapsed, Pause, decided
from dra_operator.scheduling.state.obstacle import Obstacle

EXPLAINED_GANG_NODES: Final = 16
"""Nodes without enough devices whose reasons are looked up."""
EXPLAINED_SUSPECT_NODES: Final = 4
"""Nodes with a possible error of a claim that are asked for it."""


def _suspects(failed: MemberFrame) -> Iterator[NodeStatus]:
    """Yield the errors of a few nodes that the index has left out although a claim may meet an error there."""
    demands, state_of_pod = failed.question.demands.all(), failed.member.state
    nodes, usage = state_of_pod.nodes, state_of_pod.usage
    # Asked without a pause: the index was brought up to date for this attempt.
    known = [state_of_pod.allocator.candidates(demand.program, usage) for demand in demands if demand.claims]
    names = dict.fromkeys(name for candidates in known for name in candidates.suspects() if name not in candidates)
    for name in islice(names, EXPLAINED_SUSPECT_NODES):
        state = nodes.get(name)
        if state is not None and isinstance(answer := decided(failed.question.filter(state)), Faulty):
            yield answer


def unplaced(failed: MemberFrame, failure: str, *, is_confined: bool) -> Generator[Pause, Elapsed, NoPlace]:
    """Return why there is no joint plan, by the reasons of ``failed``, the member without a node that got furthest.

    ``failure`` says how many members fit, and where. ``is_confined``: the domains left nodes out.
    """
    pod = failed.member.pod
    found = f"{failure}; pod {pod.metadata.name} fits on no other node"
    # If it does not even fit alone, that is the better reason: the gang is not to blame.
    alone = yield from plan(failed.member.state)
    if isinstance(alone, NoPlace):
        return replace(alone, message=f"{found}: {alone.message}", stuck=())
    reasons, left = Reasons(), EXPLAINED_GANG_NODES
    for answer in [*_suspects(failed), *failed.answers]:
        if isinstance(answer, Obstructed):
            reasons.add(answer.obstacle)
        elif isinstance(answer, Lacking) and left:
            left -= 1
            reasons.refuse(answer.refusal)
        elif isinstance(answer, Faulty) and left:
            left -= 1
            reasons.fail(answer.error)
    # Nodes that the index left out were not asked, but the pod is told about all of them.
    nodes = len(failed.member.state.nodes)
    shown = reasons.obstacles.total() + EXPLAINED_GANG_NODES - left
    if shown < nodes and not is_confined:
        reasons.add(Obstacle(TOO_FEW_DEVICES, "one of the requests"), nodes - shown)
    return NoPlace(
        f"{found}: {reasons.line(shown if is_confined else nodes)}",
        reasons.main,
        short_of_room=True,
        hints=failed.question.rules.hints(),
    )


def joint_plan(
    states: Sequence[CycleState], same: SameValues, filter_timeout: float = math.inf, *, says_why: bool = True
) -> Work[JointPlan | NoPlace]:
    """Return places and devices for all these pods of one gang, or why there are none. Their claims are ready.

    ``same`` is the condition on their places. Pauses as ``cycle.attempt`` does, and is sent the seconds of the search
    like that. A node that takes the allocator longer than ``filter_timeout`` counts as one that does not fit.
    The reasons take several times as long as the search. Without ``says_why`` a refusal has none, nor hints, and not
    whether the pods would ever fit.
    """
    members = members_of(states)
    try:
        domains = yield from domains_of(states, same)
        if isinstance(domains, NoPlace):
            return domains
        found, search = yield from searched(members, domains, filter_timeout=filter_timeout)
        if found is not None:
            return found
        if search.failed is None or search.has_given_up:
            return NoPlace(f"gave up: too many ways to place {len(members)} pods together were tried", is_error=True)
        if not says_why:
            return NoPlace(search.failure(same))
        refusal = yield from unplaced(search.failed, search.failure(same), is_confined=domains != [EVERYWHERE])
        # Running pods fix a value that an empty cluster would not fix, so "never fits" cannot be concluded.
        if same.are_given(states):
            return refusal
        with suppress(Aborted):  # whether they would fit then is not known
            if (yield from _fit_never(members, domains, filter_timeout)):
                too_large = "the pods would not fit even if all nodes and devices were free"
                refusal = replace(refusal, message=f"{refusal.message}; {too_large}", fits_never=True)
    except (AllocationError, Aborted) as error:
        return NoPlace(str(error), is_error=True)
    return refusal


def _fit_never(members: Sequence[Member], domains: Collection[GangDomain], filter_timeout: float) -> Work[bool]:
    """Return whether the members have no place in a cluster without other pods, and no other pod could help."""
    found, search = yield from searched(members, domains, is_empty=True, filter_timeout=filter_timeout)
    if found is None and search.has_rules and _depend_on_others(members):
        search = JointSearch(members, is_empty=True, worth=None, minds_pods=False, filter_timeout=filter_timeout)
        found = yield from search.in_domains(domains)
    return found is None and not (search.has_given_up or search.has_left_orders)


def _depend_on_others(members: Sequence[Member]) -> bool:
    """Return whether a rule between pods keeps a member from a node before any of them has a place.

    Another pod may finish, or a missing one may be created. Only a label that the node lacks is there to stay.
    """
    nodes = members[0].state.nodes
    states = [state for name in nodes.names() if (state := nodes.get(name)) is not None]
    for member in {member.kind: member for member in members}.values():
        rules = nodes.rules_between(member.pod)
        found = ((state, rules.obstacle(state)) for state in states if rules)
        if any(it is not None and it.subject in (state.node.metadata.labels or {}) for state, it in found):
            return True
    return False


def searched(
    members: Sequence[Member],
    domains: Collection[GangDomain],
    *,
    is_empty: bool = False,
    worth: Worth = None,
    filter_timeout: float = math.inf,
) -> Work[tuple[JointPlan | None, JointSearch]]:
    """Return the plan or None, and the search that found it or knows the reason. Raises AllocationError and Aborted.

    If rules between pods connect nodes, the members are tried without these rules first. Most pending gangs do not fit
    even then, which is found out quickly, while the ways to keep the rules are too many to try.
    """
    search = JointSearch(members, is_empty=is_empty, worth=worth, filter_timeout=filter_timeout)
    if search.is_connected:
        loose = JointSearch(members, is_empty=is_empty, worth=worth, minds_pods=False, filter_timeout=filter_timeout)
        # Without rules the search is quick, and most gangs that wait lack devices or room.
        found = yield from loose.in_domains(domains)
        if found is None and not loose.has_given_up:
            return None, loose
    found = yield from search.in_domains(domains)
    return found, search
