"""``dra-kubelet-plugin``: the drivers that come with the library, and the beginning of one of your own.

Exit codes: 0 stopped by a signal, 1 a fatal error, 2 wrong usage or unusable settings (the message says which).
Spec: plugin-helper.md section 7.1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_api import VERSION
from dra_api.console import needing

from .commands import CONTROLLER_FLAGS, FLAGS


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = parser().parse_args(arguments)
    return needing("plugin", "dra-kubelet-plugin", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from .commands.subcommands import run  # not for help, and not for wrong usage

    return run(options)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices")
    return int(text)


_EPILOG = "Flags override NODE_NAME, which overrides the configuration file."
_FLAGS: dict[str, dict[str, Any]] = {
    "--drivername": {"metavar": "NAME", "dest": "driver_name", "help": "name of the driver"},
    "--plugin-registration-path": {
        "metavar": "DIR",
        "help": "directory that the kubelet watches for plugins (plugins_registry below --kubelet-dir)",
    },
    "--datadir": {
        "metavar": "DIR",
        "help": "parent of the driver's data directory (plugins below --kubelet-dir)",
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
    parser = argparse.ArgumentParser(
        prog="dra-kubelet-plugin",
        description="Run a DRA driver on this node.",
        epilog="Example: %(prog)s hostdev --config devices.yaml --node-name worker-1",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    drivers = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    simulated = drivers.add_parser(
        "simulated",
        help="devices that exist only in a configuration file",
        description="Offer simulated devices on this node. Containers see their devices as environment variables. "
        "Defaults are in parentheses.",
        epilog=_EPILOG,
    )
    _add_simulated(simulated)
    hostdev = drivers.add_parser(
        "hostdev",
        help="real devices of this host, described by a file",
        description="Offer devices of this host: whatever has a device node or a folder in sysfs. Defaults are in "
        "parentheses.",
        epilog=_EPILOG,
    )
    _add_hostdev(hostdev)
    for command in (simulated, hostdev):
        for flag, properties in _FLAGS.items():
            command.add_argument(flag, **properties)
    controller = drivers.add_parser(
        "simulated-controller",
        help="simulated devices that belong to no node: run it once a cluster",
        description="Publish the pools of the file that have allNodes, a nodeSelector or perDeviceNodeSelection, and "
        "report the devices of claims as attached. One process leads, by the Lease NAME-controller. Defaults are in "
        "parentheses.",
        epilog="Flags override the configuration file.",
    )
    _add_simulated_controller(controller)
    new = drivers.add_parser(
        "new",
        help="write a driver of your own: code, tests, image, manifests",
        description="Write the first files of a driver.",
    )
    _add_new(new)
    return parser


def _add_simulated(simulated: argparse.ArgumentParser) -> None:
    simulated.add_argument(
        "--config", metavar="FILE", help="YAML or JSON: driverName, nodeName, pools with their devices, ..."
    )
    simulated.add_argument(
        "--num-devices", metavar="N", type=_count, help="offer N plain devices instead of the file's pools (4)"
    )


def _add_simulated_controller(controller: argparse.ArgumentParser) -> None:
    controller.add_argument(
        "--config", metavar="FILE", required=True, help="YAML or JSON: the file of `simulated`, with its pools"
    )
    controller.add_argument("--drivername", **_FLAGS["--drivername"])
    for flag, properties in CONTROLLER_FLAGS.items():
        controller.add_argument(flag, **properties)


def _add_hostdev(hostdev: argparse.ArgumentParser) -> None:
    hostdev.add_argument(
        "--config", metavar="FILE", required=True, help="YAML or JSON: which devices, and what containers get"
    )
    hostdev.add_argument("--list", action="store_true", help="print the devices that the file finds, and end")


def _add_new(new: argparse.ArgumentParser) -> None:
    new.add_argument("name", metavar="NAME", help="name of the driver, such as gpu.example.com")
    new.add_argument(
        "folder", metavar="FOLDER", nargs="?", type=Path, help="folder to write to (the name up to its first dot)"
    )
    new.add_argument(
        "--network-attached",
        action="store_true",
        help="for devices that belong to no node: with a controller that publishes and attaches them",
    )


if __name__ == "__main__":
    sys.exit(main())
