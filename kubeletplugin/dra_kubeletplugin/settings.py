"""Settings of one plugin instance, and the socket paths that follow from them.

Spec: plugin-helper.md section 2.2. A rolling update runs two instances of a driver side by side; each then
has sockets of its own, named after the uid of its pod.
"""

from __future__ import annotations

import logging
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike
from pathlib import Path

from .errors import SettingsError
from .files.claim_files import CDI_DIR, versions_to_write

REGISTRY_DIR = Path("/var/lib/kubelet/plugins_registry")
PLUGINS_DIR = Path("/var/lib/kubelet/plugins")
LONGEST_SOCKET_PATH_BYTES = 107  # bytes; sockaddr_un has 108 including the final NUL

_POD_UID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NUL = "\0"
_FILE_PART = re.compile(r"[\w.-]*", re.ASCII)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, kw_only=True)
class PluginSettings:
    """Settings of a plugin; only the driver's name is required. Raises SettingsError if they contradict each other.

    ``registry_dir`` and ``data_dir`` (default ``/var/lib/kubelet/plugins/<driver>``) must have the same path for the
    kubelet; ``data_dir`` also keeps what is prepared, and must outlast the process. CDI files go to ``cdi_dir``, which
    the container runtime reads. ``device_metadata`` gives containers a file that describes their devices
    (``claim_files.py``): in the versions of a list such as ``("v1beta1", "v1alpha1")``, or with True in v1alpha1
    only. ``rolling_update_uid`` is the pod's uid, given when instances may overlap (kubelet 1.33 and newer).
    ``serialize`` runs one prepare or unprepare at a time, otherwise one of each claim; across overlapping instances
    through lock files in ``lock_dir``. ``serve_legacy`` adds the service of Kubernetes 1.31 and before;
    ``serve_health=False`` takes the health service away, also if the driver has ``health``. ``log_level`` is the level
    of request and response logs, None for none. ``reconcile_pool`` publishes just that pool, without node name in its
    slices (RS-05). ``scheduler`` gives all published devices to the scheduler of that name alone, by a taint
    (``slices.marked_for``). ``publishes=False`` is for drivers whose devices a controller publishes: the plugin is
    ready without slices of its own. ``api_rate`` and ``api_burst`` limit the requests that publish slices: so many per
    second, and at once.
    """

    driver_name: str
    node_name: str = ""
    node_uid: str = ""
    registry_dir: str | PathLike[str] = REGISTRY_DIR
    data_dir: str | PathLike[str] | None = None
    cdi_dir: str | PathLike[str] = CDI_DIR
    device_metadata: bool | Sequence[str] = False
    registrar_socket: str = ""
    plugin_socket: str = ""
    rolling_update_uid: str = ""
    serve_v1: bool = True
    serve_v1beta1: bool = True
    serve_legacy: bool = False
    serve_health: bool = True
    run_dra_service: bool = True
    run_registration: bool = True
    serialize: bool = True
    lock_dir: str | PathLike[str] | None = None
    log_level: int | None = logging.DEBUG
    reconcile_pool: str = ""
    scheduler: str = ""
    publishes: bool = True
    api_rate: float = 50.0
    api_burst: int = 100

    def __post_init__(self) -> None:
        check_subdomain("the driver name", self.driver_name, limit=63)
        if not self.driver_name[0].isalpha():
            raise SettingsError(
                f"the driver name {self.driver_name!r} must begin with a letter, as the names of CDI devices do"
            )
        if self.node_name:
            check_subdomain("the node name", self.node_name, limit=253)
        if not (self.serve_v1 or self.serve_v1beta1 or self.serve_legacy):
            raise SettingsError("no DRA gRPC version is offered: enable serve_v1 or serve_v1beta1")
        if self.rolling_update_uid and (self.registrar_socket or self.plugin_socket):
            raise SettingsError(
                "rolling_update_uid determines the socket names: do not set registrar_socket or plugin_socket"
            )
        self._check_places()
        try:
            versions_to_write(self.device_metadata)
        except ValueError as error:
            raise SettingsError(f"device_metadata: {error}") from error
        if self.scheduler and not _LABEL_VALUE.fullmatch(self.scheduler):
            raise SettingsError(
                f"the scheduler {self.scheduler!r} cannot stand in a taint: use up to 63 letters, digits, '-', '_' and "
                "'.', beginning and ending with a letter or digit"
            )
        if self.api_rate <= 0 or self.api_burst < 1:
            raise SettingsError("api_rate and api_burst must be positive: nothing would be published otherwise")
        for path in (self.registration_path, self.plugin_path):
            if len(str(path).encode()) > LONGEST_SOCKET_PATH_BYTES:
                raise SettingsError(
                    f"the socket path {path} has more than {LONGEST_SOCKET_PATH_BYTES} bytes: use shorter directories"
                )

    def _check_places(self) -> None:
        """Raise SettingsError for a part of a socket's name that leaves its folder, and a folder without a name."""
        for name in ("rolling_update_uid", "registrar_socket", "plugin_socket"):
            if not _FILE_PART.fullmatch(text := getattr(self, name)):
                raise SettingsError(
                    f"{name} is {text!r}, which cannot be a part of a socket's name: use letters, digits, '-', '_', '.'"
                )
        for name in ("registry_dir", "cdi_dir"):
            if not os.fspath(getattr(self, name)):
                raise SettingsError(f"{name} is empty: name a directory, or leave it out")

    @property
    def folder(self) -> Path:
        """The plugin data directory."""
        return Path(self.data_dir) if self.data_dir else PLUGINS_DIR / self.driver_name

    @property
    def records_dir(self) -> Path:
        """Where it is remembered what is prepared."""
        return self.folder / "claims"

    @property
    def metadata_versions(self) -> tuple[str, ...]:
        """The versions of device metadata that are written; none if that is off."""
        return versions_to_write(self.device_metadata)

    @property
    def metadata_dir(self) -> Path:
        """Where device metadata files are."""
        return self.folder / "dra-device-metadata"

    @property
    def plugin_path(self) -> Path:
        """Socket of the DRA service; with a long driver name and a rolling update the uid is hashed."""
        uid = self.rolling_update_uid
        if not uid:
            return self.folder / (self.plugin_socket or "dra.sock")
        return _shortest(self.folder / f"dra-{uid}.sock", self.folder / f"dra-{_hash(uid, 6)}.sock")

    @property
    def registration_path(self) -> Path:
        """Socket of the registration service; with long names and a rolling update the parts are hashed."""
        driver, uid = self.driver_name, self.rolling_update_uid
        if not uid:
            return Path(self.registry_dir, self.registrar_socket or f"{driver}-reg.sock")
        names = (
            f"{driver}-{uid}-reg.sock",
            f"{driver}-{_hash(uid, 8)}-reg.sock",
            f"dra-{_hash(f'{driver}{_NUL}{uid}', 16)}-reg.sock",
        )
        return _shortest(*(Path(self.registry_dir, name) for name in names))

    @property
    def plugin_sockets(self) -> re.Pattern[str]:
        """How the sockets of the DRA service of all instances are called."""
        return re.compile(rf"dra(-{_POD_UID}|-[\w-]{{8}})?\.sock", re.ASCII)

    @property
    def registration_sockets(self) -> re.Pattern[str]:
        """How the registration sockets of all instances are called; a hashed name does not tell whose it is."""
        return re.compile(rf"{re.escape(self.driver_name)}(-{_POD_UID})?-reg\.sock")

    @property
    def lock_folder(self) -> Path | None:
        """Where the lock files are that the instances of the driver share; None if they are not needed."""
        if self.serialize and not self.rolling_update_uid:
            return None
        return Path(self.lock_dir or self.folder)


def check_subdomain(what: str, name: str, *, limit: int) -> None:
    """Raise SettingsError unless ``name`` is a lower-case DNS subdomain of at most ``limit`` characters."""
    if len(name) > limit or not _SUBDOMAIN.fullmatch(name):
        raise SettingsError(
            f"{what} {name!r} is not a DNS subdomain of at most {limit} characters: "
            "use lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        )


def _shortest(*paths: Path) -> Path:
    """The first path that a socket can have, or else the last one."""
    return next((path for path in paths if len(str(path).encode()) <= LONGEST_SOCKET_PATH_BYTES), paths[-1])


def _hash(text: str, size: int) -> str:
    return urlsafe_b64encode(sha256(text.encode()).digest()[:size]).decode().rstrip("=")
