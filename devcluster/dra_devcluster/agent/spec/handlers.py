"""The fields of lifecycle hooks and probes: what is done, and for a probe when and how often."""

from __future__ import annotations

from dra_api.meta import Part


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
