"""What the node reads of a pod: its containers, hooks and probes, and its volumes.

The fields of lifecycle hooks and probes: what is done, and for a probe when and how often.

The volumes of a pod that a node can provide, and the fields that refer into the pod itself.

The fields of a pod that running it needs, on top of those that Dynamic Resource Allocation reads.
"""

from __future__ import annotations

from typing import Any

from dra_api.core import Container, ContainerPort, Pod, PodSpec, Volume
from dra_api.meta import Part
from dra_api.quantity import Quantity
from msgspec import field

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


# Where containers find the token of their service account, by a mount that an API server adds to every container.
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


class KeyRef(Part, frozen=True):
    """One key of a ConfigMap or Secret."""

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
    """A whole ConfigMap or Secret."""

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
    """What happens right after the start of a container, and before its end."""

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
