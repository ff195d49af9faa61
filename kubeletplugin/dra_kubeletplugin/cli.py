"""``dra-kubelet-plugin``: the drivers that come with the library, each as a process of its own.

Exit codes: 0 stopped by a signal, 1 a fatal error or unusable settings (the message says which), 2 wrong usage.
Spec: plugin-helper.md section 7.1.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from dra_api.version import VERSION
from dra_kube import KubeError

from . import CdiError, KubeletPlugin, PluginError, PluginSettings, SettingsError
from .drivers.simulated import SimulatedDriver
from .drivers.simulated_config import SimulatedConfig, read_config, resources_of
from .interceptor import request_id
from .monitoring import Metrics, address_of, monitored
from .process import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = parser().parse_args(arguments)
    _set_up_logging(options.log_level)
    try:
        asyncio.run(_simulated(_configuration(options), options.rolling_update_uid))
    except (PluginError, CdiError, KubeError) as error:
        print(f"dra-kubelet-plugin: error: {error}", file=sys.stderr)
        return 1
    return 0


async def _simulated(config: SimulatedConfig, rolling_update_uid: str) -> None:
    if not config.node_name:
        raise SettingsError("the node name is missing: pass --node-name, set NODE_NAME, or nodeName in the file")
    settings = PluginSettings(
        driver_name=config.driver_name,
        node_name=config.node_name,
        registry_dir=config.plugin_registration_path,
        data_dir=Path(config.datadir) / config.driver_name,
        cdi_dir=config.cdi_dir,
        rolling_update_uid=rolling_update_uid,
    )
    resources = resources_of(config)
    if config.http_endpoint:
        address_of(config.http_endpoint)  # before anything is created on disk
    metrics = Metrics()

    def beside(plugin: KubeletPlugin) -> AbstractAsyncContextManager[object]:
        if not config.http_endpoint:
            return nullcontext()
        return monitored(plugin, metrics, config.http_endpoint, config.metrics_path)

    await serve(
        SimulatedDriver(config.driver_name),
        settings,
        resources,
        kubeconfig=config.kubeconfig,
        interceptors=[metrics],
        beside=beside,
    )


def _configuration(options: argparse.Namespace) -> SimulatedConfig:
    """The file, overridden by NODE_NAME (as a DaemonSet sets it), overridden by flags."""
    config = read_config(Path(options.config) if options.config else None)
    given = {name: value for name, value in vars(options).items() if value is not None}
    given = {name: given[name] for name in given.keys() & set(config.__struct_fields__)}
    if node := os.environ.get("NODE_NAME"):
        given.setdefault("node_name", node)
    if "num_devices" in given:
        given["pools"] = None
    return msgspec.structs.replace(config, **given)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices")
    return int(text)


_FLAGS: dict[str, dict[str, Any]] = {
    "--config": {"metavar": "FILE", "help": "YAML or JSON: driverName, nodeName, pools with their devices, ..."},
    "--kubeconfig": {"metavar": "FILE", "help": "path to the kubeconfig file (KUBECONFIG, in-cluster, ~/.kube/config)"},
    "--node-name": {"metavar": "NAME", "help": "name of this node (NODE_NAME)"},
    "--drivername": {"metavar": "NAME", "dest": "driver_name", "help": "name of the driver (test-driver.cdi.k8s.io)"},
    "--num-devices": {"metavar": "N", "type": _count, "help": "offer N plain devices instead of the file's pools (4)"},
    "--plugin-registration-path": {
        "metavar": "DIR",
        "help": "directory that the kubelet watches for plugins (/var/lib/kubelet/plugins_registry)",
    },
    "--datadir": {
        "metavar": "DIR",
        "help": "parent of the driver's data directory (/var/lib/kubelet/plugins)",
    },
    "--cdi-dir": {"metavar": "DIR", "help": "directory for CDI files; created if missing (/var/run/cdi)"},
    "--rolling-update-uid": {
        "metavar": "UID",
        "default": "",
        "help": "uid of the plugin's pod; set it if instances overlap during an update",
    },
    "--http-endpoint": {"metavar": "HOST:PORT", "help": "serve metrics, /healthz and /readyz here (off)"},
    "--metrics-path": {"metavar": "PATH", "help": "URL path of the metrics (/metrics)"},
    "--log-level": {
        "default": "info",
        "choices": ["debug", "info", "warning", "error"],
        "help": "debug logs each call of the kubelet (info)",
    },
}


def parser() -> argparse.ArgumentParser:
    """What the command understands; completion scripts are made from it (docs/completion.md)."""
    parser = argparse.ArgumentParser(prog="dra-kubelet-plugin", description="Run a DRA driver on this node.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    drivers = parser.add_subparsers(title="drivers", required=True, metavar="DRIVER")
    simulated = drivers.add_parser(
        "simulated",
        help="devices that exist only in a configuration file",
        description="Offer simulated devices on this node. Containers see their devices as environment variables. "
        "Defaults are in parentheses.",
        epilog="Flags override NODE_NAME, which overrides the configuration file.",
    )
    for flag, properties in _FLAGS.items():
        simulated.add_argument(flag, **properties)
    return parser


def _set_up_logging(level: str) -> None:
    def add_request(record: logging.LogRecord) -> bool:
        record.request = request_id.get() or "-"
        return True

    handler = logging.StreamHandler()
    handler.addFilter(add_request)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s [%(request)s] %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
