"""The bench of causes: clusters in which a pod waits for one or two causes, made from parts by a number.

Each part breaks a cluster in which the pod would run, names what the answer has to say, and knows what a person does
whom the answer tells to create, start or wait for something. Proven fixes are followed by ``literal_advice``.

``PYTHONPATH=tests/support python -m cause_bench --cases 0:180`` prints the cases that fail, and counts.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Final

from bench_devices import DEVICES, SELECTORS
from bench_nodes import NODES, PODS
from bench_scene import Scene, working
from literal_advice import follow, node_of_pod
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


def main() -> int:
    """Many cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=f"0:{CASES}", metavar="FIRST:END")
    first, _, end = parser.parse_args().cases.partition(":")
    counts: Counter[str] = Counter()
    for number in range(int(first), int(end)):
        it = case(number)
        found = faults(it)
        counts["two causes" if len(it.titles) > 1 else "one cause"] += 1
        if found:
            counts["wrong"] += 1
            print(f"=== {it.title}", *found, sep="\n  ")
    print(dict(counts))
    return int(bool(counts["wrong"]))


if __name__ == "__main__":
    raise SystemExit(main())
