"""Histories of one urgent pod beside tenants below it that do as they please (``urgency`` has the rule).

``PYTHONPATH=tests/support python -m histories.pressed --seeds 0:10000`` plays many.

Faults befall everything for some seconds, then it is *calm*, and pods of lower priority go on coming, finishing and
being deleted for minutes, many of them with grace periods of an hour. The urgent pod comes meanwhile.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterator
from typing import Final

from history_kit.game import Game, Outcome, Step, main

from histories import history
from histories.judge import URGENT
from histories.script import GANG, STEADFAST, TOLERANT, VOLUME, Script, faults

CALM_AT, STORM_SECONDS = 25.0, 200.0
BELOW: Final = ("template", "two", "shared", "both", "extended", "plain", TOLERANT, STEADFAST, VOLUME, GANG)
WEIGHTS: Final = (8, 2, 3, 2, 2, 2, 1, 1, 1, 2)
RULES: Final = ("zone", "nozone", "tolerates", "cpu", "port", "apart")


def pressed(seed: int) -> Script:
    """The script of a seed."""
    dice = random.Random(seed)
    nodes = tuple(dice.choice((1, 1, 2)) for _ in range(dice.choice((1, 2, 2, 3))))
    rules = dice.sample(RULES, dice.choice((0, 1, 2, 4)))
    steps = [*faults(dice), Step(0.0, "add claim", "shared"), Step(CALM_AT, "calm"), *_storm(dice, rules)]
    kind = dice.choice(("template", "template", "two", "shared", "both", "extended", "plain", TOLERANT))
    words = [rule for rule in rules if dice.random() < 0.3]
    steps.append(Step(dice.uniform(CALM_AT, CALM_AT + 60), "add pod", "-".join((kind, URGENT, *words))))
    return Script(nodes, 1, True, tuple(sorted(steps)))


def _storm(dice: random.Random, rules: Collection[str]) -> Iterator[Step]:
    """Pods of tenants below; those of the gang have one priority. The lowest are the slowest: they are chosen first."""
    rank, lowest, ends = ["low"] * dice.choice((0, 1)), dice.choice((0.0, 0.3, 0.6)), dice.choice((20, 100, 1000))
    for number in range(dice.choice((10, 20, 40))):
        kind = dice.choices(BELOW, WEIGHTS)[0]
        words = [rule for rule in rules if dice.random() < 0.3] if kind != GANG else rank
        if kind != GANG and dice.random() < lowest:
            words = ["low", "slow", *words]
        name, at = "-".join((kind, str(number), *words)), dice.uniform(0, dice.choice((CALM_AT, STORM_SECONDS)))
        yield Step(at, "add pod", name)
        while dice.random() < 0.7:
            at += dice.expovariate(1 / ends)
            yield Step(at, dice.choice(("delete pod", "finish pod")), name)
            at += 2.5 * dice.random()
            yield Step(at, "delete pod", name)
            at += dice.choice((0.0, 0.1, dice.expovariate(0.1)))
            yield Step(at, "add pod", name)


def play(
    seed: int, script: Script | None = None, only: Collection[str] | None = None, *, traced: bool = False
) -> Outcome:
    """The history of a seed, or that of another script and of fewer strikes in the same weather."""
    return history.play(seed, script or pressed(seed), only, traced=traced)


if __name__ == "__main__":
    sys.exit(main(Game("histories.pressed", pressed, play)))
