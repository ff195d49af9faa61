"""The files of volumes whose content comes from the API: ConfigMaps, Secrets, fields of the pod, tokens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dra_kube import CONFIG_MAPS, SECRETS, Api, KubeError, Resource

from dra_devcluster.agent.spec.pod import RunPod
from dra_devcluster.agent.spec.pod_fields import pod_field, resource_field
from dra_devcluster.agent.spec.pod_objects import PodObjects, config_error
from dra_devcluster.agent.spec.volumes import (
    DownwardFile,
    KeyToPath,
    ObjectVolume,
    Projection,
    RunVolume,
    TokenProjection,
)

from .atomic_folder import File

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
        if volume.projected is not None:
            mode = volume.projected.default_mode
            files: dict[str, File] = {}
            for source in volume.projected.sources or ():
                files |= await self._projected(pod, objects, source, _CONTENT_MODE if mode is None else mode)
            return files
        parts = (volume.config_map, volume.secret, volume.downward_api)
        mode = next((part.default_mode for part in parts if part is not None), None)
        single = Projection(config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api)
        if any(part is not None for part in parts):
            return await self._projected(pod, objects, single, _CONTENT_MODE if mode is None else mode)
        return None

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
    return {
        item.path: File(content[item.key], mode if item.mode is None else item.mode)
        for item in source.items
        if _has(content, item, f"{resource.kind.lower()} {name}", source.optional)
    }


def _has(content: Mapping[str, bytes], item: KeyToPath, what: str, optional: bool) -> bool:
    if item.key not in content and not optional:
        raise config_error(f"{what} references non-existent config key: {item.key}")
    return item.key in content
