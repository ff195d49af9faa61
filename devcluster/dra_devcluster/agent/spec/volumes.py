"""The volumes of a pod that a node can provide, and the fields that refer into the pod itself."""

from __future__ import annotations

from typing import Any

from dra_api.core import Volume
from dra_api.meta import Part
from dra_api.values.quantity import Quantity
from msgspec import field


class FieldRef(Part, frozen=True):
    """A field of the pod itself, such as ``metadata.name``."""

    field_path: str = ""


class ResourceFieldRef(Part, frozen=True):
    """An amount of a container, such as ``limits.cpu``, in units of the divisor."""

    container_name: str = ""
    resource: str = ""
    divisor: Quantity | None = None


class KeyToPath(Part, frozen=True):
    """One key of a ConfigMap or Secret, and the file that shows it."""

    key: str = ""
    path: str = ""
    mode: int | None = None


class ObjectVolume(Part, frozen=True):
    """A ConfigMap or Secret as files; a Secret's volume names it by ``secret_name``. No items mean all keys."""

    name: str = ""
    secret_name: str = ""
    items: tuple[KeyToPath, ...] | None = None
    default_mode: int | None = None
    optional: bool = False


class DownwardFile(Part, frozen=True):
    """A file with a field of the pod or an amount of a container."""

    path: str = ""
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    mode: int | None = None


class DownwardVolume(Part, frozen=True):
    items: tuple[DownwardFile, ...] | None = None
    default_mode: int | None = None


class TokenProjection(Part, frozen=True):
    """A token of the pod's service account."""

    path: str = ""
    audience: str = ""
    expiration_seconds: int = 3600


class Projection(Part, frozen=True):
    """One source of a projected volume; one field is set."""

    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    downward_api: DownwardVolume | None = field(default=None, name="downwardAPI")
    service_account_token: TokenProjection | None = None


class ProjectedVolume(Part, frozen=True):
    sources: tuple[Projection, ...] | None = None
    default_mode: int | None = None


class HostPathVolume(Part, frozen=True):
    """A path of the node; ``type`` says what has to be there or is made."""

    path: str = ""
    type: str = ""


class RunVolume(Volume, frozen=True):
    """A volume; without one of these sources it cannot be provided here."""

    empty_dir: dict[str, Any] | None = None
    host_path: HostPathVolume | None = None
    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    downward_api: DownwardVolume | None = field(default=None, name="downwardAPI")
    projected: ProjectedVolume | None = None
