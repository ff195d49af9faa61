"""The command ``dra-devcluster``: ``up`` runs a cluster, ``demo`` shows the life of a pod with devices."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from dra_api import VERSION
from dra_api.console import needing, sentence
from dra_api.releases import BUILT, NEWEST

MAX_NODES = 1000
MAX_DEVICES = 10_000


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = parser().parse_args(argv)
    # gRPC reports every plugin that ends as an error of its own on stderr; it reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return needing("devcluster", "dra-devcluster", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "demo":
        from . import demo  # imports half of the project

        return demo.run()
    from .cluster import run

    return run(arguments)


def parser() -> argparse.ArgumentParser:
    """The command line; completion scripts are made from it (docs/completion.md)."""
    parser = argparse.ArgumentParser(prog="dra-devcluster", description=__doc__, epilog="Example: %(prog)s up")
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    what = "run a cluster until SIGINT or SIGTERM"
    up = commands.add_parser("up", help=what, description=sentence(what))

    def add(flag: str, metavar: str | None, meaning: str, **more: Any) -> None:
        up.add_argument(flag, metavar=metavar, help=meaning, **more)

    nodes, devices = (f"default {least}, at most {most}" for least, most in ((1, MAX_NODES), (0, MAX_DEVICES)))
    add("--nodes", "N", f"simulated nodes ({nodes})", type=_up_to(MAX_NODES), default=1)
    what = f"devices of the simulated driver on each node ({devices})"
    add("--devices", "M", what, type=_up_to(MAX_DEVICES), default=0)
    port = _up_to(65535, "is not a port: choose one from 0 (any free one) to {}")
    add("--port", "P", "port of the API server (default 0: any free one)", type=port, default=0)
    what = "kubeconfig to write at the end of the start; its other clusters stay (default dra-devcluster.kubeconfig)"
    add("--kubeconfig", "FILE", what, default="dra-devcluster.kubeconfig")
    what = "name of cluster, user and context in the kubeconfig (default dra-devcluster)"
    add("--name", "NAME", what, type=_name, default="dra-devcluster")
    add("--snapshot", "FILE", "load the objects from this file at the start, and save them at the end")
    what = "release that decides about feature gates and versions of resource.k8s.io (default %(default)s)"
    add("--kubernetes-version", None, what, choices=BUILT, default=str(NEWEST))
    add("--feature-gates", "A=true,B=false", "feature gates that differ from the defaults of that release", default="")
    what = "rbac: users may do what roles and bindings grant; always-allow (default): everything"
    add("--authorization", None, what, choices=("always-allow", "rbac"), default="always-allow")
    what = "known defects of the kubelet (Kubernetes 1.36) that the nodes reproduce (docs/node-agent.md)"
    add("--kubelet-defects", "A,B", what, default="")
    what = "where containers look for programs first, since no image is pulled (default: the system's folders only)"
    add("--programs", "DIR", what)
    what = "run pods with devices from start to end, and print each step"
    commands.add_parser("demo", help=what, description=sentence(what))
    return parser


def _up_to(limit: int, what: str = "is not a number from 0 to {}") -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > limit:
            raise argparse.ArgumentTypeError(f"{text!r} {what.format(limit)}")
        return int(text)

    return number


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name: use letters, digits, '-', '_' and '.', at most 63")
    return text


if __name__ == "__main__":
    sys.exit(main())
