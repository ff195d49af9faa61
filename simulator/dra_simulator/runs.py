"""What traces and replays share: arguments, runs in processes of this machine or on a Dask cluster, pictures as SVG.

A run depends on nothing but its input, so where it is played changes no bit of its result; workers of a cluster must
have the versions of this process. A line on a terminal says how far the runs are.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from xml.sax.saxutils import escape

from dra_api import VERSION
from dra_operator.commands.file_items import BadInput

NAMES: Final = (
    "random",
    "first-fit",
    "emptiest",
    "dot-product",
    "gpu-clustering",
    "gpu-packing",
    "best-fit",
    "fgd",
    "frag",
)
"""The policies, as ``quality.policies`` has them."""
DEFAULT_POLICIES: Final = "emptiest,best-fit,fgd,frag"
ONLY_WITH_TRACE: Final = ("nodes", "policy", "seed", "inflate", "gangs", "moves", "jobs", "executor", "plot")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "how full a cluster gets, and how long pods wait",
        "pods of a table, or of a snapshot, arrive one after the other",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="CSV with pods: name, cpu_milli, num_gpu, gpu_milli, gpu_spec; or a snapshot in YAML or JSON, for "
        "its last week",
    )
    group.add_argument("--nodes", metavar="FILE", help="CSV with nodes: sn, cpu_milli, memory_mib, gpu, model")
    group.add_argument(
        "--policy",
        metavar="NAME[,NAME]",
        help=f"policies to compare: {', '.join(NAMES)} (default: {DEFAULT_POLICIES}); for a snapshot placement "
        "strategies (default: all)",
    )
    group.add_argument("--seed", metavar="N[-N]", help="order of the pods, one run for each seed (default: 1)")
    group.add_argument(
        "--inflate",
        type=float,
        metavar="X",
        help="repeat or remove pods until they ask for X times the GPUs of the cluster; for a snapshot, X times as "
        "many pods (default: the pods as they are)",
    )
    group.add_argument(
        "--gangs",
        action="store_true",
        default=None,
        help="a pod of several GPUs comes as a gang: as many pods of one GPU on any nodes, all at once or none",
    )
    group.add_argument(
        "--moves",
        type=float,
        metavar="PERCENT",
        help="when pods have asked for all GPUs, move so many percent of them, to make room for refused ones",
    )
    group.add_argument("--jobs", type=int, metavar="N", help="processes that play runs (default: 1)")
    group.add_argument(
        "--executor",
        metavar="WHERE",
        help="processes of this machine, or dask://HOST:PORT for the workers of a Dask scheduler; the results are the "
        "same bit for bit (default: processes)",
    )
    group.add_argument(
        "--plot",
        metavar="FILE",
        help="write an SVG picture: allocation over demand, or for a snapshot use and waiting pods over time",
    )


def given_without_trace(options: argparse.Namespace) -> Sequence[str]:
    """Options of ``--trace`` that were given without it."""
    return [f"--{name}" for name in ONLY_WITH_TRACE if getattr(options, name) is not None]


WIDTH: Final = 420
HEIGHT: Final = 260
MARGIN_PIXELS: Final = 50
TITLE_PIXELS: Final = 24
TOP: Final = MARGIN_PIXELS + TITLE_PIXELS
LEGEND_PIXELS: Final = 18
DASH_PIXELS: Final = 6
COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999", "#7f3c8d",
)  # fmt: skip
"""Colour-blind people can tell them apart."""


class Tick(NamedTuple):
    """A mark on an axis."""

    place: float
    """From 0 to 1."""
    text: str


PERCENT_TICKS: Final = [Tick(percent / 100, str(percent)) for percent in range(0, 101, 20)]


class Line(NamedTuple):
    """One line; its points go from 0 to 1 in both directions."""

    name: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float, float]] = ()
    """Place, lowest and highest value of several runs; empty for a single one."""


class Chart(NamedTuple):
    title: str
    below: str
    """What is told from left to right."""
    across: Sequence[Tick]
    up: Sequence[Tick]
    lines: Sequence[Line]


def picture(charts: Sequence[Chart], title: str) -> str:
    """The whole file. The charts have lines of the same names in the same order.

    Lines that lie on each other are drawn in dashes that alternate, so that each can be seen.
    """
    names = [line.name for line in charts[0].lines]
    width, height = len(charts) * (WIDTH + 2 * MARGIN_PIXELS), HEIGHT + 2 * MARGIN_PIXELS + TITLE_PIXELS
    legend, rows = _legend(names, width, height)
    height += rows * LEGEND_PIXELS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN_PIXELS}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, chart in enumerate(charts):
        parts += _drawn(chart, MARGIN_PIXELS + number * (WIDTH + 2 * MARGIN_PIXELS))
    return "\n".join([*parts, *legend, "</svg>"]) + "\n"


def _drawn(chart: Chart, left: int) -> Iterator[str]:
    yield f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{escape(chart.title)}</text>'
    for place, text in chart.up:
        y = _y(place)
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    for place, text in chart.across:
        x = left + WIDTH * place
        yield f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{text}</text>'
    yield f'<text x="{left + WIDTH}" y="{TOP + HEIGHT + 32}" text-anchor="end">{escape(chart.below)}</text>'
    for number, line in enumerate(chart.lines):
        yield from _band(line, COLOURS[number % len(COLOURS)], left)
    alike: dict[tuple[tuple[float, float], ...], list[int]] = {}
    for number, line in enumerate(chart.lines):
        alike.setdefault(tuple(line.points), []).append(number)
    for number, (name, values, _) in enumerate(chart.lines):
        points = " ".join(f"{left + WIDTH * x:.1f},{_y(y):.1f}" for x, y in values)
        its = alike[tuple(values)]
        dashes = ""
        if len(its) > 1:
            gap, before = DASH_PIXELS * (len(its) - 1), DASH_PIXELS * its.index(number)
            dashes = f' stroke-dasharray="{DASH_PIXELS} {gap}" stroke-dashoffset="{-before}"'
        colour = COLOURS[number % len(COLOURS)]
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"{dashes} '
        yield f'points="{points}"><title>{escape(name)}</title></polyline>'


def _band(line: Line, colour: str, left: int) -> Iterator[str]:
    """Lowest and highest value of the runs, behind all lines."""
    if line.spread:
        above = [f"{left + WIDTH * x:.1f},{_y(high):.1f}" for x, _, high in line.spread]
        below = [f"{left + WIDTH * x:.1f},{_y(low):.1f}" for x, low, _ in reversed(line.spread)]
        yield f'<polygon fill="{colour}" fill-opacity="0.15" points="{" ".join([*above, *below])}"/>'


def _y(place: float) -> float:
    return TOP + HEIGHT * (1 - place)


def _legend(names: Sequence[str], width: int, top: int) -> tuple[list[str], int]:
    """The names beside their colours, and how many rows they take."""
    parts, x, row = [], MARGIN_PIXELS, 0
    for number, name in enumerate(names):
        room = 34 + 7 * len(name)
        if x + room > width and x > MARGIN_PIXELS:
            x, row = MARGIN_PIXELS, row + 1
        y = top + row * LEGEND_PIXELS
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{x}" y="{y - 6}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{escape(name)}</text>')
        x += room
    return parts, row + 1


T = TypeVar("T")
R = TypeVar("R")
MOST_JOBS: Final = 256


def jobs_of(options: argparse.Namespace) -> int:
    """How many processes play. Raises BadInput."""
    jobs = 1 if options.jobs is None else int(options.jobs)
    if not 1 <= jobs <= MOST_JOBS:
        raise BadInput(f"--jobs: expected a number from 1 to {MOST_JOBS}, got {jobs}")
    return jobs


LOCAL: Final = "processes"
DASK_PREFIX: Final = "dask://"
DASK_SECONDS: Final = 30


class Executor(NamedTuple):
    """The executor of runs: processes of this machine, or the workers of a Dask scheduler."""

    jobs: int = 1
    scheduler: str = ""
    """Host and port; empty for this machine."""


def executor_of(options: argparse.Namespace) -> Executor:
    """Raises BadInput."""
    text = options.executor or LOCAL
    if text == LOCAL:
        return Executor(jobs_of(options))
    host, _, port = text.removeprefix(DASK_PREFIX).rpartition(":")
    if not text.startswith(DASK_PREFIX) or not host or not port.isdecimal():
        raise BadInput(f"--executor: expected {LOCAL} or {DASK_PREFIX}HOST:PORT, got {text!r}")
    if options.jobs is not None:
        raise BadInput("--jobs: not with a scheduler, whose workers say how many runs they play at once")
    return Executor(scheduler=f"{host}:{port}")


def results(play: Callable[[T], R], wanted: Sequence[T], where: Executor, noun: str) -> Iterator[R]:
    """One for each that is wanted, as they come; ``noun``: the word for several of them. Raises BadInput."""
    is_terminal = sys.stderr.isatty()
    width = 1 + int(math.log10(len(wanted)))
    played = _on_cluster(play, wanted, where.scheduler) if where.scheduler else _played(play, wanted, where.jobs)
    try:
        for number, it in enumerate(played, start=1):
            if is_terminal:
                print(f"\r\033[K{number:{width}} of {len(wanted)} {noun}", end="", file=sys.stderr, flush=True)
            yield it
    finally:
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _played(play: Callable[[T], R], wanted: Sequence[T], jobs: int) -> Iterator[R]:
    if jobs == 1 or len(wanted) == 1:
        yield from map(play, wanted)
        return
    # Ctrl-C reaches the parent alone, which ends the others on its way out.
    ignored = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(wanted)), ignored) as pool:
        yield from pool.imap_unordered(play, wanted)


def _on_cluster(play: Callable[[T], R], wanted: Sequence[T], scheduler: str) -> Iterator[R]:
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise BadInput("--executor: Dask is not installed: pip install 'kopf-dra[dask]'") from None
    try:
        client = Client(f"tcp://{scheduler}", timeout=DASK_SECONDS, set_as_default=False)
    except OSError as error:
        raise BadInput(f"--executor: no Dask scheduler at {scheduler}: {error}") from None
    with client, client.as_current():
        _check_workers(client.run(versions), scheduler)
        # The input goes to each worker once, not with each run.
        shared = client.scatter(play, broadcast=True)
        for done in as_completed(client.map(_call, wanted, play=shared, pure=False)):
            yield done.result()


def _call(one: T, play: Callable[[T], R]) -> R:
    return play(one)


def versions() -> dict[str, str]:
    """Return the versions of everything that can change a bit of a result."""
    found = {"kopf-dra": VERSION, "Python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("numpy", "scipy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _check_workers(found: dict[str, dict[str, str]], scheduler: str) -> None:
    """Raises BadInput for a scheduler without workers, and for one whose workers would play otherwise."""
    if not found:
        raise BadInput(f"--executor: the scheduler at {scheduler} has no workers: start some with `dask worker`")
    own = versions()
    for worker, its in found.items():
        for name, version in own.items():
            if its.get(name) != version:
                has = f"has {name} {its.get(name)}, this process {version}"
                raise BadInput(f"--executor: worker {worker} {has}: install the same, or results may differ")


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def save_plot(path: str, text: str) -> None:
    """Write a picture. Raises BadInput."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--plot: {path}: {error.strerror}") from None
