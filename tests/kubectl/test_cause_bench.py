"""Of 180 clusters, every third with two causes, each cause is named, and the pod runs once the advice was followed.

``WHY_BENCH=FIRST:END`` tries other cases, such as ``WHY_BENCH=180:2000``.
"""

from __future__ import annotations

import copy
import os
from random import Random
from typing import Final

import pytest
from bench_scene import working
from cause_bench import CASES, case, faults
from literal_advice import World
from told import told

FIRST, _, END = os.environ.get("WHY_BENCH", f"0:{CASES}").partition(":")
NUMBERS: Final = range(int(FIRST), int(END))
TOGETHER_CASES: Final = 10
"""Cases of one test: one alone takes less time than the start of a test."""


@pytest.mark.parametrize("first", NUMBERS[::TOGETHER_CASES])
def test_the_pod_runs_once_the_advice_was_followed_to_the_letter(first: int) -> None:
    for number in range(first, min(first + TOGETHER_CASES, NUMBERS.stop)):
        it = case(number)
        assert faults(it) == [], it.title


def test_two_causes_at_once_are_a_third_of_the_bench() -> None:
    two = [it for it in map(case, range(CASES)) if len(it.titles) == 2]
    assert len(two) >= CASES // 3
    assert len({it.titles for it in map(case, range(CASES))}) > CASES * 2 // 3


def of_another_scheduler(world: World, random: Random) -> None:
    """The pod is kube-scheduler's, which leads or not, and has refused the pod or not."""
    pod = world["Pod", "waits"]
    pod["spec"]["schedulerName"] = "default-scheduler"
    if random.random() < 0.7:
        lease = copy.deepcopy(world["Lease", "dra-operator-dra-scheduler"])
        lease["metadata"]["name"] = "kube-scheduler"
        world.add(lease)
    if random.random() < 0.5:
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no cpu"}
        pod.setdefault("status", {})["conditions"] = [said]


@pytest.mark.parametrize("first", NUMBERS[::TOGETHER_CASES])
def test_the_answer_about_all_pods_agrees_with_that_about_one(first: int) -> None:
    for number in range(first, min(first + TOGETHER_CASES, NUMBERS.stop)):
        random, world = Random(number), case(number).scene.world
        if random.random() < 0.2:
            world = working(random).world  # nothing but the scheduler may be in its way
        if random.random() < 0.5:
            of_another_scheduler(world, random)
        one, every = told(world.objects()), told(world.objects(), "")
        assert every.code == one.code, f"{number}: {one.text}\n{every.text}"
        assert ("nothing holds it back" in every.text) == (one.code == 0), every.text
        conditions = world["Pod", "waits"].get("status", {}).get("conditions", [])
        assert all(it["message"] in one.text and it["message"] in every.text for it in conditions), every.text
