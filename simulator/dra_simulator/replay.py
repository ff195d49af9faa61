"""``simulate --trace snapshot.yaml``: plays a cluster's last week with each strategy, and says how long pods wait."""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from dra_api.codec import to_dict
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.releases import BUILT, NEWEST
from dra_api.resource import ResourceClaim, ResourceClaimStatus, ResourceSlice
from dra_api.values import format_time
from dra_operator.allocator import AllocationError, Features, Semantics
from dra_operator.commands.file_items import BadInput
from dra_operator.commands.object_files import of_kind, read_objects
from dra_operator.commands.simulated import SimulatedCluster, apply_changed, closed_gate, reserve, simulated
from dra_operator.gates import features_of, parse_gates
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Plan, decided, plan, pre_filter
from dra_operator.wording import counted
from msgspec.structs import replace

from dra_simulator.comparison import (
    THOUSANDTHS_OF_DEVICE,
    WEEK_SECONDS,
    Course,
    DeviceShares,
    History,
    Life,
    Sample,
    Step,
    Wait,
    anew,
    as_it_was,
    can_be_copied,
    history,
    without_pods,
)
from dra_simulator.runs import PERCENT_TICKS, Chart, Line, Tick, aligned, executor_of, picture, results, save_plot


class Turn(NamedTuple):
    """A pod that waits for a node; the first in order is tried first."""

    minus_priority: int
    number: int
    """In the order of arrival."""
    life: Life


def anew_in_order(history: History, load: float) -> list[Life]:
    """The pods before they had nodes; ``load``: how many times as many come, copies at the time of their pattern."""
    found: list[Life] = []
    for number, life in enumerate(history.lives):
        copies = int((number + 1) * load) - int(number * load) if can_be_copied(life.pod) else 1
        found += (life._replace(pod=anew(life.pod, copy)) for copy in range(copies))
    return found


class Replay:
    """A cluster through the week."""

    def __init__(self, made: SimulatedCluster, history: History, lives: Sequence[Life], shares: DeviceShares) -> None:
        self._made, self._history, self._shares = made, history, shares
        self._pods = {pod.key: pod for pod in made.pods}
        self._alike = {it.pod.key: _alike(it.pod) for it in lives}
        self._lives = lives
        self._waiting: list[Turn] = []
        self._ends: list[tuple[float, str]] = []
        self._refused: set[str] = set()
        """What pods are like that fit nowhere since something came free."""
        self._held: dict[str, int] = {}
        """Thousandths of devices by the UIDs of claims."""
        self.left_out = 0
        """Pods that cannot come: the snapshot lacks a claim of theirs, or another controller's gate is closed."""

    def course(self, name: str) -> Course:
        """Play it to the end."""
        steps: list[Step] = []
        waits: list[Wait] = []
        arrivals = [(max(0.0, it.created), number, it) for number, it in enumerate(self._lives) if self._can_come(it)]
        self.left_out = len(self._lives) - len(arrivals)
        heapq.heapify(arrivals)
        seconds = self._history.seconds
        while (now := min((it[0][0] for it in (arrivals, self._ends) if it), default=math.inf)) <= seconds:
            while self._ends and self._ends[0][0] <= now:
                self._end(self._pods[heapq.heappop(self._ends)[1]])
            while arrivals and arrivals[0][0] <= now:
                _, number, life = heapq.heappop(arrivals)
                heapq.heappush(self._waiting, Turn(-(life.pod.spec.priority or 0), number, life))
            waits += self._started(now)
            steps.append(Step(now, sum(self._held.values()), len(self._waiting)))
        waits += (Wait(seconds - it.life.created, is_over=False) for it in self._waiting if it.life.is_of_window)
        return Course(name, seconds, self._shares.all, steps, waits)

    def _can_come(self, life: Life) -> bool:
        return life.pod.key not in self._made.lacking and closed_gate(life.pod) is None

    def _started(self, now: float) -> list[Wait]:
        """Try those that wait, once each."""
        found, left = [], []
        for turn in sorted(self._waiting):
            if not self._place(turn.life, now):
                left.append(turn)
            elif turn.life.is_of_window:
                found.append(Wait(now - turn.life.created, is_over=True))
        self._waiting = left
        return found

    def _place(self, life: Life, now: float) -> bool:
        alike = self._alike[life.pod.key]
        if alike in self._refused:
            return False
        cluster, pod = self._made.cluster, self._pods[life.pod.key]
        moment = self._history.start + timedelta(seconds=now)
        state = pre_filter(pod, cluster.snapshot(self._made.allocator, moment))
        found = self._planned(state) if isinstance(state, CycleState) else None
        if not isinstance(state, CycleState) or found is None:
            self._refused.add(alike)
            return False
        reserve(state, found, cluster)
        for uid, allocation in found.allocations.items():
            self._held[uid] = sum(map(self._shares.given, allocation.devices.results or ()))
        if life.runs is not None:
            heapq.heappush(self._ends, (now + life.runs, pod.key))
        return True

    def _planned(self, state: CycleState) -> Plan | None:
        self._made.learner.see(state.pod, state.resource_claims)
        try:
            found = decided(plan(state, placement=self._made.placement))
        except AllocationError:
            return None
        return found if isinstance(found, Plan) else None

    def _end(self, pod: Pod) -> None:
        """The pod is gone, its claims with it; one that it shared is left to the others."""
        cluster = self._made.cluster
        own = {claim.key: claim for claim in cluster.claims_owned_by(pod)}
        shared = [it for _, it in cluster.claims_of(pod) if it is not None and it.key not in own]
        for claim in shared:
            left = tuple(user for user in claim.status.reserved_for or () if user.uid != pod.metadata.uid)
            if not left:
                self._held.pop(claim.metadata.uid, None)
            status = replace(claim.status, reserved_for=left) if left else ResourceClaimStatus()
            apply_changed(cluster, replace(claim, status=status))
        for claim in own.values():
            self._held.pop(claim.metadata.uid, None)
            cluster.delete(ResourceClaim, claim.key)
        cluster.delete(Pod, pod.key)
        cluster.storage.written(pod.metadata.uid)
        self._refused.clear()


