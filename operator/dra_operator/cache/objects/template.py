"""A ResourceClaimTemplate whose spec stays as its author wrote it, because it is copied into claims.

Decoding it into structs would drop fields of newer API versions from every generated claim.
"""

from __future__ import annotations

from typing import Any

import msgspec
from dra_api.codec import DecodeError, decode, encode
from dra_api.meta import Object
from dra_api.resource import ResourceClaimTemplateSpec
from msgspec import Raw, field
from msgspec.structs import replace

from dra_operator.scheduling.state import LARGEST_OBJECT_BYTES, bytes_of_large, metadata_without_bulk, spec_without_bulk


class ClaimTemplate(Object, frozen=True):
    """``spec`` is the JSON text of the template's spec; of a large one little is kept, as of a large claim."""

    spec: Raw = field(default_factory=Raw)

    @property
    def bytes_of_spec(self) -> int | None:
        """How long a spec was of which too little is kept to make claims; None if it is whole, or cannot be read."""
        try:
            return bytes_of_large(self.typed().spec)
        except DecodeError:
            return None

    def without_bulk(self) -> ClaimTemplate:
        """The template itself, or what is kept of it if it is large."""
        size = len(self.spec)
        if size + len(encode(self.metadata)) <= LARGEST_OBJECT_BYTES:
            return self
        kept = replace(self, metadata=metadata_without_bulk(self.metadata))
        if size <= LARGEST_OBJECT_BYTES:
            return kept
        try:
            short = spec_without_bulk(self.typed().spec, size)
        except DecodeError:
            return kept
        return replace(kept, spec=Raw(encode(ResourceClaimTemplateSpec(spec=short))))

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
