"""``kubectl dra ui``: a web page about all devices, on this machine alone, with the viewer's own rights."""

from __future__ import annotations

import argparse

from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    port,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--port", type=port, default=0, metavar="N", help="port on 127.0.0.1 (default: any free one)")
    add_namespace_argument(parser, every=False)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    from dra_operator.kubectl.ui.server import serve  # only here: help does without a server

    return serve(options)
