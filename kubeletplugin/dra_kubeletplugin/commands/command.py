"""A driver as a command: flags, environment, log, and errors as one line.

``run`` is all that a driver's main program needs::

    if __name__ == "__main__":
        dra.run(HelloDriver(), "hello.example.com", [dra.device("hello-0")])
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

from dra_api.resource import Device
from dra_kube import ConnectionSettingsError, KubeError, for_people

from dra_kubeletplugin.commands import CONTROLLER_FLAGS, FLAGS, KUBELET_DIR
from dra_kubeletplugin.controller import Controller, lead
from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.errors import DevicesFailed, PluginError, SettingsError
from dra_kubeletplugin.files.claim_files import CDI_DIR
from dra_kubeletplugin.kubelet import request_id
from dra_kubeletplugin.monitoring import Metrics, monitored
from dra_kubeletplugin.plugin import KubeletPlugin
from dra_kubeletplugin.process import run_to_the_end, serve
from dra_kubeletplugin.settings import PluginSettings
from dra_kubeletplugin.slices import Pool, Resources

log = logging.getLogger(__name__)

Offer = Iterable[Device] | Pool | Resources
"""Devices of the node's pool, that pool, or several pools by name, in which ``{nodeName}`` stands for the node's."""


def run(
    driver: Driver,
    name: str,
    devices: Offer | AsyncIterable[Offer] | None,
    arguments: Sequence[str] | None = None,
    *,
    beside: Callable[[KubeletPlugin], AbstractAsyncContextManager[object]] = nullcontext,
    **settings: Any,
) -> None:
    """The main program of a driver ``name``, until SIGTERM.

    ``devices`` are devices in a pool named like the node, that pool with its counters, or pools by name. An
    asynchronous iterator is for devices that come and go: each value has all devices. None is for drivers whose devices
    a controller publishes. ``beside`` is entered while the plugin runs, and ``settings`` are further fields of
    PluginSettings, such as ``device_metadata=True``. An error ends the process with one line: exit code 2 for settings
    that cannot be used, 1 for all else. ``arguments`` are those of the command line unless given.
    """
    options = _parser(driver, name).parse_args(arguments)
    set_up_logging(options.log_level, options.log_format)
    try:
        run_to_the_end(_run(driver, name, devices, options, beside, settings))
    except (PluginError, KubeError) as error:
        raise SystemExit(failed(name, error, options.log_format)) from None


def run_controller(
    controller: Controller,
    name: str,
    resources: Resources | AsyncIterable[Resources],
    arguments: Sequence[str] | None = None,
) -> None:
    """The main program of the controller of a driver ``name``, until SIGTERM.

    ``resources`` are pools with ``all_nodes`` or a ``node_selector``, or an asynchronous iterator of them. An error
    ends the process with one line, as for ``run``; so does losing the Lease.
    """
    parser = argparse.ArgumentParser(
        description=f"Run the controller of the DRA driver {name}. Defaults in parentheses.",
        epilog="Example: %(prog)s --kubeconfig kubeconfig",
    )
    for flag, properties in CONTROLLER_FLAGS.items():
        parser.add_argument(flag, **properties)
    options = parser.parse_args(arguments)
    set_up_logging(options.log_level, options.log_format)
    try:
        run_to_the_end(lead(controller, name, resources, kubeconfig=options.kubeconfig, namespace=options.namespace))
    except (PluginError, KubeError) as error:
        raise SystemExit(failed(name, error, options.log_format)) from None


def failed(name: str, error: PluginError | KubeError, log_format: str = "text") -> int:
    """Say in one line why the command ``name`` ends; returns its exit code."""
    if log_format == "json":
        log.critical("%s", for_people(error))
    else:
        print(f"{name}: error: {for_people(error)}", file=sys.stderr)
    return 2 if isinstance(error, SettingsError | ConnectionSettingsError) else 1


async def serve_monitored(
    driver: Driver,
    settings: PluginSettings,
    resources: Resources | AsyncIterable[Resources] | None,
    *,
    kubeconfig: str | None,
    endpoint: str,
    path: str,
    beside: Callable[[KubeletPlugin], AbstractAsyncContextManager[object]] = nullcontext,
) -> None:
    """``serve``, with metrics and probes on ``endpoint`` unless that is empty."""

    @asynccontextmanager
    async def both(plugin: KubeletPlugin) -> AsyncIterator[None]:
        async with probes.about(plugin), beside(plugin):
            yield

    if not settings.node_name:
        raise SettingsError("the node name is missing: pass --node-name, or set NODE_NAME")
    metrics = Metrics()
    if not endpoint:
        await serve(driver, settings, resources, kubeconfig=kubeconfig, interceptors=[metrics], beside=beside)
        return
    async with monitored(metrics, endpoint, path) as probes:
        await serve(driver, settings, resources, kubeconfig=kubeconfig, interceptors=[metrics], beside=both)


class _JsonFormatter(logging.Formatter):
    """A JSON object a line: what programs that collect logs read."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := getattr(record, "request", "-")) != "-":
            entry["request"] = request
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def set_up_logging(level: str, log_format: str = "text") -> None:
    """Log to the standard error output, with the number of the kubelet's call."""

    def add_request(record: logging.LogRecord) -> bool:
        record.request = request_id.get() or "-"
        return True

    handler = logging.StreamHandler()
    handler.addFilter(add_request)
    text = logging.Formatter("%(asctime)s %(levelname)s [%(request)s] %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])


async def _run(
    driver: Driver,
    name: str,
    devices: Offer | AsyncIterable[Offer] | None,
    options: argparse.Namespace,
    beside: Callable[[KubeletPlugin], AbstractAsyncContextManager[object]],
    more: Mapping[str, Any],
) -> None:
    node = options.node_name or os.environ.get("NODE_NAME", "")
    kubelet_dir = options.kubelet_dir or KUBELET_DIR
    of_flags = {
        "driver_name": name,
        "node_name": node,
        "registry_dir": f"{kubelet_dir}/plugins_registry",
        "data_dir": f"{kubelet_dir}/plugins/{name}",
        "cdi_dir": options.cdi_dir or CDI_DIR,
        "rolling_update_uid": options.rolling_update_uid,
        "scheduler": options.scheduler,
    }
    try:
        settings = PluginSettings(**{**of_flags, **more, **{name: value for name, value in of_flags.items() if value}})
    except TypeError as error:
        raise SettingsError(f"run was called with a setting that there is not: {error}") from error
    await serve_monitored(
        driver,
        settings,
        _pools(node, devices),
        kubeconfig=options.kubeconfig,
        endpoint=options.http_endpoint or "",
        path="/metrics",
        beside=beside,
    )


def _pools(node: str, devices: Offer | AsyncIterable[Offer] | None) -> Resources | AsyncIterable[Resources] | None:
    if devices is None:
        return None
    if isinstance(devices, AsyncIterable):
        return (_resources(node, current) async for current in devices)
    try:
        return _resources(node, devices)
    except Exception as error:
        log.error("the driver's devices failed", exc_info=error)
        raise DevicesFailed(error) from error


def _resources(node: str, offer: Offer) -> Resources:
    """Return the offered pools. Raises TypeError for other values."""
    if isinstance(offer, Pool):
        return {node: offer}
    if not isinstance(offer, Mapping):
        return {node: Pool.of(offer)}
    for name, pool in offer.items():
        if not isinstance(pool, Pool):
            raise TypeError(f"pool {name!r} is {type(pool).__name__}: make it with Pool.of(devices)")
    return {name.replace("{nodeName}", node): pool for name, pool in offer.items()}


def _parser(driver: Driver, name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=f"Run the DRA driver {name} ({type(driver).__name__}) on this node. Defaults are in parentheses.",
        epilog="Example: %(prog)s --node-name worker-1 --kubeconfig kubeconfig",
    )
    for flag, properties in FLAGS.items():
        parser.add_argument(flag, **properties)
    return parser
