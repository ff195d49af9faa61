"""Probes and hooks of containers: each has one handler, and numbers that make sense."""

from __future__ import annotations

from collections.abc import Iterator

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.structure import Fault

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_ONE_SUCCESS = ("livenessProbe", "startupProbe")
_PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")
_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_SCHEMES = ("HTTP", "HTTPS")


def validate_handlers(container: Json, path: str) -> Iterator[Fault]:
    """Faults of the probes and hooks of a container."""
    for name, hook in (container.get("lifecycle") or {}).items():
        if name in ("postStart", "preStop"):
            yield from _handler(hook, f"{path}.lifecycle.{name}", _HOOK_HANDLERS)
    for name in _PROBES:
        if (probe := container.get(name)) is not None:
            yield from _handler(probe, f"{path}.{name}", _PROBE_HANDLERS)
            yield from _numbers(name, probe, f"{path}.{name}")


def _handler(holder: Json, path: str, known: tuple[str, ...]) -> Iterator[Fault]:
    given = [name for name in known if holder.get(name) is not None]
    if not given:
        yield faults.required(path, "must specify a handler type")
    for name in given[1:]:
        yield faults.forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    if given[:1] == ["exec"] and not holder["exec"].get("command"):
        yield faults.required(f"{path}.exec.command")
    if given[:1] == ["httpGet"]:
        port, scheme = holder["httpGet"].get("port"), holder["httpGet"].get("scheme", "HTTP")
        if isinstance(port, int) and not 0 < port < 65536:
            yield faults.invalid(f"{path}.httpGet.port", port, "must be between 1 and 65535, inclusive")
        if scheme not in _SCHEMES:
            yield faults.unsupported(f"{path}.httpGet.scheme", scheme, _SCHEMES)


def _numbers(name: str, probe: Json, path: str) -> Iterator[Fault]:
    for number in _NUMBERS:
        if probe.get(number, 0) < 0:
            yield faults.invalid(f"{path}.{number}", probe[number], "must be greater than or equal to 0")
    if name in _ONE_SUCCESS and probe.get("successThreshold", 1) != 1:
        yield faults.invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")
