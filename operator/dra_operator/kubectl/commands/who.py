"""``kubectl dra who``: who has a device, or the devices of a node."""

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
    parser.add_argument("what", metavar="DEVICE|NODE", help="node, or device as DRIVER/POOL/DEVICE or the end of that")
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "tables.who")
