"""``kubectl dra fit``: whether pods would fit before they exist, where, and how many."""

from __future__ import annotations

import argparse

from dra_operator.commands.files_argument import add_files_argument
from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    add_output_argument,
    positive,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_files_argument(parser, "Pods, Deployments, ReplicaSets, StatefulSets or Jobs, and what they refer to")
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--count", type=positive, default=1, metavar="N", help="copies of all of it (1)")
    number.add_argument("--max", action="store_true", help="as many copies as fit")
    parser.add_argument("--drain", metavar="NODE", help="place the pods of this node elsewhere first")
    parser.add_argument(
        "--without", action="append", default=[], metavar="NODE", help="as if this node were lost; repeatable"
    )
    parser.add_argument(
        "--add-nodes",
        action="append",
        default=[],
        metavar="FILE",
        help="Nodes and ResourceSlices as if they were there; repeatable",
    )
    add_namespace_argument(parser, every=False)
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "reading.fit")
