"""The life of one pod, in which the operator is killed right after one of its writes and started again at once."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from dra_kube import EVENTS, PODS, RESOURCE_CLAIMS
from fake_api import Call
from history_kit.game import Step
from objects import Make

from .actions import ACTIONS
from .history import delete_everything, in_no_time, rest
from .rest import faults_of
from .script import STEADFAST, TAINTED
from .stage import Stage
from .weather import Weather


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
