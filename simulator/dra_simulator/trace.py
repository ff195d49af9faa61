"""``simulate --trace pods.csv``: how full each policy makes a cluster. It needs the extra ``quality``.

``trace_frame`` is the same for programs and notebooks: from two files to a table of numbers.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from dra_operator.commands.file_items import BadInput
from dra_operator.quality.states import Floats
from dra_operator.quality.study import Mean, Moves, RunResult, StudiedCluster, result
from dra_operator.quality.trace import WHOLE_MILLI, TraceError, read_nodes, read_seeds, read_trace, workload

from dra_simulator.runs import (
    DEFAULT_POLICIES,
    LOCAL,
    NAMES,
    PERCENT_TICKS,
    Chart,
    Line,
    Tick,
    aligned,
    executor_of,
    picture,
    results,
    save_plot,
)

FULL_DEMAND_PERCENT: Final = 100
"""Percent of demand at which pods ask for as many GPUs as there are."""
HEADER: Final = ("POLICY", "RUNS", "DEMAND", "ALLOCATED", "LOST OF IDLE")


def ends(results: Sequence[RunResult]) -> list[int]:
    """The percents of demand of which the summary tells: 100, and the last that all runs reach."""
    last = min(len(it.curve.allocated) for it in results) - 1
    return sorted({min(FULL_DEMAND_PERCENT, last), last})


def table(results: Sequence[RunResult]) -> Iterator[str]:
    """A row for each policy and end, the fullest cluster first."""
    rows = [HEADER]
    policies = by_policy(results)
    for end in ends(results):
        found = [(name, *_means(its, end), len(its)) for name, its in policies]
        for name, allocated, lost, runs in sorted(found, key=lambda it: -it[1].value):
            rows.append((name, str(runs), f"{end} %", _text(allocated), _text(lost)))
    yield from aligned(rows)
    yield ""
    yield "DEMAND and ALLOCATED are in % of the cluster's GPUs, LOST OF IDLE in % of the idle GPUs: what the pods that"
    yield "usually come could not use. After ± is half the confidence interval of 95 %."
    for name, its in policies:
        moves = [it.moves for it in its if it.moves is not None]
        if moves:
            yield ""
            yield _moved(name, moves)


def _moved(name: str, found: Sequence[Moves]) -> str:
    runs = len(found)
    share = Mean.of([100 * it.moved / it.pods if it.pods else 0.0 for it in found]).value
    gained = [100 * (it.after - it.before) / it.capacity for it in found]
    moved, placed = sum(it.moved for it in found) / runs, sum(it.placed for it in found) / runs
    return (
        f"{name}: when pods have asked for all GPUs, {moved:.0f} moved pods ({share:.2f} %) give room to {placed:.0f} "
        f"refused ones: {Mean.of(gained).value:+.2f} points of allocation, mean of the runs"
    )


def by_policy(results: Sequence[RunResult]) -> list[tuple[str, list[RunResult]]]:
    return [(name, list(its)) for name, its in groupby(results, key=lambda it: it.policy)]


def _means(results: Sequence[RunResult], end: int) -> tuple[Mean, Mean]:
    allocated, lost = zip(*(it.curve.at(end) for it in results), strict=True)
    return Mean.of(allocated), Mean.of(lost)


def _text(mean: Mean) -> str:
    return f"{mean.value:.2f} %" + ("" if math.isnan(mean.half_width) else f" ± {mean.half_width:.2f}")


def csv_lines(results: Sequence[RunResult]) -> Iterator[str]:
    """A line for each run and percent of demand."""
    yield "policy,seed,demand_percent,allocated_percent,lost_percent"
    for it in results:
        for percent, allocated, lost in _points(it):
            yield f"{it.policy},{it.seed},{percent},{allocated},{lost}"


def json_document(results: Sequence[RunResult]) -> Iterator[str]:
    runs = [
        {
            "policy": it.policy,
            "seed": it.seed,
            "moves": None if it.moves is None else it.moves._asdict(),
            "points": [{"demand": p, "allocated": allocated, "lost": lost} for p, allocated, lost in _points(it)],
        }
        for it in results
    ]
    yield json.dumps({"version": 1, "runs": runs}, indent=1)


def _points(result: RunResult) -> Iterator[tuple[int, float, float]]:
    for percent, allocated in enumerate(result.curve.allocated):
        if not math.isnan(allocated):
            yield percent, round(float(allocated), 4), round(float(result.curve.lost[percent]), 4)


STEP_PERCENT: Final = 20


def plotted(results: Sequence[RunResult]) -> str:
    policies = [(name, [it.curve for it in its]) for name, its in by_policy(results)]
    allocated = [(name, [it.allocated for it in its]) for name, its in policies]
    lost = [(name, [it.lost for it in its]) for name, its in policies]
    seeds = sorted({it.seed for it in results})
    several = f"means of the seeds {_spans(seeds)}, bands from lowest to highest"
    runs = several if len(seeds) > 1 else f"seed {seeds[0]}"
    return picture(
        [
            _chart("GPUs allocated, % of the cluster", allocated),
            _chart("idle GPUs lost to the usual pods, % of the idle ones", lost),
        ],
        f"How full each policy makes the cluster: {runs}",
    )


def _spans(seeds: Sequence[int]) -> str:
    if seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _stacked(curves: Sequence[Floats]) -> Floats:
    length = min(map(len, curves))
    return np.array([curve[:length] for curve in curves])


def _mean(curves: Sequence[Floats]) -> Floats:
    stacked = _stacked(curves)
    known = ~np.isnan(stacked)
    counts = known.sum(axis=0)
    sums = np.where(known, stacked, 0.0).sum(axis=0)
    means: Floats = np.divide(sums, counts, out=np.full(stacked.shape[1], np.nan), where=counts > 0)
    return means


def _spread(curves: Sequence[Floats]) -> list[tuple[int, float, float]]:
    """Percent of demand, lowest and highest value, where some run has one."""
    if len(curves) == 1:
        return []
    stacked = _stacked(curves)
    known = np.nonzero(~np.isnan(stacked).all(axis=0))[0]
    return [(int(at), float(np.nanmin(stacked[:, at])), float(np.nanmax(stacked[:, at]))) for at in known]


def _chart(title: str, policies: Sequence[tuple[str, Sequence[Floats]]]) -> Chart:
    means = [(name, _mean(curves), _spread(curves)) for name, curves in policies]
    last = max(max(len(values) for _, values, _ in means) - 1, 1)
    across = [Tick(percent / last, str(percent)) for percent in range(0, last + 1, STEP_PERCENT)]
    lines = [
        Line(
            name,
            [(it / last, float(value) / 100) for it, value in enumerate(values) if not np.isnan(value)],
            [(at / last, low / 100, high / 100) for at, low, high in spread],
        )
        for name, values, spread in means
    ]
    return Chart(title, "demand, % of the cluster", across, PERCENT_TICKS, lines)


T = TypeVar("T")
MOST_INFLATE_FACTOR: Final = 100.0
MOST_MOVED_PERCENT: Final = 100.0


def run_trace(options: argparse.Namespace) -> int:
    """Raises BadInput."""
    found = _studied(options)
    if options.plot:
        save_plot(options.plot, plotted(found))
    for line in {"text": table, "csv": csv_lines, "json": json_document}[options.output](found):
        print(line)
    return 0


def _studied(options: argparse.Namespace) -> list[RunResult]:
    """All runs, by policy and seed. Raises BadInput."""
    policies = _policies(options.policy or DEFAULT_POLICIES)
    try:
        seeds = read_seeds(options.seed or "1")
    except ValueError as error:
        raise BadInput(f"--seed: {error}") from None
    where = executor_of(options)
    cluster = _cluster(options)
    _check_arrivals(cluster, seeds)
    wanted = [(policy, seed) for policy in policies for seed in seeds]
    return sorted(
        results(partial(_one, cluster), wanted, where, "runs"), key=lambda it: (policies.index(it.policy), it.seed)
    )


FRAME_COLUMNS: Final = ("policy", "seed", "demand_percent", "allocated_percent", "lost_percent")


def trace_frame(  # noqa: PLR0913  # each is named by the caller, and has a default
    trace: str | Path,
    nodes: str | Path,
    *,
    policies: Sequence[str] = tuple(DEFAULT_POLICIES.split(",")),
    seeds: str = "1",
    inflate: float | None = None,
    gangs: bool = False,
    jobs: int = 1,
    executor: str = LOCAL,
    pandas: bool | None = None,
) -> Any:
    """Play a trace as ``simulate --trace`` does, and return a table with a row for each run and percent of demand.

    The columns are those of ``-o csv``. The table is a pandas.DataFrame, or without pandas a dict of numpy arrays by
    the name of the column; ``pandas`` asks for one of the two. ``jobs`` and ``executor`` choose where runs are played,
    and change no value. Raises BadInput with the argument or the line of the file at fault.
    """
    options = argparse.Namespace(
        trace=str(trace), nodes=str(nodes), policy=",".join(policies), seed=seeds, inflate=inflate, gangs=gangs,
        moves=None, jobs=jobs if executor == LOCAL else None, executor=executor,
    )  # fmt: skip
    rows = [(it.policy, it.seed, *point) for it in _studied(options) for point in _points(it)]
    columns = dict(zip(FRAME_COLUMNS, map(np.array, zip(*rows, strict=True)), strict=True))
    if pandas is None:
        pandas = find_spec("pandas") is not None
    if not pandas:
        return columns
    return import_module("pandas").DataFrame(columns)


def _policies(text: str) -> list[str]:
    names = list(dict.fromkeys(it.strip() for it in text.split(",")))
    for name in names:
        if name not in NAMES:
            raise BadInput(f"--policy: {name!r} is unknown; choose from {', '.join(NAMES)}")
    return names


def _cluster(options: argparse.Namespace) -> StudiedCluster:
    if not options.nodes:
        raise BadInput("--nodes is missing: a CSV file with the nodes that the pods of --trace run on")
    inflate = 0.0 if options.inflate is None else options.inflate
    if not (options.inflate is None or 0 < inflate <= MOST_INFLATE_FACTOR):
        raise BadInput(f"--inflate: expected a number above 0, up to {MOST_INFLATE_FACTOR:g}; got {inflate:g}")
    percent = 0.0 if options.moves is None else options.moves
    if not (options.moves is None or 0 < percent <= MOST_MOVED_PERCENT):
        raise BadInput(f"--moves: expected a percentage above 0, up to {MOST_MOVED_PERCENT:g}; got {percent:g}")
    if options.moves is not None and options.gangs:
        raise BadInput("--moves, --gangs: not together; members of gangs are not moved")
    cluster = StudiedCluster(
        _read(options.trace, read_trace), _read(options.nodes, read_nodes), inflate, bool(options.gangs), percent
    )
    if not any(node.gpus for node in cluster.nodes):
        raise BadInput(f"{options.nodes}: no node has a GPU, nothing to measure; see its column gpu")
    if not any(pod.shape.gpus for pod in cluster.pods):
        raise BadInput(f"{options.trace}: no pod asks for a GPU, nothing to measure; see its column num_gpu")
    return cluster


def _check_arrivals(cluster: StudiedCluster, seeds: Sequence[int]) -> None:
    """Which pods ``--inflate`` removes depends on the seed. Raises BadInput if none is left that asks for a GPU."""
    goal = cluster.inflate * WHOLE_MILLI * sum(node.gpus for node in cluster.nodes)
    if not goal or goal >= max(pod.shape.total for pod in cluster.pods):
        return  # the last pod is removed only if it asks for more than that
    for seed in seeds:
        arrivals = workload(cluster.pods, cluster.nodes, seed, cluster.inflate).arrivals
        if not any(pod.shape.gpus for pod in arrivals):
            raise BadInput(
                f"--inflate: with {cluster.inflate:g} and seed {seed} no pod is left that asks for a GPU, nothing to "
                "measure; write a larger number"
            )


def _read(path: str, reader: Callable[[Iterable[str]], T]) -> T:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return reader(file)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not UTF-8 text; pass the CSV file itself, not compressed") from None
    except TraceError as error:
        raise BadInput(f"{path}: {error}") from None


def _one(cluster: StudiedCluster, wanted: tuple[str, int]) -> RunResult:
    return result(cluster, *wanted)
