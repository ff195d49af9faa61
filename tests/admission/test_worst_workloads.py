"""What the largest, the most and the strangest Workloads that an API server admits cost everybody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from admission_world import VIEW, AdmissionWorld
from dra_api.codec import convert
from dra_api.kueue import Workload
from dra_kube import RESOURCE_CLAIM_TEMPLATES, WORKLOADS
from dra_operator.admission.planner import CheckRound, Planner, PromisedWorkload
from dra_operator.kubectl.cli import main
from dra_operator.sources.kind_table import OF_KUEUE
from dra_operator.sources.kinds import WATCHED
from kueue_model import is_true, workload
from objects import Make


@pytest.fixture
def world() -> AdmissionWorld:
    made = AdmissionWorld()
    made.furnish(nodes=2, devices=2)
    made.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return made


def planner(world: AdmissionWorld) -> Planner:
    world.start()
    kinds = [kind for kind in WATCHED.values() if kind not in OF_KUEUE.values()]
    return Planner(world.cluster, VIEW, [obj for kind in kinds for obj in world.cluster.store_of(kind)])


def question(
    world: AdmissionWorld, promised: Sequence[Workload] = (), candidates: Sequence[Workload] = ()
) -> CheckRound:
    return CheckRound(
        changes=(),
        held={},
        flying=(),
        assumed=(),
        flavors={},
        promised=[PromisedWorkload(it) for it in promised],
        candidates=candidates,
        backing_off=(),
        now=datetime.fromisoformat(world.now),
    )


def made(name: str, pods: int = 1, **fields: Any) -> Workload:
    obj = workload(name, pods, **fields)
    obj["metadata"]["uid"] = name
    return convert(Workload, obj)


async def test_a_promise_to_a_billion_pods_makes_none_of_them(world: AdmissionWorld) -> None:
    """Whoever writes its status may say that it is Ready: an operator that planned it would need all memory."""
    huge, good = made("huge", 1_000_000_000), made("good", 2)
    answers = planner(world).answer(question(world, promised=[huge, good]))
    assert "it has 1000000000 pods, and at most 2000 are planned together" in answers.promised["huge"].reason
    assert answers.promised["good"].fits


async def test_why_looks_for_no_help_for_a_billion_pods(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.api.add(WORKLOADS, workload("huge", 1_000_000_000))
    items = [
        {"apiVersion": resource.api_version(), "kind": resource.kind, **obj}
        for (resource, _, _), obj in world.api.objects.items()
    ]
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    main(["why", "workload/huge", "-n", "ns", "--from", str(dump)])
    assert "it has 1000000000 pods, and at most 2000 are planned together" in capsys.readouterr().out


async def test_a_start_waits_for_no_decision_and_no_write(world: AdmissionWorld) -> None:
    """Pods wait until promises are kept, and would wait for a slow API server, or for searches, as well."""
    world.api.add(WORKLOADS, workload("train", 2))
    world.start()
    world.bring_events()
    assert is_true(world.workload("train"), "QuotaReserved")
    await world.admission.recall()
    assert world.api.writes == []
    async with world.running():
        await world.until("admitted", lambda: world.is_admitted("train"))
