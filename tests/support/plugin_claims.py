"""Claims of the plugin's tests: what their fixture ``claim`` is, and a claim with the record that it is prepared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dra_api.codec import encode
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import ContainerEdits, PreparedDevice, results_for
from dra_kubeletplugin.claims.conflicts import fingerprint, own_part
from dra_kubeletplugin.files.checkpoint import ClaimRecord, HeldDevice, boot_id
from dra_kubeletplugin.testing import allocated_claim
from dra_kubeletplugin.testing.api import Json

MakeClaim = Callable[..., Awaitable[Json]]
"""Makes an allocated claim: ``await claim("name", device="gpu-0", config=[...])``."""


def prepared_claim(driver: str, node: str, device: str, name: str) -> tuple[ResourceClaim, ClaimRecord]:
    """A claim of one device in the node's pool, and its record; containers have the claim's name in ``CLAIM``."""
    claim = allocated_claim(driver, f"{node}/{device}", name=name)
    (result,) = results_for(driver, claim)
    record = ClaimRecord(
        uid=claim.metadata.uid,
        namespace="default",
        name=name,
        boot_id=boot_id(),
        fingerprint=fingerprint(driver, claim),
        phase="prepared",
        holds=(HeldDevice(pool=result.pool, device=result.device),),
        devices=(PreparedDevice.of(result, edits=ContainerEdits(env=(f"CLAIM={name}",))),),
        allocated=encode(own_part(driver, claim)).decode(),
        node=node,
    )
    return claim, record
