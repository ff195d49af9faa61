"""``kubectl dra defrag``: the fewest moves of pods after which another one fits, and with ``--apply`` these moves."""

from __future__ import annotations

import argparse

from dra_operator.commands.files_argument import add_files_argument
from dra_operator.kubectl.arguments import (
    FORMATS,
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    positive,
    seconds,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    target = "the waiting pod that is to fit, or gang/NAME, or mix: what pods usually ask for"
    parser.add_argument("--for", dest="wanted", metavar="pod/NAME", help=target)
    add_files_argument(parser, "the pod or gang that is to fit, before it exists, and what it refers to")
    parser.add_argument(
        "--movable-selector",
        metavar="LABELS",
        help='labels of pods that may be moved (those with the annotation dra.kopf.dev/movable: "true")',
    )
    parser.add_argument("--max-moves", type=positive, default=4, metavar="N", help="limit of moves (%(default)s)")
    parser.add_argument("--timeout", type=seconds, default=30.0, metavar="TIME", help="limit of the search (30s)")
    parser.add_argument("--apply", action="store_true", help="make the moves, one after the other")
    parser.add_argument("--yes", action="store_true", help="answer each question of --apply with yes")
    parser.add_argument(
        "--wait", type=seconds, default=300.0, metavar="TIME", help="with --apply: limit for a successor to run (5m)"
    )
    add_namespace_argument(parser, every=False)
    parser.add_argument("-o", "--output", choices=(*FORMATS, "svg"), help="format of the answer")
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "repair.defrag")
