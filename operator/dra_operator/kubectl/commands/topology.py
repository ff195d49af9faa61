"""``kubectl dra topology``: the devices of a node by NUMA node, PCIe root, shared counters and parent."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import FORMATS, add_cluster_arguments, add_operator_arguments
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("node", metavar="NODE", help="name of the node")
    parser.add_argument("-o", "--output", choices=(*FORMATS, "svg"), help="format of the answer")
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "topology.answer")
