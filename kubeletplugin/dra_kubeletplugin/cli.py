"""``dra-kubelet-plugin``: the drivers that come with the library, and the beginning of one of your own.

Exit codes: 0 stopped by a signal, 1 a fatal error, 2 wrong usage or unusable settings (the message says which).
Spec: plugin-helper.md section 7.1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from dra_api.version import VERSION
from dra_kube import KubeError

from . import Driver, PluginError, PluginSettings, Resources, SettingsError
from .command import FLAGS, failed, serve_monitored, set_up_logging
from .drivers.config_file import Config, ProcessConfig, read_file
from .drivers.hostdev.driver import HostdevDriver
from .drivers.hostdev.hotplug import Hotplug
from .drivers.hostdev.listing import listing
from .drivers.hostdev.looking import Looking
from .drivers.hostdev.reading import read_config
from .drivers.hostdev.scan import scan
from .drivers.hostdev.tree import HostTree
from .drivers.simulated import SimulatedDriver
from .drivers.simulated_config import SimulatedConfig, resources_of
from .scaffold import create


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except (PluginError, KubeError) as error:
        return failed("dra-kubelet-plugin", error)
    return 0


def _simulated(options: argparse.Namespace) -> None:
    set_up_logging(options.log_level)
    config = read_file(Path(options.config), SimulatedConfig) if options.config else SimulatedConfig()
    config = _overridden(config, options)
    if options.num_devices is not None:
        config = msgspec.structs.replace(config, pools=None)
    asyncio.run(_serve(SimulatedDriver(config.driver_name), config, options, partial(resources_of, config)))


def _hostdev(options: argparse.Namespace) -> None:
    set_up_logging(options.log_level)
    config = _overridden(read_config(Path(options.config)), options)
    tree = HostTree()
    look = partial(scan, config, tree)
    if options.list:
        found = look()
        print(listing(found), end="")
        if found.problems:
            raise SettingsError(f"{len(found.problems)} devices are left out, see leftOut")
        return
    hotplug = Hotplug(config, Looking(config, tree))
    driver = HostdevDriver(config.driver_name, look, hotplug.health)
    asyncio.run(_serve(driver, config, options, hotplug.resources))


def _new(options: argparse.Namespace) -> None:
    paths = create(options.name, options.folder)
    print(*paths, sep="\n")
    print(f"Now: pytest {paths[1]}, then python {paths[0]} --help")


async def _serve(
    driver: Driver,
    config: ProcessConfig,
    options: argparse.Namespace,
    resources: Callable[[], Resources | AsyncIterable[Resources]],
) -> None:
    if not config.node_name:
        raise SettingsError("the node name is missing: pass --node-name, set NODE_NAME, or nodeName in the file")
    settings = PluginSettings(
        driver_name=config.driver_name,
        node_name=config.node_name,
        registry_dir=config.plugin_registration_path,
        data_dir=Path(config.datadir) / config.driver_name,
        cdi_dir=config.cdi_dir,
        device_metadata=config.enable_device_metadata,
        rolling_update_uid=options.rolling_update_uid,
        api_rate=config.kube_api_qps,
        api_burst=config.kube_api_burst,
    )
    await serve_monitored(
        driver,
        settings,
        resources(),
        kubeconfig=config.kubeconfig,
        endpoint=config.http_endpoint,
        path=config.metrics_path,
    )


def _overridden(config: Config, options: argparse.Namespace) -> Config:
    """The file, overridden by NODE_NAME (as a DaemonSet sets it), overridden by flags."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    given = {name: given[name] for name in given.keys() & set(config.__struct_fields__)}
    if node := os.environ.get("NODE_NAME"):
        given.setdefault("node_name", node)
    return msgspec.structs.replace(config, **given)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices")
    return int(text)


_EPILOG = "Flags override NODE_NAME, which overrides the configuration file."
_FLAGS: dict[str, dict[str, Any]] = {
    "--drivername": {"metavar": "NAME", "dest": "driver_name", "help": "name of the driver"},
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
    "--kube-api-qps": {"metavar": "N", "type": float, "help": "requests per second that publish slices (50)"},
    "--kube-api-burst": {"metavar": "N", "type": int, "help": "requests at once that publish slices (100)"},
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
        epilog=_EPILOG,
    )
    simulated.set_defaults(run=_simulated)
    simulated.add_argument(
        "--config", metavar="FILE", help="YAML or JSON: driverName, nodeName, pools with their devices, ..."
    )
    simulated.add_argument(
        "--num-devices", metavar="N", type=_count, help="offer N plain devices instead of the file's pools (4)"
    )
    hostdev = drivers.add_parser(
        "hostdev",
        help="real devices of this host, described by a file",
        description="Offer devices of this host: whatever has a device node or a folder in sysfs. Defaults are in "
        "parentheses.",
        epilog=_EPILOG,
    )
    hostdev.set_defaults(run=_hostdev)
    hostdev.add_argument(
        "--config", metavar="FILE", required=True, help="YAML or JSON: which devices, and what containers get"
    )
    hostdev.add_argument("--list", action="store_true", help="print the devices that the file finds, and end")
    for command in (simulated, hostdev):
        for flag, properties in _FLAGS.items():
            command.add_argument(flag, **properties)
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
