"""The fields of a pod that running it needs, and the values to which they refer.

Beside the fields that Dynamic Resource Allocation reads these are lifecycle hooks, probes, and the volumes that a node
can provide.

A container sees ``PATH`` and ``HOSTNAME`` as with every runtime, the address of the API server, the variables of
``envFrom`` and ``env``, and on top the variables of its CDI devices. It gets none of the node agent's own variables.
``$(NAME)`` in values, commands and arguments refers to variables defined before; ``$$`` becomes ``$`` everywhere, as in
Kubernetes. Variables and files take values from ConfigMaps and Secrets, and by the downward API from fields of the pod
and amounts of its containers.
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

from dra_api.core import Container, ContainerPort, Pod, PodSpec, Volume
from dra_api.meta import Part
from dra_api.values import Quantity, parse_quantity
from dra_kube import CONFIG_MAPS, SECRETS, Api, KubeError, NotFound, Resource
from msgspec import field

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.processes.process import Console


class ExecAction(Part, frozen=True):
    command: tuple[str, ...] = ()


class HttpHeader(Part, frozen=True):
    name: str = ""
    value: str = ""


class HttpGetAction(Part, frozen=True):
    path: str = "/"
    port: int | str = 0
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[HttpHeader, ...] | None = None


class TcpSocketAction(Part, frozen=True):
    port: int | str = 0
    host: str = ""


class GrpcAction(Part, frozen=True):
    port: int = 0
    service: str | None = None


class SleepAction(Part, frozen=True):
    seconds: int = 0


class Handler(Part, frozen=True):
    """One of these is set."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    grpc: GrpcAction | None = None
    sleep: SleepAction | None = None


class Probe(Handler, frozen=True):
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


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


# Where containers find the token of their service account, by a mount that an API server adds to every container.
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


class KeyRef(Part, frozen=True):
    name: str = ""
    key: str = ""
    optional: bool = False


class EnvSource(Part, frozen=True):
    """Where a variable's value comes from; one field is set."""

    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class EnvVar(Part, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvSource | None = None


class ObjectRef(Part, frozen=True):
    name: str = ""
    optional: bool = False


class EnvFrom(Part, frozen=True):
    """All keys of a ConfigMap or Secret as variables."""

    prefix: str = ""
    config_map_ref: ObjectRef | None = None
    secret_ref: ObjectRef | None = None


class VolumeMount(Part, frozen=True):
    """Where a container sees a volume, or the part of it at ``sub_path``."""

    name: str = ""
    mount_path: str = ""
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""


class RunPort(ContainerPort, frozen=True):
    name: str = ""


class Lifecycle(Part, frozen=True):
    post_start: Handler | None = None
    pre_stop: Handler | None = None


class RunContainer(Container, frozen=True):
    """A container with what is needed to start it."""

    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    working_dir: str = ""
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[EnvFrom, ...] | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None
    volume_devices: tuple[Any, ...] | None = None
    ports: tuple[RunPort, ...] | None = None
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False

    @property
    def console(self) -> Console:
        """What clients find when they attach to it."""
        return Console(self.stdin, self.stdin_once, self.tty)

    @property
    def not_carried_out(self) -> list[str]:
        """Fields that ask for what a plain process cannot have."""
        return ["volumeDevices"] if self.volume_devices else []

    @property
    def is_sidecar(self) -> bool:
        """For an init container: whether it keeps running beside the regular ones."""
        return self.restart_policy == "Always"


class RunPodSpec(PodSpec, frozen=True):
    containers: tuple[RunContainer, ...] | None = None
    init_containers: tuple[RunContainer, ...] | None = None
    ephemeral_containers: tuple[RunContainer, ...] | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    volumes: tuple[RunVolume, ...] | None = None


class RunPod(Pod, frozen=True):
    """A pod as the node agent reads it."""

    spec: RunPodSpec = RunPodSpec()

    @property
    def all_containers(self) -> tuple[RunContainer, ...]:
        """Init containers first, then regular ones, in the order of the specification; ephemeral ones come last."""
        spec = self.spec
        return (spec.init_containers or ()) + (spec.containers or ()) + (spec.ephemeral_containers or ())

    @property
    def has_ports(self) -> bool:
        """Whether containers listen on ports that are to be the pod's own."""
        return not self.spec.host_network and any(container.ports for container in self.all_containers)

    @property
    def wants_token(self) -> bool:
        """Whether the containers need a token: for a service account of their own, unless the pod says no."""
        spec = self.spec
        return spec.service_account_name not in ("", "default") and spec.automount_service_account_token is not False

    @property
    def grace_seconds(self) -> float:
        """How long containers may take to end: by the deletion, else by the specification."""
        deletion = self.metadata.deletion_grace_period_seconds
        own = self.spec.termination_grace_period_seconds
        return float(deletion if deletion is not None else own if own is not None else 30)


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

    return _REFERENCE.sub(lambda match: "$" if match[1] is None else variables.get(match[1], match[0]), text)


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
    server = urlsplit(api.connection.host)
    return server.hostname or "", server.port or (443 if server.scheme == "https" else 80)


async def pod_environment(api: Api, pod: RunPod, container: RunContainer, address: str) -> dict[str, str]:
    """The variables that the pod asks for. Raises ContainerError(CreateContainerConfigError)."""
    sources = PodObjects(api, pod.metadata.namespace)
    variables: dict[str, str] = {}
    value: str | None
    for keys in container.env_from or ():
        for resource, reference in _pairs(keys.config_map_ref, keys.secret_ref):
            content = await sources.content(resource, reference.name, reference.optional)
            variables |= {keys.prefix + key: _text(key, text) for key, text in content.items()}
    for entry in container.env or ():
        source = entry.value_from
        if source is None:
            value = expand(entry.value, variables)
        elif source.field_ref is not None:
            value = pod_field(pod, source.field_ref.field_path, address)
        elif source.resource_field_ref is not None:
            value = resource_field(pod, container, source.resource_field_ref)
        else:
            value = await _key(sources, source, entry.name)
        if value is not None:
            variables[entry.name] = value
    return variables


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
