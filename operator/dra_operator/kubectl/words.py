"""How people name objects on the command line: ``pod NAME``, ``po/NAME``, ``resourceclaim.resource.k8s.io/NAME``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from .answer import ExitCode, Problem

_CALLED: Final = {
    **dict.fromkeys(("po", "pod", "pods"), "pod"),
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), "claim"),
    **dict.fromkeys(("no", "node", "nodes"), "node"),
    **dict.fromkeys(("deploy", "deployment", "deployments"), "deployment"),
    **dict.fromkeys(("job", "jobs"), "job"),
}
"""What kubectl and people call the kinds; kubectl prints ``resourceclaim.resource.k8s.io``."""


def kind_of(word: str) -> str:
    """The kind that a word means; an unknown word stays as it is, for the message."""
    return _CALLED.get(word.lower().partition(".")[0], word)


def target_of(words: Sequence[str], kinds: Collection[str]) -> tuple[str, str]:
    """Kind and name that ``TYPE/NAME`` or ``TYPE NAME`` means. Raises Problem."""
    kind, slash, name = words[0].partition("/")
    if not slash:
        name = words[1] if len(words) == 2 else ""
    if kind_of(kind) not in kinds:
        raise Problem(f"{words[0]!r}: expected TYPE/NAME, where TYPE is one of {', '.join(kinds)}", ExitCode.USAGE)
    if not name or len(words) > 2 - len(slash):
        raise Problem(f"{' '.join(words)!r}: expected one name, as in {kind}/NAME", ExitCode.USAGE)
    if "/" in name:
        raise Problem(f"{name!r}: a name has no slash; give the namespace by -n", ExitCode.USAGE)
    return kind_of(kind), name
