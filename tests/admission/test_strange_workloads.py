"""A Workload with any value at any field costs only itself, and not more than a few kilobytes of words."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from datetime import datetime

import pytest
from admission_world import AdmissionWorld, made, planner, question
from dra_api.codec import DecodeError, convert
from dra_api.kueue import ResourceFlavor, Workload
from dra_api.meta import ObjectMeta
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIM_TEMPLATES
from dra_operator.admission.planner import Outcome
from dra_operator.admission.workloads import (
    CHECK_MESSAGE_CHARACTERS,
    CheckDecision,
    CheckNames,
    CheckState,
    after_eviction,
    decision_patch,
    rank,
    rank_of_promise,
    requeue_patch,
    stage_of,
)
from dra_operator.commands.simulated.claims import ClaimQuotas
from objects import Make
from strange_workloads import PLAIN, strange

NAMES = CheckNames(frozenset({"devices"}), frozenset({"devices"}))
FLAVORS = {"any": ResourceFlavor()}


@pytest.fixture
def world() -> AdmissionWorld:
    its = AdmissionWorld()
    its.furnish(nodes=2, devices=2)
    its.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return its


def looked_at(workload: Workload, now: datetime) -> None:
    """What the controller asks and writes about it before and after the planner."""
    retry = CheckDecision(CheckState.RETRY, "no", 5.0)
    stage_of(workload, NAMES, now, 300.0)
    rank(workload), rank_of_promise(workload, NAMES.known, now)
    after_eviction(workload, NAMES.active, retry)
    decision_patch(workload, NAMES.active, retry, "now"), requeue_patch(workload, NAMES.active, "now")


async def test_any_value_at_any_field_is_answered_alone(world: AdmissionWorld) -> None:
    answering, good = planner(world), made("good", 1)
    plain = convert(Workload, PLAIN)
    asked = replace(question(world, candidates=[plain, good]), flavors=FLAVORS)
    assert [it.fits for it in answering.answer(asked).candidates.values()] == [True, True]
    planned = 0
    for what, obj in strange(400, seed=1):
        try:
            odd = convert(Workload, obj)
        except DecodeError:
            continue
        looked_at(odd, asked.now)
        for how in ("promised", "candidates", "backing_off"):
            promised = [odd] if how == "promised" else []
            candidates = [odd, good] if how == "candidates" else [good]
            backing_off = [odd] if how == "backing_off" else []
            began = time.process_time()
            answers = answering.answer(
                replace(question(world, promised, candidates), flavors=FLAVORS, backing_off=backing_off)
            )
            assert time.process_time() - began < 2, (what, how)
            assert answers.candidates["good"].fits, (what, how)
            found: Outcome | None = getattr(answers, how).get(odd.metadata.uid)
            assert found is None or len(found.reason) <= CHECK_MESSAGE_CHARACTERS, (what, how)
            assert found is None or "cannot be planned" not in found.reason, (what, how, found.reason)
        planned += 1
    assert planned > 100


def test_claims_that_no_quota_limits_leave_nothing_behind() -> None:
    """An operator plans for months: what it remembered of each claim would be copied in each search."""
    quotas = ClaimQuotas((), (), str)
    tracemalloc.start()
    try:
        for number in range(1000):
            claim = ResourceClaim(metadata=ObjectMeta(name="it", namespace="ns", uid=f"{number}{'x' * 1000}"))
            assert quotas.refusal([claim], lasting=True) is None
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
