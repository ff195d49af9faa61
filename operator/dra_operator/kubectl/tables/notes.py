"""What the viewer could not see: a table without it looks complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.observed.observed import Observed

SHOWN: Final = ("nodes", "pods", "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io")


def notes_on(seen: Observed, kinds: Iterable[str] = SHOWN) -> list[str]:
    """A note for each kind of which something is missing, and for each malformed object."""
    notes = [f"incomplete: {kind}: {seen.unseen[kind]}" for kind in kinds if kind in seen.unseen]
    return notes + [f"left out, malformed: {what}: {why}" for what, why in seen.malformed.items()]


def require(seen: Observed, *kinds: str) -> None:
    """Without these kinds an empty table would be wrong. Raises Problem."""
    for kind in kinds:
        why = seen.unseen.get(kind, "")
        if why and not why.startswith("read only in"):
            role = "the ClusterRole dra-viewer in manifests/operator/viewer.yaml allows it: have it bound to you"
            raise Problem(f"{why}; {role}" if "forbidden" in why else why)


def joined(words: Iterable[str]) -> str:
    """A cell with several values, or kubectl's word for none."""
    return ",".join(words) or "<none>"
