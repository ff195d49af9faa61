"""Puts the finalizer back on a claim that lost it while a pod uses it that the operator placed.

Without it the claim could be deleted while its pods run, and its devices would look free. A writer that takes it off
again and again meets growing pauses.
"""

from __future__ import annotations

import logging

from dra_api.resource import FINALIZER, ResourceClaim

from dra_operator.cache import Cluster, Key, is_unprotected
from dra_operator.controllers.logbook import tell
from dra_operator.controllers.memory import GrowingPauses
from dra_operator.kube import ClaimWriter

logger = logging.getLogger(__name__)


class ClaimProtection:
    """``handle`` one claim."""

    def __init__(self, cluster: Cluster, claims: ClaimWriter, pauses: GrowingPauses) -> None:
        self._cluster, self._claims, self._pauses = cluster, claims, pauses

    async def handle(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as it is afterwards. Raises NotFound and ClaimChanged when it is not there any more."""
        what = f"finalizer {claim.metadata.uid}"
        if not is_unprotected(self._cluster, claim) or self._pauses.puts_off(what, Key("release", claim.key)):
            return claim
        self._pauses.did(what)
        after = await self._claims.swap_finalizers(claim, "", FINALIZER)
        if is_unprotected(self._cluster, after):
            lost = "a webhook or admission policy removes it: exempt ResourceClaims in use from it"
            tell(logger, logging.WARNING, "claim in use has no finalizer", claim=claim.key, because=lost)
        else:
            tell(logger, logging.WARNING, "finalizer restored on claim in use", claim=claim.key, finalizer=FINALIZER)
        return after
