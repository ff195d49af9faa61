"""What people, hardware and machines do in one history: steps, each at its time. The seed decides which."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from history_kit.game import Step, some_times

DRIVERS = ("toy", "hostdev", "toy", "simulated")
"""Whose plugin it is, by the rest of the seed."""
ADAPTERS = ("a", "b", "c")  # each is one device, ``s-a``
KNOWN = ("a", "b")  # adapters that a narrow version of the driver knows
SHARED = "s-c"  # the device of which claims get shares, in some histories
ADMIN = "admin"  # pods whose claims have an administrator's access
FOLDERS = ("claims", "cdi", "")  # which folders of the plugin a fault of the disk is about; the last one: all
DURATION = 40.0  # seconds in which everything happens


class Script(NamedTuple):
    """Which ``driver``, and in which way.

    ``overlaps``: its instances have sockets of their own, so that two may run at once. ``spread``: each device has a
    slice of its own. ``shares``: several claims can have ``SHARED``. ``narrow``: every second version of the driver
    knows ``KNOWN`` only.
    """

    driver: str
    overlaps: bool
    serialize: bool
    metadata: bool
    spread: bool
    shares: bool
    narrow: bool
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        words = (
            name for name in ("overlaps", "serialize", "metadata", "spread", "shares", "narrow") if getattr(self, name)
        )
        return " ".join((f"the driver {self.driver}", *words))


def script_of(seed: int) -> Script:
    dice = random.Random(seed)
    overlaps, serialize = dice.random() < 0.4, dice.random() < 0.6
    ends = [*_ends(dice), *(_updates(dice) if overlaps else ())]
    steps = [*_pods(dice), *_adapters(dice), *_twins(dice), *_machine(dice), *_faults(dice), *ends]
    metadata, spread, shares, narrow = (dice.random() < chance for chance in (0.2, 0.5, 0.3, 0.4))
    hurry = dice.choice((0.2, 1.0, 1.0, 1.0))
    steps = [step._replace(at=hurry * step.at) for step in steps]
    ways = (overlaps, serialize, metadata, spread, shares, narrow)
    return Script(DRIVERS[seed % len(DRIVERS)], *ways, tuple(sorted(steps)))


_some = partial(some_times, DURATION)


def _pods(dice: random.Random) -> Iterator[Step]:
    """They have a claim of one or two devices, or two claims; they end, or are deleted by force, and come again."""
    for number in range(dice.randint(1, 5)):
        name, at = f"pod-{number}", dice.uniform(0, DURATION / 2)
        shape = dice.choice((1, 1, 1, 2, 11))  # devices of each claim
        if dice.random() < 0.1:
            name = f"{ADMIN}-{number}"
        yield Step(at, "add pod", name, shape)
        while at < DURATION and dice.random() < 0.75:
            at += dice.choice((0.003, 0.1, dice.expovariate(0.3), dice.expovariate(0.1)))
            yield Step(at, how := dice.choice(("end pod", "end pod", "delete pod by force")), name)
            if how == "delete pod by force" and dice.random() < 0.6:  # its devices are given to another pod
                yield Step(at + dice.choice((0.0, 0.5, 2.0)), "add pod", f"heir-{number}", shape)
            at += dice.choice((0.0, 0.5, dice.expovariate(0.3)))
            yield Step(at, "add pod", name, shape)


def _adapters(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 6, 0.45):
        adapter = dice.choice(ADAPTERS)
        if dice.random() < 0.3:
            yield Step(at, "swap adapters", adapter, dice.random())
            continue
        yield Step(at, "pull adapter", adapter)
        if dice.random() < 0.6:  # it may get the node of the first one
            other = dice.choice(ADAPTERS)
            yield Step(at + dice.uniform(0, 2), "pull adapter", other)
            yield Step(at + 2 + dice.expovariate(0.5), "plug adapter", other)
        if dice.random() < 0.7:
            yield Step(at + dice.expovariate(0.3), "plug adapter", adapter, dice.choice((0, 0, 1, 2, 3)))


def _twins(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 1, 0.3):
        adapter = dice.choice(ADAPTERS)
        yield Step(at, "plug twin", adapter)
        if dice.random() < 0.5:
            yield Step(at + dice.expovariate(0.3), "pull twin", adapter)


def _machine(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 2, 0.3):
        yield Step(at, "restart the kubelet", "", dice.choice((0.0, 1.0, 5.0, 40.0)))
    for at in _some(dice, 2, 0.3):
        yield Step(at, "repeat calls")
    for at in _some(dice, 2, 0.3):
        yield Step(at, "tell more of devices", "", dice.random())
    for at in _some(dice, 1, 0.1):
        yield Step(at, "reboot", "", dice.uniform(0.5, 5))


def _ends(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 3, 0.4):
        yield Step(at, "kill the plugin", "", dice.choice((0, 1, 2, *range(1, 40))))
        if dice.random() < 0.3:  # again, as soon as it has something to do
            yield Step(at + dice.uniform(0.3, 3), "kill the plugin", "", dice.randint(1, 40))
    for at in _some(dice, 1, 0.3):
        yield Step(at, "end the plugin")


def _updates(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 2, 0.6):
        seconds = dice.choice((0.5, 3.0, 10.0))
        yield Step(at, "update the plugin", "", seconds)
        if dice.random() < 0.4:
            yield Step(at + dice.uniform(0, 1.2) * seconds, "kill the older plugin", "", dice.randint(0, 30))


def _faults(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 1, 0.1):
        yield Step(at, "damage a record", "", dice.random())
    for at in _some(dice, 1, 0.2):
        yield Step(at, "allocate anew", "", dice.random())
    for at in _some(dice, 2, 0.3):
        yield Step(at, "damage CDI files", dice.choice(("remove", "empty")))
    for at in _some(dice, 2, 0.3):
        yield Step(at, dice.choice(("fill disk", "protect disk")), dice.choice(FOLDERS), dice.expovariate(0.2))
    for at in _some(dice, 1, 0.2):
        yield Step(at, "stop the server", "", dice.expovariate(0.2))
    for at in _some(dice, 1, 0.2):
        yield Step(at, dice.choice(("delete slices", "lose slices")))
    for at in _some(dice, 2, 0.2):
        yield Step(at, "delete slice", "", dice.random())
    for at in _some(dice, 2, 0.2):
        yield Step(at, "edit slice", dice.choice(("devices", "generation", "copy")), dice.random())
