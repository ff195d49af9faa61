"""The volumes of one pod as folders and files of this machine, and where their content comes from.

``set_up`` makes them before the pod's first container starts, and is repeated until it succeeds. ``refresh`` writes the
content from the API again (ConfigMaps, Secrets, fields of the pod, tokens), so that running containers see changes.
They go with the pod's folder. A volume of another kind is not provided; the containers that mount it run without, and
an event says so.

The files of a volume all change in one step, laid out as a kubelet does it::

    ca.crt -> ..data/ca.crt
    ..data -> ..2026_01_02_1
    ..2026_01_02_1/ca.crt

Programs that watch such a volume watch the link ``..data``. It is replaced as a whole.
"""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dra_kube import CONFIG_MAPS, SECRETS, Api, KubeError, Resource

from dra_devcluster.agent.errors import ContainerError, VolumeError
from dra_devcluster.agent.processes.process import Mount
from dra_devcluster.agent.settings import HostPaths
from dra_devcluster.agent.spec import (
    TOKEN_PATH,
    DownwardFile,
    HostPathVolume,
    ObjectVolume,
    PodObjects,
    ProjectedVolume,
    Projection,
    RunContainer,
    RunPod,
    RunVolume,
    TokenProjection,
    config_error,
    expand,
    pod_field,
    resource_field,
)

_DATA = "..data"


class File(NamedTuple):
    """What one file holds, and its permissions."""

    content: bytes
    mode: int


