"""``kubectl dra claims``: each claim with its state, devices and pods."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_namespace_argument,
    add_output_argument,
    add_selector_argument,
    add_watch_argument,
)
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--pending", action="store_true", help="only claims without devices")
    add_selector_argument(parser, "claims")
    add_namespace_argument(parser)
    add_watch_argument(parser)
    add_output_argument(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "tables.claims")
