"""The ConfigMaps and Secrets that a pod refers to, for its environment and its volumes."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from dra_kube import CONFIG_MAPS, Api, KubeError, NotFound, Resource

from dra_devcluster.agent.errors import ContainerError


class PodObjects:
    """Those of one namespace. Each is read once: keep this only as long as one look shall last."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._read: dict[tuple[Resource, str], dict[str, bytes] | None] = {}

    async def content(self, resource: Resource, name: str, optional: bool) -> dict[str, bytes]:
        """All keys of one object; none if it is missing and optional. Raises ContainerError."""
        key = (resource, name)
        if key not in self._read:
            try:
                self._read[key] = _content(resource, await self._api.get(resource, name, self._namespace))
            except NotFound:
                self._read[key] = None
            except KubeError as error:
                raise config_error(f"cannot read {resource.kind.lower()} {name}: {error}") from error
        content = self._read[key]
        if content is None and not optional:
            raise config_error(f'{resource.kind.lower()} "{name}" not found')
        return content or {}


def _content(resource: Resource, obj: dict[str, Any]) -> dict[str, bytes]:
    texts, encoded = (
        (obj.get("data") or {}, obj.get("binaryData") or {}) if resource is CONFIG_MAPS else ({}, obj.get("data") or {})
    )
    try:
        return {key: text.encode() for key, text in texts.items()} | {
            key: base64.b64decode(value, validate=True) for key, value in encoded.items()
        }
    except (binascii.Error, AttributeError, TypeError) as error:
        raise config_error(f"{resource.kind.lower()} {obj['metadata']['name']} has unreadable data: {error}") from error


def config_error(message: str) -> ContainerError:
    """The pod asks for something that does not exist or cannot be given."""
    return ContainerError("CreateContainerConfigError", message)
