"""A write as admission sees it: what is done to which object, by whom, and what the object was and becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dra_devcluster.apiserver.authorization import User
from dra_devcluster.apiserver.errors import Json, StatusError, forbidden
from dra_devcluster.apiserver.storage.shapes import to_served
from dra_devcluster.apiserver.structure import Resource

Operation = Literal["CREATE", "UPDATE", "DELETE"]
GroupVersionKind = tuple[str, str, str]
_CODES = {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """``obj`` and ``old`` are in the stored shape; of a deletion only ``old`` is there, of a creation only ``obj``.

    ``posted`` is the kind (group, version, kind) of a body that is not the object itself, as of an Eviction.
    """

    operation: Operation
    resource: Resource
    subresource: str
    namespace: str
    name: str
    user: User
    obj: Json | None = None
    old: Json | None = None
    posted: GroupVersionKind | None = None
    dry_run: bool = False
    generated: bool = False

    def objects_as(self, resource: Resource) -> tuple[Json | None, Json | None]:
        """New and old object in the version of ``resource``."""
        if self.posted is not None:
            return self.obj, None
        new, old = (None if obj is None else to_served(resource, obj) for obj in (self.obj, self.old))
        return new, old

    def described(self, resource: Resource) -> Json:
        """The variable ``request``, for a policy that knows the object in the version of ``resource``."""
        info = self.user.info
        described: Json = {
            "operation": self.operation,
            "userInfo": info,
            "dryRun": self.dry_run,
            "options": {},
            "kind": self._kind(resource),
            "requestKind": self._kind(self.resource),
            "resource": _resource(resource),
            "requestResource": _resource(self.resource),
            "name": "" if self.generated else self.name,
            "namespace": self.namespace,
        }
        if self.subresource:
            described |= {"subResource": self.subresource, "requestSubResource": self.subresource}
        return {key: value for key, value in described.items() if value not in ("", None)}

    def _kind(self, resource: Resource) -> Json:
        group, version, kind = self.posted or (resource.group, resource.version, resource.kind)
        return {"group": group, "version": version, "kind": kind}

    def refusal(self, message: str, reason: str) -> StatusError:
        """The answer to a request that a policy denies."""
        error = forbidden(self.resource.group, self.resource.plural, self.name, message, [{"message": message}])
        return StatusError(_CODES.get(reason, 422), reason, error.message, error.details)


def _resource(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}
