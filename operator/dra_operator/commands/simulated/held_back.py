"""What keeps a pod in files from being tried at all, before placement looks at it: what ``simulate`` says of it then.

The operator would never get as far as a decision: the API server refuses the pod's claim, another controller's
scheduling gate holds the pod, or the files do not say what the pod asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Hindrance(StrEnum):
    """The values are stable."""

    TEMPLATE_MISSING = "template-missing"
    CLAIM_MISSING = "claim-missing"
    ADMIN_ACCESS = "admin-access"
    QUOTA = "quota"
    SCHEDULING_GATE = "scheduling-gate"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """``subject`` is what it is about (a template, a namespace, a gate), ``reason`` the same in words."""

    kind: Hindrance
    subject: str
    reason: str

    @property
    def text(self) -> str:
        """A clause about the pod, without its name."""
        return f"is not tried: {self.reason}"

    @property
    def lacks_input(self) -> bool:
        """Whether the files do not say enough for an answer."""
        return self.kind in (Hindrance.TEMPLATE_MISSING, Hindrance.CLAIM_MISSING)
