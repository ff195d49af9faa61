"""``kubectl dra doctor``: what is broken in claims and slices, and how to repair it."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import add_cluster_arguments, add_namespace_argument, add_output_argument
from dra_operator.kubectl.edge import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--fix", action="store_true", help="repair what is safe to repair, after a question for each")
    parser.add_argument("--yes", action="store_true", help="answer each question of --fix with yes")
    parser.add_argument(
        "--operator-account",
        type=account,
        default="dra-system/dra-operator",
        metavar="NAMESPACE/NAME",
        help="the operator's service account, whose rights are checked (%(default)s)",
    )
    add_namespace_argument(parser, every=False)
    add_output_argument(parser)
    add_cluster_arguments(parser)


def account(text: str) -> str:
    """``NAMESPACE/NAME``. Raises ArgumentTypeError."""
    if len([part for part in text.split("/") if part]) != 2 or text.count("/") != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a service account as NAMESPACE/NAME")
    return text


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    return answered(options, "repair.doctor")
