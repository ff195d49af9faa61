"""``dra-kubelet-plugin``: the drivers that come with the library, and the beginning of one of your own.

Exit codes: 0 stopped by a signal, 1 a fatal error or unusable settings (the message says which), 2 wrong usage.
Spec: plugin-helper.md section 7.1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from dra_api.version import VERSION
from dra_kube import KubeError

from . import PluginError, PluginSettings, SettingsError
from .command import FLAGS, serve_monitored, set_up_logging
from .drivers.simulated import SimulatedDriver
from .drivers.simulated_config import SimulatedConfig, read_config, resources_of
from .scaffold import create


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except (PluginError, KubeError) as error:
        print(f"dra-kubelet-plugin: error: {error}", file=sys.stderr)
        return 1
    return 0


def _run_simulated(options: argparse.Namespace) -> None:
    set_up_logging(options.log_level)
    asyncio.run(_simulated(_configuration(options), options.rolling_update_uid))


def _new(options: argparse.Namespace) -> None:
    paths = create(options.name, options.folder)
    print(*paths, sep="\n")
    print(f"Now: pytest {paths[1]}, then python {paths[0]} --help")


async def _simulated(config: SimulatedConfig, rolling_update_uid: str) -> None:
    if not config.node_name:
        raise SettingsError("the node name is missing: pass --node-name, set NODE_NAME, or nodeName in the file")
    settings = PluginSettings(
        driver_name=config.driver_name,
        node_name=config.node_name,
        registry_dir=config.plugin_registration_path,
        data_dir=Path(config.datadir) / config.driver_name,
        cdi_dir=config.cdi_dir,
        device_metadata=config.enable_device_metadata,
        rolling_update_uid=rolling_update_uid,
    )
    await serve_monitored(
        SimulatedDriver(config.driver_name),
        settings,
        resources_of(config),
        kubeconfig=config.kubeconfig,
        endpoint=config.http_endpoint,
        path=config.metrics_path,
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
    **FLAGS,
    "--enable-device-metadata": {
        "action": "store_const",
        "const": True,
        "help": "give containers a file that describes their devices",
    },
    "--metrics-path": {"metavar": "PATH", "help": "URL path of the metrics (/metrics)"},
}


def parser() -> argparse.ArgumentParser:
    """What the command understands; completion scripts are made from it (docs/completion.md)."""
    parser = argparse.ArgumentParser(prog="dra-kubelet-plugin", description="Run a DRA driver on this node.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    drivers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    simulated = drivers.add_parser(
        "simulated",
        help="devices that exist only in a configuration file",
        description="Offer simulated devices on this node. Containers see their devices as environment variables. "
        "Defaults are in parentheses.",
        epilog="Flags override NODE_NAME, which overrides the configuration file.",
    )
    for flag, properties in _FLAGS.items():
        simulated.add_argument(flag, **properties)
    simulated.set_defaults(run=_run_simulated)
    new = drivers.add_parser(
        "new",
        help="write a driver of your own: code, tests, image, manifests",
        description="Write the files of a driver to begin with.",
    )
    new.add_argument("name", metavar="NAME", help="name of the driver, such as gpu.example.com")
    new.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, help="where to (the name up to its first dot)")
    new.set_defaults(run=_new)
    return parser


if __name__ == "__main__":
    sys.exit(main())
