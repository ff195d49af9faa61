"""``kubectl dra drain``: what a drain of a node would do to the pods on it. It evicts none."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import add_cluster_arguments, add_operator_arguments, add_output_argument
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("node", metavar="NODE", help="name of the node")
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "whatif.drain_answer")
