"""What a call of a driver names and returns: references to claims, and prepared devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ClaimRef(NamedTuple):
    """The reference to a claim in a call."""

    namespace: str
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device as its driver reported it; no request names mean that it serves every request."""

    pool: str
    device: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
