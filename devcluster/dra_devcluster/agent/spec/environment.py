"""What a pod's texts refer to: variables, its own fields, ConfigMaps and Secrets.

The downward API: fields of a pod and amounts of its containers as text, for variables and files. No I/O here.

The ConfigMaps and Secrets that a pod refers to, for its environment and its volumes.

The environment of a container: variables of the pod, then those of CDI.

A container sees ``PATH`` and ``HOSTNAME`` (which every runtime sets), the address of the API server, the variables of
``envFrom`` and ``env``, and on top those of its CDI devices. It gets none of the node agent's own variables.
``$(NAME)`` in values, commands and arguments refers to variables defined before; ``$$`` becomes ``$`` everywhere, as in
Kubernetes.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any
from urllib.parse import urlsplit

from dra_api.quantity import Quantity, parse_quantity
from dra_kube import CONFIG_MAPS, SECRETS, Api, KubeError, NotFound, Resource

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.spec.pod import (
    EnvFrom,
    EnvSource,
    EnvVar,
    KeyRef,
    ObjectRef,
    ResourceFieldRef,
    RunContainer,
    RunPod,
)

_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_ONE = parse_quantity("1")


def pod_field(pod: RunPod, path: str, address: str) -> str:
    """A field of the pod. Raises ContainerError for fields that are not offered."""
    meta = pod.metadata
    keyed = _KEYED_FIELD.fullmatch(path)
    if keyed:
        return ((meta.labels if keyed[1] == "labels" else meta.annotations) or {}).get(keyed[2], "")
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": _lines(meta.labels),
        "metadata.annotations": _lines(meta.annotations),
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        **dict.fromkeys(("status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs"), address),
    }
    if path not in fields:
        raise config_error(f"field {path!r} of the pod is not available here")
    return fields[path]


def resource_field(pod: RunPod, container: RunContainer | None, reference: ResourceFieldRef) -> str:
    """An amount of a container (the named one, else the given one) in units of the divisor, rounded up.

    A limit that is not set is what the machine has. Raises ContainerError for an unknown container or amount.
    """
    named = {one.name: one for one in pod.all_containers}
    owner = named.get(reference.container_name) if reference.container_name else container
    kind, _, name = reference.resource.partition(".")
    if owner is None or kind not in ("limits", "requests") or not name:
        raise config_error(f"{reference.resource!r} of container {reference.container_name!r} is not available here")
    amounts = (owner.resources.limits if kind == "limits" else owner.resources.requests) or {}
    amount = amounts.get(name) or (_machine(name) if kind == "limits" else None)
    divisor = reference.divisor if reference.divisor is not None and reference.divisor.nanos else _ONE
    if amount is None:
        return "0"
    return str((Decimal(amount.nanos) / divisor.nanos).to_integral_value(ROUND_CEILING))


def _machine(name: str) -> Quantity | None:
    if name == "cpu":
        return parse_quantity(str(os.cpu_count() or 1))
    if name == "memory":
        return parse_quantity(str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    return None


def _lines(values: dict[str, str] | None) -> str:
    return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted((values or {}).items()))


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
