"""``kubectl dra fit``: whether pods would fit before they exist, where, and how many."""

from __future__ import annotations

import argparse
from typing import Final

from dra_operator.commands.files_argument import add_files_argument
from dra_operator.kubectl.arguments import (
    add_cluster_arguments,
    add_namespace_argument,
    add_operator_arguments,
    add_output_argument,
    add_time_limit_argument,
    positive,
)
from dra_operator.kubectl.edge import answered

LOOPBACK: Final = "127.0.0.1:8484"
GRPC_LOOPBACK: Final = "127.0.0.1:8485"


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
    parser.add_argument(
        "--serve",
        nargs="?",
        const=LOOPBACK,
        metavar="HOST:PORT",
        help=f"answer such questions over HTTP instead, on this address ({LOOPBACK})",
    )
    parser.add_argument(
        "--serve-grpc",
        nargs="?",
        const=GRPC_LOOPBACK,
        metavar="HOST:PORT",
        help=f"the same by gRPC, alone or beside --serve ({GRPC_LOOPBACK})",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="with these two: who asks has to send the token in this file"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="with these two: speak TLS with this certificate and its chain, as PEM"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="the private key of --tls-cert, as PEM")
    add_time_limit_argument(parser)
    add_namespace_argument(parser, every=False)
    add_output_argument(parser)
    add_operator_arguments(parser)
    add_cluster_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    if options.serve is None and options.serve_grpc is None:
        return answered(options, "reading.fit")
    from dra_operator.kubectl.serve.server import serve  # only here: help does without a server

    return serve(options)
