"""``kubectl dra territory``: which scheduler devices belong to, and rules that give devices to one."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import add_cluster_arguments, add_operator_arguments, add_output_argument
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "device",
        nargs="?",
        metavar="DRIVER[/POOL[/DEVICE]]",
        help="print a rule that gives these devices to the scheduler; without anything: list whose devices are",
    )
    parser.add_argument("--class", dest="device_class", metavar="CLASS", help="the devices of a class, as of now")
    parser.add_argument("--nodes", metavar="SELECTOR", help="nodes with these labels: the command that taints them")
    parser.add_argument("--rules", action="store_true", help="with --nodes: rules for their devices instead")
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "taint.territory")
