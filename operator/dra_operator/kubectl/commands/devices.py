"""``kubectl dra devices``: each device with its node, state, holder, and since when."""

from __future__ import annotations

import argparse
from typing import Final

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_operator_arguments,
    add_output_argument,
    add_selector_argument,
)
from dra_operator.kubectl.edge import answered

STATES: Final = ("free", "taken", "shared", "tainted", "unusable")
"""As ``facts.devices`` has them, which would be slow to load for help and completion."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--node", help="only devices of this node")
    parser.add_argument("--driver", help="only devices of this driver")
    parser.add_argument("--state", choices=STATES, help="only devices in this state")
    add_selector_argument(parser, "nodes")
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "tables.devices")
