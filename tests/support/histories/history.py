"""One history: the script is played, then the weather clears, and everything comes to rest.

``live`` is the life of one pod, in which the operator is killed right after one of its writes and started again at
once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import NamedTuple, TypeVar

from dra_kube import EVENTS, PODS, RESOURCE_CLAIMS
from dra_operator.controllers import workers
from dra_operator.controllers.scheduling import cycle, planning, preemption
from fake_api import Call
from history_kit import clock
from history_kit.game import Game, Outcome, Step
from objects import Make

from .actions import ACTIONS
from .neighbours import is_passing, is_rival
from .rest import faults_of
from .script import GROUPED, STEADFAST, TAINTED, Script, script_of
from .server import Weather
from .stage import Stage
from .turns import faults_of_preemption, passed_over, who_finishes, who_waits

T = TypeVar("T")
MEASURING = (planning, preemption, cycle, workers)
"""What measures by the machine's clock how long a piece of work takes."""
PATIENCE = 900.0  # seconds within which everything comes to rest
LONG = 150.0  # seconds, more than the longest pause between two attempts to place a pod


def play(
    seed: int, script: Script | None = None, only: Collection[str] | None = None, *, traced: bool = False
) -> Outcome:
    """The history of a seed, or that of another script and of fewer strikes in the same weather."""
    weather = Weather(seed, only=only)

    async def main() -> tuple[Outcome, bool]:
        nodes, replicas, preempts, steps, traits = script or script_of(seed)
        random.seed(seed)  # by which candidates vary the time between two attempts
        stage = Stage(nodes, weather, replicas=replicas, preempts=preempts, traits=traits, traced=traced)
        found = [finding async for finding in _pass(stage, steps)]
        return Outcome(tuple(found), tuple(weather.strikes), tuple(stage.server.trace or ())), stage.judge.pardons

    (outcome, pardons), complaints = in_no_time(main)
    # What is pardoned after a restore, the operator itself finds as well, once its view is new.
    heard = (line for line in complaints if not (pardons and line.startswith("invariant violated")))
    return outcome._replace(findings=(*outcome.findings, *heard))


def in_no_time(main: Callable[[], Coroutine[None, None, T]]) -> tuple[T, tuple[str, ...]]:
    """What the coroutine returns on a clock of its own, and what the operator complained of."""
    return clock.in_no_time(main, "dra_operator", MEASURING, is_passing)


async def _pass(stage: Stage, steps: Collection[Step]) -> AsyncIterator[str]:
    """Everything happens; what was wrong at any moment, at the end, and after everything was deleted."""
    stage.furnish()
    stage.start_operator()
    for step in steps:
        await asyncio.sleep(max(0.0, step.at - asyncio.get_running_loop().time()))
        stage.tell(str(step))
        ACTIONS[step.what](stage, step)
    stage.clear_up()
    for finding in [
        *await rest(stage, "the end"),
        *await stage.too_long(),
        *faults_of(stage.server, swept=False, restored=stage.server.life > 0),
    ]:
        yield finding
    if stage.operator is not None and stage.server.life == 0:  # a restore tells no changes
        for finding in stage.judge.bookkeeper.faults(stage.operator.control.cluster):
            yield finding
    if stage.preempts and not stage.refuses_deletions():
        halves = stage.judge.halves() if GROUPED not in stage.traits else ()  # pods of a PodGroup end one by one
        for finding in [*faults_of_preemption(stage.server), *halves]:
            yield finding
    if stage.operator is not None and any(not pod["spec"].get("nodeName") for pod in stage.server.of(PODS)):
        stage.operator.control.look_again()
        for finding in [
            *await rest(stage, "a sweep"),
            *faults_of(stage.server, swept=True, restored=stage.server.life > 0),
        ]:
            yield finding
        for finding in await _give_devices_back(stage):
            yield finding
    delete_everything(stage)
    for finding in [*await rest(stage, "all pods were deleted"), *stage.judge.leaks(), *stage.judge.findings]:
        yield finding
    if stage.server.life == 0 and any(replica.started_over for replica in stage.replicas):
        yield "the operator starts over, though the server was never restored"
    if stage.operator is not None and (failure := stage.operator.failed()):
        yield failure


