"""``kubectl dra defrag``: the fewest moves after which a pod or gang fits, and with ``--apply`` these moves.

A move evicts a pod, and waits for the pod that its controller makes in its place. The source is cordoned meanwhile, so
that the scheduler does not send the successor back. The first surprise ends the run.

``before_and_after`` draws a plan as SVG: the devices of the nodes concerned, coloured by the fate of their pods.
The picture needs nothing from outside.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dra_api.console import printable
from dra_api.core import Pod
from dra_kube import NODES, PODS, Api, Conflict, Forbidden, KubeError, NotFound, Object, TooManyRequests, for_people

from dra_operator.kubectl.answer import Answer, Column, ExitCode, Problem, Table, target_of
from dra_operator.kubectl.facts import DeviceFact, devices_of
from dra_operator.kubectl.fit import read_wanted
from dra_operator.kubectl.live import client, is_confirmed
from dra_operator.kubectl.observed import SHOWN, Observed, joined, notes_on, require, selecting
from dra_operator.kubectl.pipeline import TookTooLong, pipeline
from dra_operator.kubectl.printer import INKS, svg_text, svg_tile
from dra_operator.kubectl.printer import svg_document as document
from dra_operator.kubectl.sanitized import MOVABLE
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.topology import SVG
from dra_operator.kubectl.whatif.drain import BUDGETS
from dra_operator.kubectl.whatif.fitting import Copies, Wanted, overlay_of
from dra_operator.kubectl.whatif.movable_pods import (
    OUT_OF_TIME,
    Defragmentation,
    MixOfPods,
    Move,
    defragmented,
    defragmented_for_gang,
    defragmented_for_mix,
    movable_pods,
)
from dra_operator.kubectl.whatif.overlay import Overlay
from dra_operator.scheduling.state import Gang
from dra_operator.wording import counted

MOST_NODE_QUESTIONS: Final = 1_000_000
"""Questions about single nodes that a search may ask; with a time limit the time is over before."""
MIX: Final = "mix"


def found_for(seen: Observed, options: argparse.Namespace) -> Defragmentation:
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "nodes", "pods")
    if bool(options.wanted) == bool(options.file):
        remedy = "name what is to fit by --for pod/NAME, gang/NAME or mix, or its manifest by -f FILE"
        raise Problem(remedy, ExitCode.USAGE)
    wanted = read_wanted(options.file, (), seen.namespace) if options.file else Wanted(())
    selected = selecting(options.movable_selector) if options.movable_selector is not None else None
    overlay = overlay_of(seen, Settings.of(options), wanted)
    try:
        with overlay.made.pausing.within(options.time_limit):
            movable = movable_pods(seen, selected, overlay.made.pausing)
            limits = movable, options.max_moves, MOST_NODE_QUESTIONS
            if options.wanted == MIX:
                return defragmented_for_mix(overlay, _mix(overlay, seen.namespace), *limits)
            pods, is_gang = _from_files(overlay, wanted) if options.file else _named(seen, overlay, options.wanted)
            if is_gang:
                return defragmented_for_gang(overlay, pods, *limits)
            return defragmented(overlay, pods[0], *limits)
    except TookTooLong:
        raise Problem(f"it was not found out whether anything has to move: {OUT_OF_TIME}") from None


def _mix(overlay: Overlay, namespace: str) -> MixOfPods:
    asked = overlay.made.learner.known()
    if not asked:
        raise Problem("what pods usually ask for is not known: no pod has devices, and the operator's Lease has no mix")
    return MixOfPods(overlay, asked, namespace)


def _named(seen: Observed, overlay: Overlay, target: str) -> tuple[Sequence[Pod], bool]:
    """The pods that wait, and whether they are a gang."""
    kind, name, namespace = target_of([target], ("pod", "gang"))
    namespace = namespace or seen.namespace
    return (_gang(overlay, namespace, name), True) if kind == "gang" else ([_waiting(seen, namespace, name)], False)


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
    if options.output == SVG:
        if not found.node:
            raise Problem(f"there is nothing to draw: {found.reason}", ExitCode.IN_THE_WAY)
        facts = devices_of(seen, pipeline(seen, Settings.of(options)).ledger())
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


def _waiting(seen: Observed, namespace: str, name: str) -> Pod:
    pod = seen.one(Pod, f"{namespace}/{name}")
    if pod is None:
        raise Problem(f"there is no pod {name} in namespace {namespace}")
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


SUCCESSOR_LOOK_SECONDS: Final = 1.0
"""Between two looks at the pods of the controller."""
JSON = Mapping[str, Any]


class Surprise(Exception):
    """Something is not as planned: no further move is made."""


async def moved(api: Api, move: Move, wait_seconds: float, pause_seconds: float = SUCCESSOR_LOOK_SECONDS) -> str:
    """The name of the successor, which runs on the target. Raises Surprise.

    The source is cordoned meanwhile, so that the scheduler does not send the successor back.
    """
    namespace, _, name = move.pod.partition("/")
    try:
        pod = await api.get(PODS, name, namespace)
    except NotFound as error:
        raise Surprise(f"{move.pod} is gone") from error
    if pod["metadata"]["uid"] != move.uid or pod["spec"].get("nodeName") != move.source:
        raise Surprise(f"{move.pod} is another pod than that of the plan")
    owner = _owner(pod)
    known = {
        each["metadata"]["uid"] for each in (await api.list(PODS, namespace, keep=_read))[0] if _owner(each) == owner
    }
    node = await api.get(NODES, move.source)
    is_ours = not node["spec"].get("unschedulable")
    if is_ours:
        await api.patch(NODES, move.source, {"spec": {"unschedulable": True}})
    try:
        await _evicted(api, move, namespace, name)
        return await _successor(api, move, (owner, known), wait_seconds, pause_seconds)
    finally:
        if is_ours:
            await api.patch(NODES, move.source, {"spec": {"unschedulable": None}})


async def _successor(api: Api, move: Move, of: tuple[str, set[str]], wait_seconds: float, pause_seconds: float) -> str:
    """``of``: the UID of the controller, and those of its pods before the eviction."""
    owner, known = of
    namespace = move.pod.partition("/")[0]
    seen = "no successor"
    try:
        async with asyncio.timeout(wait_seconds):
            while True:
                for each in (await api.list(PODS, namespace, keep=_read))[0]:
                    if _owner(each) == owner and each["metadata"]["uid"] not in known:
                        seen = f"its successor {each['metadata']['name']}, which does not run"
                        if _runs_on(each, move):
                            return str(each["metadata"]["name"])
                await asyncio.sleep(pause_seconds)
    except TimeoutError as error:
        raise Surprise(f"{move.pod} was evicted, and after {wait_seconds:g} s there is {seen}") from error


def _runs_on(pod: JSON, move: Move) -> bool:
    """Whether it is ready on the target. Raises Surprise if it is somewhere else, or has failed."""
    node, status = pod["spec"].get("nodeName"), pod.get("status") or {}
    name = pod["metadata"]["name"]
    if node and node != move.target:
        raise Surprise(f"{name}, the successor of {move.pod}, is on {node}, not on {move.target}")
    if status.get("phase") == "Failed":
        raise Surprise(f"{name}, the successor of {move.pod}, has failed")
    is_ready = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions") or ())
    return bool(node) and (status.get("phase") == "Succeeded" or is_ready)


async def _evicted(api: Api, move: Move, namespace: str, name: str) -> None:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": move.uid}},
    }
    try:
        await api.create_subresource(PODS, name, "eviction", body, namespace)
    except (TooManyRequests, Conflict, NotFound, Forbidden) as error:
        raise Surprise(f"{move.pod} was not evicted: {error}") from error


def _read(pod: Object) -> Object:
    """Keep what is read of a pod here: a namespace may have hundreds of pods of a megabyte."""
    meta, status = pod["metadata"], pod.get("status") or {}
    owners = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    conditions = [one for one in status.get("conditions") or () if one["type"] == "Ready"]
    return {
        "metadata": {"name": meta["name"], "uid": meta["uid"], "ownerReferences": owners},
        "spec": {"nodeName": pod["spec"].get("nodeName")},
        "status": {"phase": status.get("phase"), "conditions": conditions},
    }


def _owner(pod: JSON) -> str:
    """The UID of the controller."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The moves, and with ``--apply`` what became of them. Raises Problem."""
    if options.apply and options.source is not None:
        raise Problem("--apply needs a cluster: leave out --from", ExitCode.USAGE)
    found = found_for(seen, options)
    if not options.apply or not found.moves:
        return answer_of(seen, options, found)
    if not found.is_by_scheduler:
        aside = next(move for move in found.moves if move.chosen != move.target)
        why = f"the scheduler sends the successor of {aside.pod} to {aside.chosen or 'no node'}, not to {aside.target}"
        raise Problem(f"not applied: {why}; look at the plan without --apply", ExitCode.IN_THE_WAY)
    try:
        made, stopped = asyncio.run(_applied(found, options))
    except KubeError as error:
        raise Problem(f"stopped: {for_people(error)}; run it again to plan anew") from error
    done = f"{made} of {counted(len(found.moves), 'move')} made"
    if stopped:
        raise Problem(f"{done}; stopped: {stopped}; run it again to plan anew", ExitCode.IN_THE_WAY)
    return Answer(lines=[f"{done}: {found.pod} fits on {found.node}"], value=found)


