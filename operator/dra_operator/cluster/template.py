"""A ResourceClaimTemplate whose spec stays as its author wrote it, because it is copied into claims.

Decoding it into structs would drop fields of newer API versions from every generated claim.
"""

from __future__ import annotations

from typing import Any

import msgspec
from dra_api.codec import DecodeError, decode
from dra_api.meta import Object
from dra_api.resource import ResourceClaimTemplateSpec
from msgspec import Raw, field


class ClaimTemplate(Object, frozen=True):
    """``spec`` is the JSON text of the template's spec."""

    spec: Raw = field(default_factory=Raw)

    def content(self) -> dict[str, Any]:
        """Spec and metadata for a claim, as new dicts that may be changed (CC-04)."""
        content: dict[str, Any] = msgspec.json.decode(self.spec) if self.spec else {}
        return content

    def typed(self) -> ResourceClaimTemplateSpec:
        """The same for reading. Raises DecodeError, which names the template and the field at fault."""
        try:
            return decode(ResourceClaimTemplateSpec, self.spec or b"{}")
        except DecodeError as error:
            raise DecodeError(f"ResourceClaimTemplate {self.key}: {error}") from error
