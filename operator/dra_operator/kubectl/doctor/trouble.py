"""The findings of ``kubectl dra doctor`` and their repairs, as values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dra_api.command_line import kubectl
from dra_api.resource import ResourceClaim

from dra_operator.kubectl.answer import Fact

Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Repair:
    """A JSON patch of a claim that takes effect only as long as the claim is as it was seen.

    ``gone`` are the pods (name and UID) that must not exist: they are asked for right before the patch. ``then`` is a
    patch of the claim itself that follows one of its status. A claim with ``deleted``, its UID and resourceVersion, is
    deleted first: the patches are what controllers do to a claim in deletion, which gets no consumers any more.
    """

    text: str
    namespace: str
    name: str
    subresource: str
    operations: Sequence[Operation]
    gone: Sequence[tuple[str, str]] = ()
    then: Sequence[Operation] = ()
    deleted: tuple[str, str | None] | None = None

    @property
    def patches(self) -> list[tuple[str, Sequence[Operation]]]:
        """The patches with the part of the claim that each is for, in their order."""
        return [it for it in ((self.subresource, self.operations), ("", self.then)) if it[1]]

    @property
    def command(self) -> str:
        """The same for kubectl; of a deletion without what controllers do afterwards."""
        if self.deleted is not None:
            return kubectl("delete", "resourceclaim", names=[self.name], namespace=self.namespace)
        commands = [
            kubectl(
                *("patch", "resourceclaim", *([f"--subresource={part}"] if part else []), "--type=json"),
                *("-p", json.dumps(operations, separators=(",", ":"))),
                names=[self.name],
                namespace=self.namespace,
            )
            for part, operations in self.patches
        ]
        return " && ".join(commands) if all(commands) else ""


class Trouble(Fact, frozen=True):
    """``command`` is the safe way to repair it, ``remedy`` says so in words; one of them may be empty."""

    kind: str
    object: str
    message: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``repair``: what ``--fix`` may do about it."""

    trouble: Trouble
    repair: Repair | None = None
    settles: frozenset[str] = frozenset()
    """Objects of which this advice is all that is to be done: other troubles with them are not told beside it."""

    @classmethod
    def of(cls, kind: str, what: str, message: str, *, remedy: str = "", command: str = "") -> Diagnosis:
        """Only people, or controllers, can repair it."""
        return cls(Trouble(kind=kind, object=what, message=message, remedy=remedy, command=command))

    @classmethod
    def repairable(cls, kind: str, message: str, repair: Repair) -> Diagnosis:
        """``--fix`` can repair this claim."""
        what, text = f"claim {repair.namespace}/{repair.name}", repair.text
        return cls(Trouble(kind=kind, object=what, message=message, remedy=text, command=repair.command), repair)


def advised_once(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return the diagnoses, without objects that the advice of another diagnosis settles."""
    every = list(found)
    settled = {what for one in every for what in one.settles}
    return [one for one in every if one.settles or one.trouble.object not in settled]


def unchanged(claim: ResourceClaim) -> list[Operation]:
    """Tests at the head of a patch: it is this very claim, as it was seen."""
    meta = claim.metadata
    tested = (("uid", meta.uid), ("resourceVersion", meta.resource_version))
    return [{"op": "test", "path": f"/metadata/{name}", "value": value} for name, value in tested if value]