async def _applied(found: Defragmentation, options: argparse.Namespace) -> tuple[int, str]:
    """How many moves were made, and why no more; the first surprise ends it."""
    async with client(options) as api:
        for number, move in enumerate(found.moves):
            what = f"cordon {move.source} for the time of this move, and evict {move.pod}"
            if not (options.yes or is_confirmed(f"{what}, for its successor to run on {move.target}?")):
                return number, "the move was not confirmed"
            try:
                successor = await moved(api, move, options.wait)
            except Surprise as surprise:
                return number, str(surprise)
            print(printable(f"{move.pod}: {successor} runs on {move.target}"), file=sys.stderr)
    return len(found.moves), ""


CELL_WIDTH: Final = 124
CELL_HEIGHT: Final = 40
SPACE_WIDTH: Final = 6
"""Between two cells."""
ROW_CELLS: Final = 4
"""Cells of a node beside each other."""
TITLE_HEIGHT: Final = 24
SHOWN_LETTERS: Final = 17
COLOURS: Final = {"free": "green", "stays": "grey", "moves": "yellow", "wanted": "blue"}
Held = Mapping[str, Sequence[str]]
"""By device: who has it."""
Row = tuple[str, list[DeviceFact], int]
"""A node, its devices, and the lines of cells that they take."""


