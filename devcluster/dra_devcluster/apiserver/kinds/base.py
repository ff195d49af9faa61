"""The rules of a kind beyond its structure: defaults, validation, fields that an update keeps, and deletion.

A kind without rules of its own is served by `Kind` as it stands. Hooks change the object in place; they get objects in
the stored version, after the decoder has checked the types of all fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from dra_api.codec import DecodeError, convert
from dra_api.releases import Release
from dra_api.validation.formats import FieldError

from dra_devcluster.apiserver import metadata
from dra_devcluster.apiserver.admission import AdmissionRequest, Operation, Policies
from dra_devcluster.apiserver.errors import Json, bad_request
from dra_devcluster.apiserver.rbac import ADMIN, Attributes, User
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.structure import Resource

from .resources import check_quotas

T = TypeVar("T")


@dataclass(slots=True)
class Write:
    """The circumstances of one write: its user, its objects and its endpoint."""

    registry: Registry
    resource: Resource
    namespace: str = ""
    subresource: str = ""
    user: User = ADMIN  # also of what the server itself writes
    manager: str = ""
    dry_run: bool = False
    verb: str = "update"
    generated: bool = False  # the name is from generateName
    warnings: list[str] = field(default_factory=list)
    policies: Policies | None = None  # what the server itself writes needs no admission

    def asks(self, verb: str, name: str, subresource: str = "") -> Attributes:
        """A question about an object of the resource, beside the one that the request itself is."""
        resource = self.resource
        place = (resource.group, resource.version, resource.plural, subresource, self.namespace, name)
        return Attributes(self.user, verb, *place)

    def admit(
        self,
        operation: Operation,
        obj: Json | None,
        old: Json | None = None,
        posted: tuple[str, str, str] | None = None,
    ) -> None:
        """Ask the admission policies; ``posted`` is the kind of a body that is not the object. Raises their refusal."""
        if self.policies is None:
            return
        meta = (obj or old or {}).get("metadata") or {}
        place = (self.resource, self.subresource, self.namespace, meta.get("name", ""))
        more = (posted, self.dry_run, self.generated and operation == "CREATE")
        self.warnings += self.policies.check(AdmissionRequest(operation, *place, self.user, obj, old, *more))
        if obj is not None and not self.subresource and posted is None:
            check_quotas(self.registry, self.resource, self.namespace, obj, old)


def fill(obj: Json, defaults: Mapping[str, Any]) -> None:
    """Write the defaults, by dotted path, where the object has nothing or an empty object."""
    for path, value in defaults.items():
        *parents, last = path.split(".")
        place = obj
        for part in parents:
            place = place.setdefault(part, {})
        if place.get(last) in (None, {}):
            place[last] = deepcopy(value)


def selectable_by(*paths: str) -> Mapping[str, str]:
    return MappingProxyType({path: path for path in paths})


def decoded(struct: type[T], obj: Json) -> T:
    """The object as ``dra_api`` has it. Raises a 400 if it cannot be read."""
    try:
        return convert(struct, obj)
    except DecodeError as error:
        raise bad_request(f"{struct.__name__} cannot be handled: {error}") from error


class Kind:
    """Rules that hold for most kinds."""

    name_rule = staticmethod(metadata.subdomain)
    has_generation = False
    # Whether `validate` looks at the metadata too.
    checks_metadata = False
    # Whether an update may come without a resourceVersion.
    unconditional_update = True
    # Whether an update makes an object that is not there.
    created_by_update = False
    # Whether the answer to a deletion is the object, rather than a Status.
    returns_deleted = False
    # Whether a deletion grants the object time to end.
    deletes_gracefully = False
    # Whether labels, annotations and finalizers may be changed through the status sub-resource.
    status_writes_metadata = False
    # What is filled in where a new or changed object has nothing, by dotted path.
    defaults: Mapping[str, Any] = MappingProxyType({})
    # Fields for field selectors beside name and namespace, each with its path.
    selectable: Mapping[str, str] = MappingProxyType({})
    # The release from which on such a field is known, where not all of them know it.
    selectable_since: Mapping[str, Release] = MappingProxyType({})

    def default(self, obj: Json, write: Write) -> None:
        """Fill in what the client left out; runs for new and changed objects."""
        fill(obj, self.defaults)

    def prepare_create(self, obj: Json, write: Write) -> None:
        """Bring a new object into its first state."""
        if "status" in write.resource.subresources:
            obj.pop("status", None)

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        """Take over from the old object what this endpoint may not change."""
        if "status" not in write.resource.subresources:
            return
        kept = [key for key in old if key != "status"] if write.subresource == "status" else ["status"]
        if write.subresource == "status":
            for key in [key for key in obj if key not in old and key != "status"]:
                del obj[key]
            kept.remove("metadata")
            if not self.status_writes_metadata:
                own = ("resourceVersion", "managedFields", "uid")
                sent = {key: obj["metadata"][key] for key in own if key in obj["metadata"]}
                obj["metadata"] = {**{k: v for k, v in old["metadata"].items() if k not in own}, **sent}
        for key in kept:
            if key in old:
                obj[key] = old[key]
            else:
                obj.pop(key, None)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        """Faults of an object, new or changed, beyond those of its metadata."""
        return ()

    def generation_of(self, obj: Json) -> Any:
        """What must differ for the generation to grow."""
        return obj.get("spec")

    def fields(self, obj: Json) -> dict[str, str]:
        meta = obj["metadata"]
        found = {"metadata.name": meta["name"], "metadata.namespace": meta.get("namespace", "")}
        for name, path in self.selectable.items():
            value = metadata.dig(obj, path)
            found[name] = str(value).lower() if isinstance(value, bool) else str(value if value is not None else "")
        return found

    def grace(self, obj: Json, wanted: int | None) -> int:
        """Seconds between the request to delete and the removal."""
        return 0

    def prepare_delete(self, obj: Json, write: Write) -> None:
        """Check an object before its deletion. Raises a 403 if it must not be deleted."""

    def holds(self, obj: Json) -> bool:
        """Whether anything beside finalizers and the grace period delays the removal of an object in deletion."""
        return False

    def mark_deleted(self, obj: Json) -> None:
        """Mark the object as in deletion."""


def like(kind: type[Kind], **attributes: Any) -> type[Kind]:
    """The rules of a kind, but for some attributes."""
    return type(kind.__name__, (kind,), attributes)