def _alike(pod: Pod) -> str:
    """Equal for pods that the same nodes suit."""
    return json.dumps((pod.metadata.namespace, pod.metadata.labels, to_dict(pod.spec)), sort_keys=True)


def emptied(objects: Sequence[Object], history: History, lives: Sequence[Life]) -> list[Object]:
    """The objects before the week, with the pods that come in it."""
    return [*without_pods(objects, [it.pod for it in history.lives]), *(it.pod for it in lives)]


HEADER: Final = ("STRATEGY", "PODS STARTED", "OF", "WAITED, MEAN", "LONGEST", "DEVICES IN USE")
LESS_WAIT_PERCENT: Final = 5
"""Less waiting than with the default, from which on a strategy is advised."""
UNITS: Final = (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48), ("d", 86_400, 1_000_000))
"""Each with its seconds, and how many of it are written at most."""


def table(past: Sequence[Course], courses: Sequence[Course], history: History, notes: Sequence[str]) -> Iterator[str]:
    """A row for each strategy, and the advice. ``past``: as it was, where that can be compared."""
    rows = [HEADER]
    for it in (*past, *courses):
        waited = _duration(it.mean_wait), _duration(it.longest_wait)
        rows.append((it.name, str(it.started), str(len(it.waits)), *waited, f"{it.used_percent:.1f} %"))
    yield from aligned(rows)
    yield ""
    start, end = map(format_time, (history.start, history.start + timedelta(seconds=history.seconds)))
    yield f"From {start} to {end}. A pod that waits at the end counts with its time so far."
    yield from notes
    yield advice(courses, past)


def advice(courses: Sequence[Course], past: Sequence[Course] = ()) -> str:
    """Return the advice which strategy to set, compared with the recorded time, or with the default if there is none.

    The first strategy is the default. The first of equal strategies is best.
    """
    default = courses[0]
    known = past[0] if past else default
    best = min(courses, key=lambda it: (round(it.mean_wait), -it.started))
    than = known.name if past else f"with {known.name}"
    if round(known.mean_wait) == 0 and known.started == len(known.waits):
        waits = "no pod waited" if past else f"no pod waits with {known.name}"
        return f"{waits}: leave the setting as it is, or try a higher load with --inflate 1.3"
    if 100 * best.mean_wait > (100 - LESS_WAIT_PERCENT) * known.mean_wait:
        return f"with no strategy pods wait {LESS_WAIT_PERCENT} % less than {than}: leave the setting as it is"
    waited = [f"{_duration(known.mean_wait)} {than}"]
    if past and best is not default:
        waited.append(f"{_duration(default.mean_wait)} with {default.name}")
    return (
        f"run the operator with --placement-strategy {best.name}: pods wait {_duration(best.mean_wait)} on average, "
        f"{', '.join(waited)}"
    )