def before_and_after(facts: Sequence[DeviceFact], found: Defragmentation) -> Iterator[str]:
    """The lines of an SVG document. Only nodes of which a device changes hands are drawn."""
    before = {fact.id: _holders(fact) for fact in facts}
    after = _after(before, found)
    nodes = {fact.node for fact in facts if before[fact.id] != after[fact.id]}
    by_node = {name: [fact for fact in facts if fact.node == name] for name in sorted(nodes)}
    side = ROW_CELLS * (CELL_WIDTH + SPACE_WIDTH) + 3 * SPACE_WIDTH
    rows = [(name, its, -(-len(its) // ROW_CELLS)) for name, its in by_node.items()]
    height = 2 * TITLE_HEIGHT + sum(TITLE_HEIGHT + count * (CELL_HEIGHT + SPACE_WIDTH) for _, _, count in rows)
    label = f"{found.pod}: before and after {counted(len(found.moves), 'move')}"
    return document(2 * side, height, label, 12, _drawn(found, before, after, rows, side, height))


def _drawn(
    found: Defragmentation, before: Held, after: Held, rows: Sequence[Row], side: int, height: int
) -> Iterator[str]:
    moved = {move.pod for move in found.moves}
    for left, title, held in ((0, "before", before), (side, "after", after)):
        yield svg_text(left + 2 * SPACE_WIDTH, 16, title, "#111827", SHOWN_LETTERS, bold=True)
        top = TITLE_HEIGHT
        for name, its, count in rows:
            yield svg_text(
                left + 2 * SPACE_WIDTH, top + 16, name or "devices of several nodes", "#111827", SHOWN_LETTERS
            )
            top += TITLE_HEIGHT
            for place, fact in enumerate(its):
                x = left + 2 * SPACE_WIDTH + place % ROW_CELLS * (CELL_WIDTH + SPACE_WIDTH)
                y = top + place // ROW_CELLS * (CELL_HEIGHT + SPACE_WIDTH)
                yield from _cell(fact, held[fact.id], _kind(held[fact.id], moved, found.pod), x, y)
            top += count * (CELL_HEIGHT + SPACE_WIDTH)
    yield from _legend(height - 8, found)


def _holders(fact: DeviceFact) -> list[str]:
    """Pods, or the claim where no pod uses it."""
    return [
        name
        for it in fact.holders
        for name in ([f"{it.claim.partition('/')[0]}/{pod}" for pod in it.pods] or [f"claim {it.claim}"])
    ]


def _after(before: Held, found: Defragmentation) -> Held:
    held = {device: list(pods) for device, pods in before.items()}
    for move in found.moves:
        for pods in held.values():
            pods[:] = [pod for pod in pods if pod != move.pod]
        for device in move.devices:
            held[device].append(move.pod)
    for device in found.devices:
        held[device].append(found.pod)
    return held


def _kind(holders: Sequence[str], moved: set[str], wanted: str) -> str:
    if not holders:
        return "free"
    if wanted in holders:
        return "wanted"
    return "moves" if moved.intersection(holders) else "stays"


def _cell(fact: DeviceFact, holders: Sequence[str], kind: str, x: int, y: int) -> Iterator[str]:
    who = ", ".join(holders) or "free"
    words = fact.name, who.partition("/")[2] or who
    yield from svg_tile((x, y), (CELL_WIDTH, CELL_HEIGHT), COLOURS[kind], f"{fact.id}: {who}", words, SHOWN_LETTERS)


def _legend(y: int, found: Defragmentation) -> Iterator[str]:
    words = {"moves": "moves", "stays": "stays", "free": "free"} | ({"wanted": found.pod} if found.devices else {})
    for place, (kind, word) in enumerate(words.items()):
        x = 2 * SPACE_WIDTH + place * (CELL_WIDTH + SPACE_WIDTH)
        yield svg_text(x, y, f"■ {word}", INKS[COLOURS[kind]][1], SHOWN_LETTERS)
