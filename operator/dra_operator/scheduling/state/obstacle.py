"""What keeps a pod from being placed, as a value: compared, counted and acted on by its reason.

An obstacle lies with one node (the pod cannot run there) or with the pod (no node is tried at all). Each rule has its
reasons, with their words, in its own file; nothing decides by a text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """One kind of obstacle. There is one object for each, so reasons are compared by identity."""

    name: str
    """Stable, and fit for a metric's label."""
    text: str
    """A clause without a full stop, with ``{subject}`` and ``{detail}``; of a node, it reads well behind a number."""
    ends_with_any_pod: bool = False
    """It may pass when any other pod on the node ends."""
    is_about_volumes: bool = False
    """It may pass when volumes, or claims to them, change."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """``subject`` is what it is about (a resource, a taint, a claim), ``detail`` what else the text needs."""

    reason: Reason
    subject: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """In words: ``Insufficient cpu``."""
        return self.reason.text.format(subject=self.subject, detail=self.detail)
