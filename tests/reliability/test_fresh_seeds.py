"""In each run of CI every campaign looks at seeds that none has looked at before.

The summary of the run says with which seed they began: ``KOPF_DRA_SEED=NUMBER CI=true pytest`` with this file repeats
them. Fixed seeds stand in the tests of the rooms.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from campaign import CAMPAIGNS
from dra_operator.scheduling import NoPlace, decided, plan
from preemption_lab import Found, exhaustive, exhaustive_for_gang, random_gang_scene, random_scene
from rounds import FIRST_FRESH_SEED, LONG, fresh

SUPPORT = Path(__file__).parents[1] / "support"
SEEDS = {
    "allocator": 300,
    "defrag": 8,
    "defrag-gangs": 4,
    "fit": 30,
    "gangs": 300,
    "histories": 25,
    "histories-gangs": 10,
    "histories-pressed": 2,
    "ledger": 60,
    "plugin-histories": 25,
    "why": 15,
}
"""How many each campaign plays: a few seconds' worth."""


@LONG
@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_a_campaign_finds_nothing(campaign: str) -> None:
    seeds = f"{FIRST_FRESH_SEED}:{FIRST_FRESH_SEED + SEEDS[campaign]}"
    command = [sys.executable, "-m", "campaign", campaign, "--seeds", seeds]
    run = subprocess.run(command, env={"PYTHONPATH": str(SUPPORT)}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{campaign} --seeds {seeds}\n{run.stdout}{run.stderr}"


@LONG
def test_no_set_of_victims_is_better_than_the_one_that_is_chosen() -> None:
    for seed in fresh(300):
        scene = random_scene(seed, gangs=seed % 2 == 0, graces=seed % 3 > 0)
        if isinstance(decided(plan(scene.without(()))), NoPlace):
            answer = scene.answer()
            names = frozenset(it.metadata.name for it in answer.victims) if answer else None
            found = Found(answer.plan.node, names) if answer and names is not None else None
            assert found == exhaustive(scene), f"seed {seed}"


@LONG
def test_no_set_of_victims_for_a_gang_is_better_than_the_one_that_is_chosen() -> None:
    for seed in fresh(150):
        scene = random_gang_scene(seed, graces=seed % 3 > 0)
        if not isinstance(scene.plan_without(()), tuple):
            answer = scene.answer()
            found = frozenset(it.metadata.name for it in answer.victims) if answer else None
            assert found == exhaustive_for_gang(scene), f"seed {seed}"
