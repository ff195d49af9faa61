"""The environment of a container: variables of the pod, then those of CDI.

A container sees ``PATH`` and ``HOSTNAME`` (which every runtime sets), the address of the API server, the variables of
``envFrom`` and ``env``, and on top those of its CDI devices. It gets none of the node agent's own variables.
``$(NAME)`` in values, commands and arguments refers to variables defined before; ``$$`` becomes ``$`` everywhere, as in
Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dra_kube import CONFIG_MAPS, SECRETS, Api, Resource

from .pod import EnvFrom, EnvSource, EnvVar, KeyRef, ObjectRef, RunContainer, RunPod
from .pod_fields import pod_field, resource_field
from .pod_objects import PodObjects, config_error

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; names that are not defined stay as they are."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def basic_environment(api: Api, search_path: str, hostname: str) -> dict[str, str]:
    """What every container has, whatever its pod says."""
    host, port = server_address(api)
    return {
        "PATH": search_path,
        "HOSTNAME": hostname,
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
    }


def server_address(api: Api) -> tuple[str, int]:
    """Host and port of the API server."""
    server = urlsplit(api.connection.host)
    return server.hostname or "", server.port or (443 if server.scheme == "https" else 80)


async def pod_environment(api: Api, pod: RunPod, container: RunContainer, address: str) -> dict[str, str]:
    """The variables that the pod asks for. Raises ContainerError(CreateContainerConfigError)."""
    sources = PodObjects(api, pod.metadata.namespace)
    variables: dict[str, str] = {}
    for source in container.env_from or ():
        variables.update(await _all_keys(sources, source))
    for entry in container.env or ():
        value = await _value(sources, pod, container, entry, variables, address)
        if value is not None:
            variables[entry.name] = value
    return variables


async def _all_keys(sources: PodObjects, source: EnvFrom) -> dict[str, str]:
    content: dict[str, bytes] = {}
    for resource, reference in _pairs(source.config_map_ref, source.secret_ref):
        content |= await sources.content(resource, reference.name, reference.optional)
    return {source.prefix + key: _text(key, value) for key, value in content.items()}


async def _value(
    sources: PodObjects,
    pod: RunPod,
    container: RunContainer,
    entry: EnvVar,
    variables: Mapping[str, str],
    address: str,
) -> str | None:
    source = entry.value_from
    if source is None:
        return expand(entry.value, variables)
    if source.field_ref is not None:
        return pod_field(pod, source.field_ref.field_path, address)
    if source.resource_field_ref is not None:
        return resource_field(pod, container, source.resource_field_ref)
    return await _key(sources, source, entry.name)


async def _key(sources: PodObjects, source: EnvSource, variable: str) -> str | None:
    for resource, reference in _pairs(source.config_map_key_ref, source.secret_key_ref):
        content = await sources.content(resource, reference.name, reference.optional)
        if reference.key in content:
            return _text(reference.key, content[reference.key])
        if reference.optional:
            return None
        raise config_error(f"couldn't find key {reference.key} in {resource.kind} {reference.name}")
    raise config_error(f"environment variable {variable}: this kind of valueFrom is not supported here")


def _pairs(config_map: KeyRef | ObjectRef | None, secret: KeyRef | ObjectRef | None) -> list[tuple[Resource, Any]]:
    return [(kind, ref) for kind, ref in ((CONFIG_MAPS, config_map), (SECRETS, secret)) if ref is not None]


def _text(key: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise config_error(f"key {key} does not contain text: {error}") from error
