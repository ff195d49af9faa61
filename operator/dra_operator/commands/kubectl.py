"""``kubectl dra why pod NAME`` and ``kubectl dra why claim NAME``: what holds it back in the live cluster.

The kind may be written as kubectl takes and prints it: ``pods``, ``po``, ``resourceclaim``, and ``pod/NAME`` in one
word. Reads only. Exit codes: 0, 1 when there is no such object or the server cannot be used, 2 for wrong usage or
settings; see also ``console``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from dra_api.version import VERSION

from .console import finish

KINDS: Final = ("pod", "claim")
_CALLED: Final = {
    **dict.fromkeys(("po", "pod", "pods"), "pod"),
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), "claim"),
}
"""What kubectl and people call the kinds; kubectl prints ``resourceclaim.resource.k8s.io``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script ``kubectl-dra``; kubectl finds it by its name."""
    options = parser().parse_args(_apart(sys.argv[1:] if arguments is None else arguments))
    answer = importlib.import_module(f"{__package__}.why_command")  # not for help, and not for wrong usage
    return finish(lambda: int(answer.run(options)))


def parser() -> argparse.ArgumentParser:
    """The command line; ``kubectl_complete`` completes it."""
    made = argparse.ArgumentParser(prog="kubectl dra", description="Dynamic Resource Allocation, explained.")
    made.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    why = commands.add_parser("why", help="why a pod or claim is pending, or what it holds")
    why.add_argument("kind", type=kind_of, choices=KINDS, help="also as KIND/NAME, in the words that kubectl takes")
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


def kind_of(word: str) -> str:
    """The kind that a word means; an unknown word stays as it is, for the message."""
    return _CALLED.get(word.lower().removesuffix(".resource.k8s.io"), word)


def _apart(words: Sequence[str]) -> list[str]:
    """``pod/NAME`` as two words; no flag of the command has a value that begins so."""
    apart: list[str] = []
    for word in words:
        kind, slash, name = word.partition("/")
        apart += [kind, name] if slash and name and kind_of(kind) in KINDS else [word]
    return apart


if __name__ == "__main__":
    sys.exit(main())