def _duration(seconds: float) -> str:
    name, length, _ = next(unit for unit in UNITS if seconds < unit[1] * unit[2])
    return f"{seconds / length:.3g} {name}"


def csv_lines(
    past: Sequence[Course], courses: Sequence[Course], history: History, notes: Sequence[str]
) -> Iterator[str]:
    """A line for each strategy and change."""
    yield "strategy,time,devices_in_use,pods_waiting"
    for it in (*past, *courses):
        for moment, used, waiting in _points(it, history):
            yield f"{it.name},{moment},{used:g},{waiting}"


def _points(course: Course, history: History) -> Iterator[tuple[str, float, int]]:
    """The time of each change, with devices in use and pods that wait."""
    for step in course.steps:
        moment = format_time(history.start + timedelta(seconds=step.seconds))
        yield moment, step.used / THOUSANDTHS_OF_DEVICE, step.waiting


def json_document(
    past: Sequence[Course], courses: Sequence[Course], history: History, notes: Sequence[str]
) -> Iterator[str]:
    end = history.start + timedelta(seconds=history.seconds)
    yield json.dumps(
        {
            "version": 1,
            "start": format_time(history.start),
            "end": format_time(end),
            "notes": list(notes),
            "advice": advice(courses, past),
            "strategies": [_summary(it, history) for it in (*past, *courses)],
        },
        indent=1,
    )


def _summary(course: Course, history: History) -> dict[str, Any]:
    names = ("time", "devicesInUse", "podsWaiting")
    return {
        "strategy": course.name,
        "pods": len(course.waits),
        "started": course.started,
        "meanWaitSeconds": round(course.mean_wait, 1),
        "longestWaitSeconds": round(course.longest_wait, 1),
        "devicesInUsePercent": round(course.used_percent, 2),
        "points": [dict(zip(names, point, strict=True)) for point in _points(course, history)],
    }


def notes_of(history: History, lacking: int) -> list[str]:
    """What the week leaves out."""
    notes = []
    if history.undated:
        pods = counted(history.undated, "pod")
        notes.append(f"{pods} left out: their status does not say when they got a node, or ended")
    if lacking:
        pods = counted(lacking, "pod")
        notes.append(f"{pods} left out: the snapshot lacks a claim or template of theirs, or another gate is closed")
    return notes


POINTS: Final = 168
"""Of a line; of a whole week, each is an hour."""
DAY_SECONDS: Final = 86_400
LEVELS: Final = 5
"""Marks at the side, at most; of pods, whole ones."""


def plotted(courses: Sequence[Course], history: History) -> str:
    sampled = [(it.name, it.sampled(POINTS)) for it in courses]
    most = max(sample.waiting for _, samples in sampled for sample in samples)
    step = max(1, math.ceil(most / LEVELS))
    top = step * max(1, math.ceil(most / step))
    days = range(int(history.seconds / DAY_SECONDS) + 1)
    across = [Tick(day * DAY_SECONDS / history.seconds if day else 0.0, str(day)) for day in days]
    below = f"days from {history.start:%Y-%m-%d %H:%M} UTC"

    def lines(height: Callable[[Sample], float]) -> list[Line]:
        return [
            Line(name, [((number + 0.5) / POINTS, height(it)) for number, it in enumerate(samples)])
            for name, samples in sampled
        ]

    used, waiting = lines(lambda it: it.used_percent / 100), lines(lambda it: it.waiting / top)
    pods = [Tick(count / top, str(count)) for count in range(0, top + 1, step)]
    return picture(
        [
            Chart("devices in use, % of the cluster", below, across, PERCENT_TICKS, used),
            Chart("pods that wait", below, across, pods, waiting),
        ],
        "The same week with each placement strategy: means of each hour"
        if history.seconds > WEEK_SECONDS / 2
        else "The same time with each placement strategy",
    )


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
    where = executor_of(options)
    strategies = _strategies(options.policy)
    week = _week(options)
    played = sorted(
        results(partial(play, week), strategies, where, "strategies"), key=lambda it: strategies.index(it.course.name)
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
