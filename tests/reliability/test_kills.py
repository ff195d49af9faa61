"""The operator is killed at random moments, and after every single write of a pod's life, and started again at once.

``KOPF_DRA_ROUNDS=50 pytest tests/reliability/test_kills.py`` kills it fifty times instead of a few. The process of its
own has 14 moments after a write of its own choice, from ``KOPF_DRA_ROUNDS=14`` on it is killed at each of them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import NamedTuple

import pytest
from command import OperatorProcess
from dra_kube import (
    EVENTS,
    PODS,
    RESOURCE_CLAIMS,
)
from envtest import missing
from fake_api import Call
from faults import HangAfter, Target
from histories.history import ACTIONS, delete_everything, in_no_time, rest
from histories.rest import faults_of
from histories.script import (
    GANG,
    KINDS_OF_PODS,
    STEADFAST,
    TAINTED,
)
from histories.server import Weather
from histories.stage import Stage
from history_kit.game import Step
from objects import Make
from proving_ground import NAMESPACE, ProvingGround
from rounds import rounds
from waiting import becomes, until


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


pytestmark = pytest.mark.timeout(900)

DEVICES = 40
SHORT = ("--leader-elect-lease-duration", "3" if missing() else "10")
"""For which the next one stands by; a real API server needs more than a second for an answer when all is busy."""


def leads(operator: OperatorProcess) -> Callable[[], Awaitable[bool]]:
    """Whether it has the lease; it lists the cluster then."""

    async def look() -> bool:
        return "leading: " in operator.text

    return look


async def test_an_operator_may_be_killed_at_any_moment(ground: ProvingGround) -> None:
    """Each time some pods come and some go; the kill hits start, placing or release."""
    dice = random.Random(0)
    await ground.furnish(nodes=4, devices=DEVICES // 4)
    for number in rounds(2):
        async with ground.operator(*SHORT) as operator:
            await until("the operator leads", leads(operator))
            if dice.random() < 0.7:
                await operator.becomes_ready()
            await ground.add_pods(6, prefix=f"pod-{number}")
            names = await ground.bound_names()
            await ground.delete_pods(dice.sample(names, min(len(names), 5)))
            await asyncio.sleep(dice.uniform(0, 0.5))
            await operator.kill()
    async with ground.kept_running(*SHORT):
        await ground.bound(min(DEVICES, len(await ground.pods())))
        await ground.emptied()
    await ground.sound()


@pytest.mark.parametrize("kind", [kind for kind in KINDS_OF_PODS if kind != GANG])  # one pod of a gang never runs
def test_an_operator_may_be_killed_after_every_write_of_a_life(kind: str) -> None:
    """In one process, with an API server in memory; before the answer to the write is there, and after it."""
    whole = live(kind, 0, answered=True)
    assert whole.findings == ()
    for number, answered in itertools.product(range(1, len(whole.writes) + 1), (False, True)):
        life = live(kind, number, answered=answered)
        assert (life.findings, number, answered, life.writes) == ((), number, answered, life.writes)
        assert len(life.writes) >= number


WRITES = Target(verbs=("create", "update", "patch", "delete"), resource="[pr]*", client="operator")
OURS = [
    "create resourceclaims",
    "update pods/status",
    "update resourceclaims/status",
    "create pods/binding",
    "patch resourceclaims/status",
    "patch resourceclaims",
    "delete resourceclaims",
]
"""The writes for a pod with a claim from a template; the last three come when it has finished."""
LIFE = OURS if missing() else ["update resourceclaims", "update resourceclaims/status", "create pods/binding"]
"""Where a kube-controller-manager works, it makes the claim and releases it."""
MOMENTS = list(itertools.product(range(1, len(LIFE) + 1), (False, True)))


def runs(ground: ProvingGround, pod: str) -> Callable[[], Awaitable[bool]]:
    """Whether its node has started it."""

    async def look() -> bool:
        return bool((await ground.api.get(PODS, pod, NAMESPACE))["status"].get("phase") == "Running")

    return look


async def test_a_process_may_be_killed_after_every_write_of_a_life(ground: ProvingGround) -> None:
    await ground.furnish(nodes=1, devices=1)
    for number in rounds(1):
        after, answered = MOMENTS[(5 + 11 * number) % len(MOMENTS)]
        async with ground.operator("--no-leader-elect") as operator:
            await operator.becomes_ready()
            since = asyncio.get_running_loop().time()

            def has_written(after: int = after, answered: bool = answered, since: float = since) -> bool:
                done = [entry for entry in ground.proxy.journal.find(WRITES, since) if entry.carried_out is not None]
                return len(done) >= after and (done[after - 1].code is not None or not answered)

            hold = HangAfter(WRITES, skip=after - 1, count=1)
            with nullcontext() if answered else ground.proxy.suffering(hold):
                await ground.add_pod(f"pod-{number}")
                if LIFE[after - 1] in OURS[4:]:
                    await until("the pod runs", runs(ground, f"pod-{number}"))
                    finished = {"status": {"phase": "Succeeded"}}
                    await ground.api.patch(PODS, f"pod-{number}", finished, NAMESPACE, subresource="status")
                await becomes(has_written)
                await operator.kill()
        async with ground.operator("--no-leader-elect") as operator:
            await operator.becomes_ready()
            await ground.bound(len(await ground.pods()))
            await ground.emptied()
        written = [f"{entry.call.verb} {entry.call.resource}" for entry in ground.proxy.journal.find(WRITES, since)]
        assert written[:after] == LIFE[:after]
    await ground.sound()
