"""What the replays of a week say, for people and for programs, and which setting they speak for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from dra_api.values.times import format_time

from dra_operator.commands.device_shares import THOUSANDTHS_OF_DEVICE
from dra_operator.wording import counted

from .course import Course
from .history import History

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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    start, end = map(format_time, (history.start, history.start + timedelta(seconds=history.seconds)))
    yield f"From {start} to {end}. A pod that waits at the end counts with its time so far."
    yield from notes
    yield advice(courses)


def advice(courses: Sequence[Course]) -> str:
    """Which strategy to set. Of the strategies, the first is the default; of equal ones, the first is best."""
    default = courses[0]
    best = min(courses, key=lambda it: (round(it.mean_wait), -it.started))
    if round(default.mean_wait) == 0 and default.started == len(default.waits):
        return f"no pod waits with {default.name}: leave the setting as it is, or try a higher load with --inflate 1.3"
    if 100 * best.mean_wait > (100 - LESS_WAIT_PERCENT) * default.mean_wait:
        less = f"{LESS_WAIT_PERCENT} % less than with {default.name}"
        return f"with no strategy pods wait {less}: leave the setting as it is"
    return (
        f"run the operator with --placement-strategy {best.name}: pods wait {_duration(best.mean_wait)} in the mean, "
        f"{_duration(default.mean_wait)} with {default.name}"
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
        for step in it.steps:
            moment = format_time(history.start + timedelta(seconds=step.seconds))
            yield f"{it.name},{moment},{step.used / THOUSANDTHS_OF_DEVICE:g},{step.waiting}"


def json_document(
    past: Sequence[Course], courses: Sequence[Course], history: History, notes: Sequence[str]
) -> Iterator[str]:
    """One document."""
    end = history.start + timedelta(seconds=history.seconds)
    yield json.dumps(
        {
            "version": 1,
            "start": format_time(history.start),
            "end": format_time(end),
            "notes": list(notes),
            "advice": advice(courses),
            "strategies": [_summary(it, history) for it in (*past, *courses)],
        },
        indent=1,
    )


def _summary(course: Course, history: History) -> dict[str, Any]:
    points = [
        {
            "time": format_time(history.start + timedelta(seconds=step.seconds)),
            "devicesInUse": step.used / THOUSANDTHS_OF_DEVICE,
            "podsWaiting": step.waiting,
        }
        for step in course.steps
    ]
    return {
        "strategy": course.name,
        "pods": len(course.waits),
        "started": course.started,
        "meanWaitSeconds": round(course.mean_wait, 1),
        "longestWaitSeconds": round(course.longest_wait, 1),
        "devicesInUsePercent": round(course.used_percent, 2),
        "points": points,
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
