"""The environment of a container: variables of the pod, then those of CDI.

A container sees ``PATH`` and ``HOSTNAME`` (which every runtime sets), the variables of ``envFrom`` and ``env``,
and on top those of its CDI devices. It gets none of the node agent's own variables. ``$(NAME)`` in values,
commands and arguments refers to variables defined before; ``$$`` becomes ``$`` everywhere, as in Kubernetes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from dra_kube import CONFIG_MAPS, SECRETS, Api, KubeError, NotFound, Resource

from .errors import ContainerError
from .podspec import EnvFrom, EnvSource, EnvVar, KeyRef, ObjectRef, RunContainer, RunPod

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; names that are not defined stay as they are."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


async def pod_environment(api: Api, pod: RunPod, container: RunContainer, address: str) -> dict[str, str]:
    """The variables that the pod asks for. Raises ContainerError(CreateContainerConfigError)."""
    sources = _Sources(api, pod.metadata.namespace)
    variables: dict[str, str] = {}
    for source in container.env_from or ():
        variables.update(await _all_keys(sources, source))
    for entry in container.env or ():
        value = await _value(sources, pod, entry, variables, address)
        if value is not None:
            variables[entry.name] = value
    return variables


class _Sources:
    """The ConfigMaps and Secrets of one namespace, each read once per container start."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._read: dict[tuple[Resource, str], dict[str, str] | None] = {}

    async def content(self, resource: Resource, name: str, optional: bool) -> dict[str, str]:
        """All keys of one object; none if it is missing and optional."""
        key = (resource, name)
        if key not in self._read:
            try:
                self._read[key] = _texts(resource, await self._api.get(resource, name, self._namespace))
            except NotFound:
                self._read[key] = None
            except KubeError as error:
                raise _config_error(f"cannot read {resource.kind.lower()} {name}: {error}") from error
        content = self._read[key]
        if content is None and not optional:
            raise _config_error(f'{resource.kind.lower()} "{name}" not found')
        return content or {}


async def _all_keys(sources: _Sources, source: EnvFrom) -> dict[str, str]:
    content: dict[str, str] = {}
    for resource, reference in _pairs(source.config_map_ref, source.secret_ref):
        content |= await sources.content(resource, reference.name, reference.optional)
    return {source.prefix + key: value for key, value in content.items()}


async def _value(
    sources: _Sources, pod: RunPod, entry: EnvVar, variables: Mapping[str, str], address: str
) -> str | None:
    source = entry.value_from
    if source is None:
        return expand(entry.value, variables)
    if source.field_ref is not None:
        return pod_field(pod, source.field_ref.field_path, address)
    return await _key(sources, source, entry.name)


async def _key(sources: _Sources, source: EnvSource, variable: str) -> str | None:
    for resource, reference in _pairs(source.config_map_key_ref, source.secret_key_ref):
        content = await sources.content(resource, reference.name, reference.optional)
        if reference.key in content:
            return content[reference.key]
        if reference.optional:
            return None
        raise _config_error(f"couldn't find key {reference.key} in {resource.kind} {reference.name}")
    raise _config_error(f"environment variable {variable}: this kind of valueFrom is not supported here")


def pod_field(pod: RunPod, path: str, address: str) -> str:
    """A field of the pod for the downward API. Raises ContainerError for fields that are not offered."""
    meta = pod.metadata
    keyed = _KEYED_FIELD.fullmatch(path)
    if keyed:
        return ((meta.labels if keyed[1] == "labels" else meta.annotations) or {}).get(keyed[2], "")
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"), address),
    }
    if path not in fields:
        raise _config_error(f"field {path!r} of the pod is not available as an environment variable here")
    return fields[path]


def _pairs(config_map: KeyRef | ObjectRef | None, secret: KeyRef | ObjectRef | None) -> list[tuple[Resource, Any]]:
    return [(kind, ref) for kind, ref in ((CONFIG_MAPS, config_map), (SECRETS, secret)) if ref is not None]


def _texts(resource: Resource, obj: dict[str, Any]) -> dict[str, str]:
    data = obj.get("data") or {}
    if resource is CONFIG_MAPS:
        return dict(data)
    try:
        return {key: base64.b64decode(value).decode() for key, value in data.items()}
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _config_error(f"secret {obj['metadata']['name']} does not contain text: {error}") from error


def _config_error(message: str) -> ContainerError:
    return ContainerError("CreateContainerConfigError", message)
