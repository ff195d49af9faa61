"""``kubectl dra free``: devices that are free now, per class and node."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_operator_arguments,
    add_output_argument,
    add_selector_argument,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--class", dest="device_class", metavar="CLASS", help="only this device class")
    add_selector_argument(parser, "nodes")
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "tables.free")
