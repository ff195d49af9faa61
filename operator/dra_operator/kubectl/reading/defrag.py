"""``kubectl dra defrag``: reads for which pod room is wanted, and tells the fewest moves that make it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dra_api.core import Pod

from dra_operator.kubectl.answer import Answer, Column, ExitCode, Problem, Table
from dra_operator.kubectl.facts.devices import devices_of
from dra_operator.kubectl.labels import selecting
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline
from dra_operator.kubectl.observed.sanitized import MOVABLE
from dra_operator.kubectl.tables.notes import SHOWN, joined, notes_on, require
from dra_operator.kubectl.topology.answer import SVG
from dra_operator.kubectl.whatif.defrag_picture import before_and_after
from dra_operator.kubectl.whatif.defragmentation import (
    Defragmentation,
    defragmented,
    defragmented_for_gang,
    defragmented_for_mix,
)
from dra_operator.kubectl.whatif.drain_answer import BUDGETS
from dra_operator.kubectl.whatif.fitting import overlay_of
from dra_operator.kubectl.whatif.mix import Mix
from dra_operator.kubectl.whatif.movable import movable_pods
from dra_operator.kubectl.whatif.moves import Move
from dra_operator.kubectl.whatif.overlay import Overlay
from dra_operator.kubectl.whatif.wanted import Copies, Wanted
from dra_operator.kubectl.words import target_of
from dra_operator.scheduling.state import Gang
from dra_operator.wording import counted

from .wanted_pods import read_wanted

MOST_NODE_QUESTIONS: Final = 1_000_000
"""Questions about single nodes that a search may ask: the time is over before."""
MIX: Final = "mix"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The moves, in their order. Raises Problem."""
    return answer_of(seen, options, found_for(seen, options))


def found_for(seen: Observed, options: argparse.Namespace) -> Defragmentation:
    """What the search finds. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "nodes", "pods")
    if bool(options.wanted) == bool(options.file):
        remedy = "name what is to fit by --for pod/NAME, gang/NAME or mix, or its manifest by -f FILE"
        raise Problem(remedy, ExitCode.USAGE)
    wanted = read_wanted(options.file, (), seen.namespace) if options.file else Wanted(())
    selected = selecting(options.movable_selector) if options.movable_selector is not None else None
    overlay = overlay_of(seen, Settings.of(options), wanted)
    end: float = time.monotonic() + options.timeout
    movable, limits = movable_pods(seen, selected), (options.max_moves, MOST_NODE_QUESTIONS)

    def is_over() -> bool:
        return time.monotonic() > end

    if options.wanted == MIX:
        return defragmented_for_mix(overlay, _mix(overlay, seen.namespace), movable, *limits, is_over)
    pods, is_gang = _from_files(overlay, wanted) if options.file else _named(seen, overlay, options.wanted)
    if is_gang:
        return defragmented_for_gang(overlay, pods, movable, *limits, is_over)
    return defragmented(overlay, pods[0], movable, *limits, is_over)


def _mix(overlay: Overlay, namespace: str) -> Mix:
    asked = overlay.made.learner.known()
    if not asked:
        raise Problem("what pods usually ask for is not known: no pod has devices, and the operator's Lease has no mix")
    return Mix(overlay, asked, namespace)


def _named(seen: Observed, overlay: Overlay, target: str) -> tuple[Sequence[Pod], bool]:
    """The pods that wait, and whether they are a gang."""
    kind, name = target_of([target], ("pod", "gang"))
    return (_gang(overlay, seen.namespace, name), True) if kind == "gang" else ([_waiting(seen, name)], False)


def _from_files(overlay: Overlay, wanted: Wanted) -> tuple[Sequence[Pod], bool]:
    """One pod, or the pods of one gang, that do not exist yet."""
    pods = list(Copies(wanted, overlay.cluster).copy())
    gangs = {gang.key: gang for pod in pods if isinstance(gang := overlay.cluster.gang_of(pod), Gang)}
    if len(pods) == 1:
        return pods, any(gang.size > 1 for gang in gangs.values())
    if len(gangs) != 1 or not all(isinstance(overlay.cluster.gang_of(pod), Gang) for pod in pods):
        text = f"the manifests ask for {counted(len(pods), 'pod')} that are not one gang"
        raise Problem(f"{text}: defrag makes room for one pod or one gang", ExitCode.USAGE)
    return pods, True


def answer_of(seen: Observed, options: argparse.Namespace, found: Defragmentation) -> Answer:
    """For people and programs. Raises Problem."""
    if options.output == SVG:
        if not found.node:
            raise Problem(f"there is nothing to draw: {found.reason}", ExitCode.IN_THE_WAY)
        facts = devices_of(pipeline(seen, Settings.of(options)))
        return Answer(lines=list(before_and_after(facts, found)), value=found)
    places: Mapping[str, int] = {move.pod: number for number, move in enumerate(found.moves, 1)}
    columns: list[Column[Move]] = [
        Column("STEP", lambda it: places[it.pod]),
        Column("POD", lambda it: it.pod),
        Column("FROM", lambda it: it.source),
        Column("TO", lambda it: it.target),
        Column("GETS", lambda it: joined(it.devices)),
    ]
    table = Table(columns, found.moves, lambda it: f"pod/{it.pod.partition('/')[2]}", "No moves")
    code = ExitCode.CLEAR if found.node else ExitCode.IN_THE_WAY
    notes = notes_on(seen, (*SHOWN, BUDGETS))
    return Answer(table if found.moves else None, list(_lines(found)), found, notes=notes, code=code)


def _gang(overlay: Overlay, namespace: str, name: str) -> list[Pod]:
    """The pods of the gang that wait. ``name``: that of the gang, or of the Job, PodGroup or group that it is."""
    cluster = overlay.cluster
    for pod in cluster.pods:
        gang = cluster.gang_of(pod) if pod.metadata.namespace == namespace else None
        if isinstance(gang, Gang) and gang.title.rpartition(" ")[2] == name:
            if waiting := cluster.members_of(gang)[1]:
                return waiting
            raise Problem(f"no pod of gang {gang.title} waits for a node")
    raise Problem(f"there is no gang {name} in namespace {namespace}")


def _waiting(seen: Observed, name: str) -> Pod:
    pod = seen.one(Pod, f"{seen.namespace}/{name}")
    if pod is None:
        raise Problem(f"there is no pod {name} in namespace {seen.namespace}")
    if pod.spec.node_name:
        raise Problem(f"pod {pod.key} has its node already: {pod.spec.node_name}")
    return pod


def _lines(found: Defragmentation) -> Iterator[str]:
    if found.waits_for:
        yield f"{found.pod} does not fit now: {found.waits_for}"
    if not found.node:
        yield f"{found.reason} ({counted(found.movable, 'pod')} may be moved)"
        if not found.movable:
            yield f'allow moves by the annotation {MOVABLE}: "true" on pods with a controller, or by --movable-selector'
        return
    if not found.moves:
        yield f"{found.pod} fits on {found.node} without any move"
        return
    what = "it would fit" if found.share is None else f"{found.share:.0%} of the requests would have room"
    yield f"{what} on {found.node} after {counted(len(found.moves), 'move')}:"
    for number, move in enumerate(found.moves, 1):
        if move.chosen != move.target:
            where = f"to {move.chosen}" if move.chosen else "nowhere"
            told = f"with {move.source} cordoned the scheduler sends the successor {where}"
            yield f"  step {number}: {told}, not to {move.target}"
