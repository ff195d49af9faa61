"""Reads the tables, plays every policy with every seed, and prints what they allocate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from dra_operator.commands.many_runs import jobs_of, results, save_plot
from dra_operator.commands.object_files import BadInput
from dra_operator.quality.study import Cluster, RunResult, result
from dra_operator.quality.trace import WHOLE_MILLI, TraceError, read_nodes, read_trace
from dra_operator.quality.workload import read_seeds, workload

from .arguments import DEFAULT_POLICIES, NAMES
from .plot import plotted
from .report import csv_lines, json_document, table

T = TypeVar("T")
MOST_INFLATE_FACTOR: Final = 100.0
MOST_MOVED_PERCENT: Final = 100.0


def run_trace(options: argparse.Namespace) -> int:
    """Raises BadInput."""
    policies = _policies(options.policy or DEFAULT_POLICIES)
    try:
        seeds = read_seeds(options.seed or "1")
    except ValueError as error:
        raise BadInput(f"--seed: {error}") from None
    jobs = jobs_of(options)
    cluster = _cluster(options)
    _check_arrivals(cluster, seeds)
    wanted = [(policy, seed) for policy in policies for seed in seeds]
    found = sorted(
        results(partial(_one, cluster), wanted, jobs, "runs"), key=lambda it: (policies.index(it.policy), it.seed)
    )
    if options.plot:
        save_plot(options.plot, plotted(found))
    for line in {"text": table, "csv": csv_lines, "json": json_document}[options.output](found):
        print(line)
    return 0


def _policies(text: str) -> list[str]:
    names = list(dict.fromkeys(it.strip() for it in text.split(",")))
    for name in names:
        if name not in NAMES:
            raise BadInput(f"--policy: {name!r} is unknown; choose from {', '.join(NAMES)}")
    return names


def _cluster(options: argparse.Namespace) -> Cluster:
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
    cluster = Cluster(
        _read(options.trace, read_trace), _read(options.nodes, read_nodes), inflate, bool(options.gangs), percent
    )
    if not any(node.gpus for node in cluster.nodes):
        raise BadInput(f"{options.nodes}: no node has a GPU, nothing to measure; see its column gpu")
    if not any(pod.shape.gpus for pod in cluster.pods):
        raise BadInput(f"{options.trace}: no pod asks for a GPU, nothing to measure; see its column num_gpu")
    return cluster


def _check_arrivals(cluster: Cluster, seeds: Sequence[int]) -> None:
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


def _one(cluster: Cluster, wanted: tuple[str, int]) -> RunResult:
    return result(cluster, *wanted)
