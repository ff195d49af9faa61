"""``kubectl dra why pod NAME`` and ``kubectl dra why claim NAME``: what holds it back in the live cluster.

Reads only. Exit codes: 0, 1 when there is no such object or the server cannot be used, 2 for wrong usage or settings;
see also ``console``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from dra_api.version import VERSION

from .console import finish


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script ``kubectl-dra``; kubectl finds it by its name."""
    options = parser().parse_args(arguments)
    answer = importlib.import_module(f"{__package__}.why_command")  # not for help, and not for wrong usage
    return finish(lambda: int(answer.run(options)))


def parser() -> argparse.ArgumentParser:
    """The command line; ``kubectl_complete`` completes it."""
    made = argparse.ArgumentParser(prog="kubectl dra", description="Dynamic Resource Allocation, explained.")
    made.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    why = commands.add_parser("why", help="why a pod or claim is pending, or what it holds")
    why.add_argument("kind", choices=("pod", "claim"))
    why.add_argument("name")
    why.add_argument("-n", "--namespace", help="namespace of the pod or claim (that of the context)")
    why.add_argument("--kubeconfig", help="path to the kubeconfig file")
    why.add_argument("--context", help="context of the kubeconfig")
    given = "as given to the operator (%(default)s)"
    why.add_argument("--scheduler-name", default="dra-scheduler", help=given)
    why.add_argument("--feature-gates", default="", metavar="A=true,B=false", help="as given to the operator")
    why.add_argument("--concerns", default="auto", metavar="LIST", help=given)
    strategies = ("LeastAllocated", "MostAllocated")
    why.add_argument("--scoring-strategy", default=strategies[0], choices=strategies, help=given)
    return made


if __name__ == "__main__":
    sys.exit(main())
