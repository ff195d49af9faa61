"""What every Kubernetes object carries: metadata, owners, conditions.

All structs of this package are frozen, name their fields as Python does (``node_name`` for
``nodeName``), keep *absent* (None) apart from *empty* where the API does, and ignore fields
they do not know. They are for reading only: a write is a patch, or the raw object with changes, never an encoded
struct, so that unknown fields are preserved.
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all structs here."""


class OwnerReference(Part, frozen=True):
    """An owner: when all owners of an object are gone, the object is deleted."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Part, frozen=True):
    """Name, identity and life cycle of an object. Times are RFC 3339 texts."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The one owner that manages the object, if any."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class LabelSelectorRequirement(Part, frozen=True):
    """What one label has to be: operators In, NotIn, Exists, DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(Part, frozen=True):
    """Selects objects that meet all its requirements; an empty one selects all objects."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[LabelSelectorRequirement, ...] | None = None


class Condition(Part, frozen=True):
    """metav1.Condition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None


class ObjectVersion(Struct, rename="camel", frozen=True):
    """The metadata that names one version of an object."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""

    @classmethod
    def of(cls, meta: ObjectMeta) -> Self:
        """The version that the metadata belongs to."""
        return cls(meta.name, meta.uid, meta.resource_version, meta.namespace)

    @property
    def key(self) -> str:
        """The object among those of its kind, as ``Object.key``."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Object(Part, frozen=True):
    """Base of all kinds."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """``namespace/name``, or the bare name of a cluster-scoped object."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
