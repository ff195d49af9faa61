"""``kubectl dra lint``: what is wrong with manifests before they are applied, for people and for CI."""

from __future__ import annotations

import argparse

from dra_operator.commands.files_argument import add_files_argument
from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    add_output_argument,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_files_argument(parser, "the manifests")
    parser.add_argument(
        "--live", action="store_true", help="check against the cluster; without it and --from: files alone"
    )
    parser.add_argument("--snapshot", dest="source", metavar="FILE", help="the same as --from")
    add_namespace_argument(parser, every=False)
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "reading.lint")
