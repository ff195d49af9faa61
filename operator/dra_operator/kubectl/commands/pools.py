"""``kubectl dra pools``: each resource pool, how much of it is published, and how much is free."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_operator_arguments,
    add_output_argument,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--node", help="only pools of this node")
    parser.add_argument("--driver", help="only pools of this driver")
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "tables.pools")