async def _give_devices_back(stage: Stage) -> list[str]:
    """A pod finishes while at least two wait for devices: whose turn was it? Beside a rival there are no turns."""
    server, waiting = stage.server, who_waits(stage.server)
    finished = who_finishes(server)
    if len(waiting) < 2 or finished is None or any(map(is_rival, server.of(PODS))):
        return []
    ended = stage.judge.preempted
    server.change(PODS, finished, lambda pod: pod["status"].update(phase="Succeeded"))
    found = await rest(stage, f"pod {finished} finished")
    has_one_turn = stage.judge.preempted == ended  # else more came free, and one pod may end others before another may
    return [
        *found,
        *faults_of(server, swept=False, restored=server.life > 0),
        *(passed_over(server, waiting) if has_one_turn else ()),
    ]


async def rest(stage: Stage, after: str) -> list[str]:
    """Wait until all is quiet, or until nothing but events was written for so long that nothing else will be."""
    loop, writes = asyncio.get_running_loop(), stage.server.writes
    pause, deadline = 0.05, loop.time() + PATIENCE
    since = loop.time()
    while not stage.is_quiet():
        if len(writes) != len(stage.server.writes):
            writes, since = stage.server.writes, loop.time()
        if loop.time() - since > LONG and not stage.is_busy():
            return []
        if loop.time() > deadline:
            return [f"no rest within {PATIENCE:g} s after {after}"]
        await asyncio.sleep(pause)
        pause = min(5.0, pause * 1.3)
    return []


def delete_everything(stage: Stage) -> None:
    """All pods, and all claims that people made; the rest has to go by itself."""
    for pod in stage.server.of(PODS):
        stage.server.deleted(PODS, pod["metadata"]["name"], "ns")
    for claim in stage.server.of(RESOURCE_CLAIMS):
        if not claim["metadata"].get("ownerReferences"):
            stage.server.deleted(RESOURCE_CLAIMS, claim["metadata"]["name"], "ns")


GAME = Game("histories", script_of, play)


class Life(NamedTuple):
    """``writes`` are all that the operator made; ``findings`` is empty if all went well."""

    writes: tuple[str, ...]
    findings: tuple[str, ...]


def live(kind: str, kill_after: int, *, answered: bool) -> Life:
    """A pod of the kind comes, runs, finishes, and is deleted.

    The operator is killed after so many writes have taken effect; ``answered``: after it has the answer of the last.
    """

    async def main() -> Life:
        weather = Weather(0)
        weather.is_over = True
        stage = Stage((2, 1), weather, traits=frozenset({TAINTED} if kind == STEADFAST else ()))
        writes: list[str] = []

        def count(call: Call) -> None:
            if call.verb != "get" and call.plural != EVENTS.plural:
                writes.append(f"{call.verb} {call.plural}{'/' + call.sub if call.sub else ''}")
                if len(writes) == kill_after:
                    stage.kill(restart_after=0.0)

        if answered:
            stage.server.answered = count
        else:
            stage.server.carried_out = count
        found = await _live(stage, kind)
        return Life(tuple(writes), (*found, *stage.judge.findings))

    life, complaints = in_no_time(main)
    return life._replace(findings=(*life.findings, *complaints))


async def _live(stage: Stage, kind: str) -> list[str]:
    """From the first object to the last; what was wrong when all was at rest."""
    stage.furnish()
    stage.start_operator()
    for name in ("shared", "immediate"):
        annotations = {"dra.kopf.dev/allocate": "immediate"} if name == "immediate" else {}
        if kind in (name, "both") and (kind, name) != ("both", "immediate"):
            stage.server.add(RESOURCE_CLAIMS, Make.claim(name, annotations=annotations))
    ACTIONS["add pod"](stage, Step(0.0, "add pod", kind))
    found = [*await rest(stage, "the pod came"), *faults_of(stage.server, swept=True)]
    if not stage.server[PODS, f"ns/{kind}"]["spec"].get("nodeName"):
        found.append("the pod does not run")
    stage.server.change(PODS, f"ns/{kind}", lambda pod: pod["status"].update(phase="Succeeded"))
    found += await rest(stage, "the pod finished")
    delete_everything(stage)
    await asyncio.sleep(0)
    found += await rest(stage, "everything was deleted")
    return [*found, *stage.judge.leaks()]
