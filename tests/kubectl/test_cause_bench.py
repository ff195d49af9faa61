"""Of 180 clusters, every third with two causes, each cause is named, and the pod runs once the advice was followed.

A case is made from parts by its number. Each part breaks a cluster in which the pod would run, names what the answer
has to say, and knows what a person does whom the answer tells to create, start or wait for something. Proven fixes are
followed to the letter.

``WHY_BENCH=FIRST:END`` tries other cases, such as ``WHY_BENCH=180:2000``.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Final

import pytest
from bench_devices import DEVICES, SELECTORS
from bench_nodes import NODES, PODS
from bench_scene import Scene, World, follow, node_of_pod, working
from told import Json, after_edits, told

CASES: Final = 180
KINDS: Final = (SELECTORS, DEVICES, NODES, PODS)
ALONE: Final = [(title, broken) for kind in KINDS for title, broken in kind.items()]
HIDING: Final[dict[str, tuple[Collection[str], ...]]] = {
    "a claim or template that is missing": (
        SELECTORS,
        DEVICES,
        {"a toleration in the wrong place", "a claim on a node that the pod leaves out"},
    ),
    "a class that is missing": (SELECTORS, DEVICES),
    "a driver that is not there": (DEVICES,),
    "a pool that is published in part": (DEVICES,),
    "a mistyped extended resource": (
        DEVICES,
        {"a driver that is not there", "a pool that is published in part"},
        {"a counter set that no slice has", "devices of one name", "a toleration in the wrong place"},
    ),
    "all devices, some in use": (SELECTORS,),
    "a toleration in the wrong place": (
        {"a device taint", "a device taint that evicts", "broken devices", "a toleration of another taint"},
    ),
    "an allocation for a node that is gone": ({"a claim on a node that the pod leaves out"},),
    "a claim on a node that the pod leaves out": (SELECTORS, DEVICES, {"a class that is missing", "a mistyped class"}),
    "a counter set that no slice has": (DEVICES,),
    "devices of one name": (DEVICES,),
    "two conditions on two nodes": ({"more memory than a device has"},),
}
"""Causes that hide others, with these: what a claim asks for that is not there, or what a device would publish.
What serves an extended resource takes one more device, which no toleration of the pod reaches; a selector may leave
out the devices in use. Of two conditions one needs a node whose devices have enough memory."""


def _is_hidden(titles: list[str]) -> bool:
    """Whether one of the causes hides the other, or both change one field."""
    is_hidden = any(other in kind for title in titles for kind in HIDING.get(title, ()) for other in titles)
    return is_hidden or ("a mistyped driver in the class" in titles and any("class" in it for it in titles[1:]))


@dataclass(frozen=True)
class Case:
    """One cluster of the bench."""

    number: int
    titles: tuple[str, ...]
    scene: Scene
    named: tuple[str, ...]

    @property
    def title(self) -> str:
        """For names of tests."""
        return f"{self.number}: {' and '.join(self.titles)}"


def case(number: int) -> Case:
    """The case of a number: two causes for every third, else one."""
    random = Random(number)
    if number % 3 == 2:
        while True:
            kinds = random.sample(KINDS, 2)
            # what is said of a claim comes before what is said of its devices
            kinds.sort(key=KINDS.index)
            chosen = [random.choice(list(kind.items())) for kind in kinds]
            if not _is_hidden([title for title, _ in chosen]):
                break
    else:
        chosen = [ALONE[(number - number // 3) % len(ALONE)]]
    scene = working(random)
    named = tuple(broken(scene) for _, broken in chosen)
    return Case(number, tuple(title for title, _ in chosen), scene, named)


def faults(it: Case) -> list[str]:
    """What is wrong with the answer about a case; empty if nothing is."""
    world = it.scene.world
    found = told(world.objects())
    wrong = [f"not named: {pattern}" for pattern in it.named if not re.search(pattern, found.text)]
    if found.code != 3:
        wrong.append(f"exit code {found.code}")
    if not found.fixes and not it.scene.mends:
        wrong.append("no fix, and nothing to do")
    fixes: list[Json | None] = [*found.fixes] or [None]
    for fix in fixes:
        after = world.copy()
        for mend in it.scene.mends:
            mend(after)
        try:
            if fix is not None:
                follow(after, fix["text"])
        except LookupError as error:
            wrong.append(f"cannot be followed: {error}")
            continue
        got = after.node_of_pod()
        if not got or (fix is not None and not it.scene.mends and got != fix["node"]):
            what = fix["text"] if fix is not None else "what the answer says"
            wrong.append(f"the pod gets {got or 'no node'}, not {fix['node'] if fix else 'one'}, after: {what}")
        if fix is not None and not it.scene.mends and node_of_pod(after_edits(found.seen, fix)) != fix["node"]:
            wrong.append(f"the pod does not get {fix['node']} by the edits of: {fix['text']}")
    return [*wrong, found.text] if wrong else []


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