def write_folder(folder: Path, files: Mapping[str, File]) -> None:
    """Make the folder show exactly these files, given by relative path; nothing happens if it does already.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = _target(folder)
    if old is not None and _read(old) == dict(files):
        return
    version = folder / f"..{time.strftime('%Y_%m_%d')}_{time.time_ns()}"
    for path, file in files.items():
        place = version / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.content)
        place.chmod(file.mode)
    version.mkdir(exist_ok=True)
    link = folder / f"{_DATA}_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(version.name)
    os.replace(link, folder / _DATA)
    _link_names(folder, {path.partition("/")[0] for path in files})
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _target(folder: Path) -> Path | None:
    with suppress(OSError):
        return folder / os.readlink(folder / _DATA)
    return None


def _read(version: Path) -> dict[str, File]:
    return {
        str(path.relative_to(version)): File(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in version.rglob("*")
        if path.is_file()
    }


def _link_names(folder: Path, names: set[str]) -> None:
    """The names that users see; those of files that are gone go as well."""
    for path in folder.iterdir():
        if path.is_symlink() and path.name != _DATA and path.name not in names:
            path.unlink()
    for name in sorted(names):
        with suppress(FileExistsError):
            (folder / name).symlink_to(f"{_DATA}/{name}")


_SERVICE_ACCOUNTS = Resource("", ("v1",), "serviceaccounts", "ServiceAccount", True)
_CONTENT_MODE = 0o644
# A kubelet replaces a token before it expires, so that no container ever reads one that is about to.
_REPLACED_AFTER_SHARE = 0.8  # of its lifetime
"""A token is replaced when this share of its time is over."""


class _Token(NamedTuple):
    text: str
    replace_at: float


class VolumeContent:
    """The content of the volumes of one pod; tokens are kept until they have to be replaced."""

    def __init__(self, api: Api, address: str) -> None:
        self._api = api
        self._address = address
        self._tokens: dict[TokenProjection, _Token] = {}

    async def files(self, pod: RunPod, volume: RunVolume) -> dict[str, File] | None:
        """The files by path; None for a volume whose content does not come from the API. Raises ContainerError."""
        objects = PodObjects(self._api, pod.metadata.namespace)
        parts = (volume.projected, volume.config_map, volume.secret, volume.downward_api)
        part = next((part for part in parts if part is not None), None)
        if part is None:
            return None
        single = Projection(config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api)
        mode = _CONTENT_MODE if part.default_mode is None else part.default_mode
        files: dict[str, File] = {}
        for source in (single,) if volume.projected is None else volume.projected.sources or ():
            files |= await self._projected(pod, objects, source, mode)
        return files

    async def _projected(self, pod: RunPod, objects: PodObjects, source: Projection, mode: int) -> dict[str, File]:
        if source.config_map is not None:
            return await _object_files(objects, CONFIG_MAPS, source.config_map, mode)
        if source.secret is not None:
            return await _object_files(objects, SECRETS, source.secret, mode)
        if source.downward_api is not None:
            return self._downward_files(pod, source.downward_api.items or (), mode)
        if source.service_account_token is not None:
            token = await self._token(pod, source.service_account_token)
            return {source.service_account_token.path: File(token.encode(), mode)}
        raise config_error("a source of a projected volume is of a kind that is not supported here")

    def _downward_files(self, pod: RunPod, items: Iterable[DownwardFile], mode: int) -> dict[str, File]:
        files = {}
        for item in items:
            if item.resource_field_ref is not None:
                text = resource_field(pod, None, item.resource_field_ref)
            else:
                text = pod_field(pod, item.field_ref.field_path if item.field_ref else "", self._address)
            files[item.path] = File(text.encode(), mode if item.mode is None else item.mode)
        return files

    async def _token(self, pod: RunPod, projection: TokenProjection) -> str:
        known = self._tokens.get(projection)
        if known is not None and time.time() < known.replace_at:
            return known.text
        meta, account = pod.metadata, pod.spec.service_account_name or "default"
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta.name, "uid": meta.uid}
        spec = {
            "expirationSeconds": projection.expiration_seconds,
            "audiences": [projection.audience] if projection.audience else [],
            "boundObjectRef": bound,
        }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            created = await self._api.create_subresource(_SERVICE_ACCOUNTS, account, "token", body, meta.namespace)
        except KubeError as error:
            raise config_error(f"failed to fetch token: {error}") from error
        text: str = created["status"]["token"]
        self._tokens[projection] = _Token(text, time.time() + _REPLACED_AFTER_SHARE * projection.expiration_seconds)
        return text


async def _object_files(objects: PodObjects, resource: Resource, source: ObjectVolume, mode: int) -> dict[str, File]:
    name = source.secret_name or source.name
    content = await objects.content(resource, name, source.optional)
    if source.items is None:
        return {key: File(value, mode) for key, value in content.items()}
    files = {}
    for item in source.items:
        if item.key in content:
            files[item.path] = File(content[item.key], mode if item.mode is None else item.mode)
        elif not source.optional:
            raise config_error(f"{resource.kind.lower()} {name} references non-existent config key: {item.key}")
    return files


_OWN_TOKEN = "kube-api-access"
_TOKEN_SECONDS = 3607  # what the admission of Kubernetes asks for: a real API server may extend exactly this one
_CHECKS: dict[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class PodVolumes:
    """Those of the pod that ``pod`` returns; their content is kept below ``folder``."""

    def __init__(self, api: Api, address: str, paths: HostPaths, pod: Callable[[], RunPod], folder: Path) -> None:
        self._api = api
        self._paths = paths
        self._pod = pod
        self._folder = folder
        self._content = VolumeContent(api, address)
        self._places: dict[str, Path] = {}

    async def set_up(self) -> None:
        """Make all volumes. Raises VolumeError, which names the volume."""
        for volume in self._volumes():
            await self._provide(volume)

    async def refresh(self) -> None:
        """Write the volumes anew whose content comes from the API. Raises VolumeError; the old content stays."""
        for volume in self._volumes():
            if volume.name in self._places and _is_content(volume):
                await self._provide(volume)

    def mounts(self, container: RunContainer, variables: Mapping[str, str]) -> list[Mount]:
        """What the container mounts, without the volumes that are not provided. Raises ContainerError."""
        mounts = []
        volumes = self._pod().spec.volumes or ()
        fixed = {volume.name for volume in volumes if _is_content(volume)}  # which cannot be written to
        for mount in container.volume_mounts or ():
            place = self._places.get(mount.name)
            if place is None:
                continue
            part = expand(mount.sub_path_expr, variables) if mount.sub_path_expr else mount.sub_path
            if part:
                place = _part_of(place, part, mount.name)
            mounts.append(Mount(place, mount.mount_path, mount.read_only or mount.name in fixed))
        if _OWN_TOKEN in self._places and all(mount.target != TOKEN_PATH for mount in mounts):
            mounts.append(Mount(self._places[_OWN_TOKEN], TOKEN_PATH, read_only=True))
        return mounts

    def not_provided(self, container: RunContainer) -> list[str]:
        """Names of the volumes that the container mounts and this node cannot provide."""
        names = dict.fromkeys(mount.name for mount in container.volume_mounts or () if mount.mount_path != TOKEN_PATH)
        return [name for name in names if name not in self._places]

    def _volumes(self) -> list[RunVolume]:
        """The pod's own, and a token if it has a service account of its own but no volume with the token.

        An API server with the admission of Kubernetes adds that volume; that of the development cluster does not.
        """
        pod = self._pod()
        volumes = list(pod.spec.volumes or ())
        mounted = {mount.mount_path for one in pod.all_containers for mount in one.volume_mounts or ()}
        if pod.wants_token and TOKEN_PATH not in mounted:
            token = TokenProjection(path="token", expiration_seconds=_TOKEN_SECONDS)
            sources = (Projection(service_account_token=token),)
            volumes.append(RunVolume(name=_OWN_TOKEN, projected=ProjectedVolume(sources=sources)))
        return volumes

    async def _provide(self, volume: RunVolume) -> None:
        place = self._folder / volume.name
        try:
            if volume.host_path is not None:
                place = self._host_path(volume.host_path)
            elif volume.empty_dir is not None:
                place.mkdir(parents=True, exist_ok=True)
            else:
                files = await self._content.files(self._pod(), volume)
                if files is None:
                    return
                write_folder(place, files | (self._cluster() if volume.name == _OWN_TOKEN else {}))
        except (ContainerError, OSError) as error:
            raise VolumeError(f'MountVolume.SetUp failed for volume "{volume.name}" : {error}') from error
        self._places[volume.name] = place

    def _host_path(self, volume: HostPathVolume) -> Path:
        """The place on this machine, made if it is missing and may be made. Raises VolumeError, OSError."""
        real = self._paths.real(volume.path)
        if volume.type == "FileOrCreate":
            real.touch()
        elif volume.type in ("", "DirectoryOrCreate") and not real.exists():
            real.mkdir(parents=True)
        if volume.type:
            fits, name = _CHECKS[volume.type]
            if not real.exists() or not fits(real.stat().st_mode):
                raise ContainerError("FailedMount", f"hostPath type check failed: {volume.path} is not {name}")
        return real

    def _cluster(self) -> dict[str, File]:
        """What a client in the cluster finds beside its token."""
        tls = self._api.connection.tls
        certificates = tls.get_ca_certs(binary_form=True) if tls is not None else []
        text = "".join(map(ssl.DER_cert_to_PEM_cert, certificates))
        return {"ca.crt": File(text.encode(), 0o644), "namespace": File(self._pod().metadata.namespace.encode(), 0o644)}


def _is_content(volume: RunVolume) -> bool:
    """Whether the files come from the API."""
    return volume.host_path is None and volume.empty_dir is None


def _part_of(place: Path, part: str, volume: str) -> Path:
    """A part of a volume, made as a directory if it is missing. Raises ContainerError for one outside."""
    path = place / part
    if os.path.isabs(part) or not path.resolve().is_relative_to(place.resolve()):
        raise ContainerError("CreateContainerConfigError", f"subPath {part!r} leads out of volume {volume}")
    try:
        if not path.exists():
            path.mkdir(parents=True)
    except OSError as error:
        raise ContainerError("CreateContainerConfigError", f"subPath {part!r} of volume {volume}: {error}") from error
    return path
