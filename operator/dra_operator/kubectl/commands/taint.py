"""``kubectl dra taint``: a DeviceTaintRule for some devices or, with ``--dry-run``, whom it would end."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import add_cluster_arguments, add_operator_arguments, add_output_argument
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "device", metavar="DRIVER[/POOL[/DEVICE]]", help="devices of a driver, of one of its pools, or one device"
    )
    parser.add_argument("--dry-run", action="store_true", help="tell what the rule would do instead of printing it")
    parser.add_argument(
        "--effect", choices=("NoExecute", "NoSchedule"), default="NoExecute", help="what the taint does (%(default)s)"
    )
    parser.add_argument("--key", default="dra.kopf.dev/maintenance", help="key of the taint (%(default)s)")
    parser.add_argument("--value", default="", help="value of the taint")
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "taint.answer")
