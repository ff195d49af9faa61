"""The volumes of one pod as folders and files of this machine.

``set_up`` makes them before the pod's first container starts, and is repeated until it succeeds. ``refresh`` writes
anew what comes from the API, so that running containers see changes. They go with the pod's folder. A volume of another
kind is not provided; the containers that mount it run without, and an event says so.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from dra_kube import Api

from dra_devcluster.agent.errors import ContainerError, VolumeError
from dra_devcluster.agent.host_paths import HostPaths
from dra_devcluster.agent.processes.sandbox import Mount
from dra_devcluster.agent.spec.environment import expand
from dra_devcluster.agent.spec.pod import TOKEN_PATH, RunContainer, RunPod
from dra_devcluster.agent.spec.volumes import HostPathVolume, ProjectedVolume, Projection, RunVolume, TokenProjection

from .atomic_folder import File, write_folder
from .volume_content import VolumeContent

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
            if volume.name in self._places and volume.host_path is None and volume.empty_dir is None:
                await self._provide(volume)

    def mounts(self, container: RunContainer, variables: Mapping[str, str]) -> list[Mount]:
        """What the container mounts, without the volumes that are not provided. Raises ContainerError."""
        mounts = []
        for mount in container.volume_mounts or ():
            place = self._places.get(mount.name)
            if place is None:
                continue
            part = expand(mount.sub_path_expr, variables) if mount.sub_path_expr else mount.sub_path
            if part:
                place = _part_of(place, part, mount.name)
            mounts.append(Mount(place, mount.mount_path, mount.read_only or self._is_read_only(mount.name)))
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

    def _is_read_only(self, name: str) -> bool:
        """Content from the API cannot be written to."""
        return any(
            volume.name == name and volume.host_path is None and volume.empty_dir is None
            for volume in self._pod().spec.volumes or ()
        )

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
