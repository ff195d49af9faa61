"""``kubectl dra top``: devices in use, by node, driver, class or namespace."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_operator_arguments,
    add_output_argument,
    add_selector_argument,
    add_watch_argument,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    ways = ("nodes", "drivers", "classes", "namespaces")
    parser.add_argument("by", nargs="?", choices=ways, default=ways[0], help="what to group by (%(default)s)")
    add_selector_argument(parser, "nodes, for top nodes")
    add_watch_argument(parser)
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "tables.top")
