"""``kubectl dra snapshot``: what the other commands see, as one JSON document for ``--from``."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import add_cluster_arguments, add_namespace_argument
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="name.json to write; without it, standard output")
    add_namespace_argument(parser, every=False)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "reading.save_snapshot")
