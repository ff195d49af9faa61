"""``kubectl dra why``: why a pod or claim waits, request by request, and which changes would help."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    add_output_argument,
    add_time_limit_argument,
    add_watch_argument,
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
    add_time_limit_argument(parser)
    add_namespace_argument(parser)
    add_watch_argument(parser)
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "why.answer")
