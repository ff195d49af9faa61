"""``kubectl dra why``: why a pod or claim waits, request by request, and which changes would help."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    add_output_argument,
    add_watch_argument,
    seconds,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target",
        nargs="*",
        metavar="TYPE/NAME",
        help="a pod, claim, deployment or job, also as TYPE NAME; with -A and without a name: all that wait",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="limit of working out the answer, such as 5s or 2m, beyond which it says what is known; 0: none (30s)",
    )
    add_namespace_argument(parser)
    add_watch_argument(parser)
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "why.answer")
