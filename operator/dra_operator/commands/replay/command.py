"""Reads a snapshot, plays its week with each strategy, and prints how long pods wait."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.releases.release import BUILT, NEWEST
from dra_api.resource import ResourceSlice

from dra_operator.allocator import Features, Semantics
from dra_operator.commands.device_shares import DeviceShares
from dra_operator.commands.many_runs import jobs_of, results, save_plot
from dra_operator.commands.object_files import BadInput, of_kind, read_objects
from dra_operator.commands.simulated.cluster import simulated
from dra_operator.gates import features_of, parse_gates
from dra_operator.scheduling import PLACEMENT_STRATEGIES

from .course import Course
from .history import History, history
from .past import as_it_was
from .plot import plotted
from .replay import Replay, anew_in_order, emptied
from .report import csv_lines, json_document, notes_of, table

MOST_LOAD_FACTOR: Final = 100.0


class Week(NamedTuple):
    """What all replays have in common."""

    objects: Sequence[Object]
    history: History
    load: float
    """How many times as many pods come."""
    features: Features


class Played(NamedTuple):
    """One replay. ``left_out``: pods that could not come."""

    course: Course
    left_out: int


def run_replay(options: argparse.Namespace) -> int:
    """Raises BadInput."""
    jobs = jobs_of(options)
    strategies = _strategies(options.policy)
    week = _week(options)
    played = sorted(
        results(partial(play, week), strategies, jobs, "strategies"), key=lambda it: strategies.index(it.course.name)
    )
    courses = [it.course for it in played]
    past = (
        []
        if options.inflate
        else [as_it_was(week.history, week.objects, DeviceShares(of_kind(ResourceSlice, week.objects)))]
    )
    if options.plot:
        save_plot(options.plot, plotted([*past, *courses], week.history))
    notes = notes_of(week.history, played[0].left_out)
    for line in {"text": table, "csv": csv_lines, "json": json_document}[options.output](
        past, courses, week.history, notes
    ):
        print(line)
    return 0


def _strategies(text: str | None) -> list[str]:
    if not text:
        return list(PLACEMENT_STRATEGIES)
    names = list(dict.fromkeys(it.strip() for it in text.split(",")))
    for name in names:
        if name not in PLACEMENT_STRATEGIES:
            raise BadInput(
                f"--policy: {name!r} is no placement strategy, which a snapshot needs; choose from "
                f"{', '.join(PLACEMENT_STRATEGIES)}"
            )
    return names


def _week(options: argparse.Namespace) -> Week:
    if options.nodes or options.seed or options.gangs or options.moves:
        raise BadInput("--nodes, --seed, --gangs, --moves: only with a table in CSV, not with a snapshot")
    load = 1.0 if options.inflate is None else options.inflate
    if not 0 < load <= MOST_LOAD_FACTOR:
        raise BadInput(f"--inflate: expected a number above 0, up to {MOST_LOAD_FACTOR:g}; got {load:g}")
    objects = read_objects([options.trace])
    found = history(of_kind(Pod, objects))
    if found is None or not found.lives:
        raise BadInput(f"{options.trace}: no pod with claims whose status says when it came and went, nothing to play")
    release = BUILT.get(options.kubernetes_version, NEWEST)
    return Week(objects, found, load, features_of(parse_gates(options.feature_gates), release))


def play(week: Week, strategy: str) -> Played:
    """One replay. Raises BadInput if the snapshot has no node."""
    lives = anew_in_order(week.history, week.load)
    objects = emptied(week.objects, week.history, lives)
    made = simulated(objects, None, features=week.features, semantics=Semantics(), strategy=strategy)
    replay = Replay(made, week.history, lives, DeviceShares(of_kind(ResourceSlice, week.objects)))
    return Played(replay.course(strategy), replay.left_out)
