"""Custom resources: everything about them is in the schema of their definition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.structure import Fault, Resource, set_defaults, validate

from .base import Kind, Write


class CustomKind(Kind):
    """One instance per definition: it knows which fields the definition makes selectable."""

    has_generation = True
    unconditional_update = False

    def __init__(self, resource: Resource) -> None:
        entries = (resource.definition or {}).get("selectableFields") or ()
        paths = [entry["jsonPath"].removeprefix(".") for entry in entries]
        self.selectable = {path: path for path in paths}

    def default(self, obj: Json, write: Write) -> None:
        set_defaults(write.resource.schema, obj)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        return validate(write.resource.schema, obj)

    def generation_of(self, obj: Json) -> Any:
        return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion", "kind")}
