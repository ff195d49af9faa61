"""The arguments of ``--trace``; light, because help and completion load them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

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
    """Declare them."""
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
    _add_variants(group)
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


def _add_variants(group: argparse._ArgumentGroup) -> None:
    """What is played otherwise than the table has it."""
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


def given_without_trace(options: argparse.Namespace) -> Sequence[str]:
    """Options of ``--trace`` that were given without it."""
    return [f"--{name}" for name in ONLY_WITH_TRACE if getattr(options, name) is not None]
