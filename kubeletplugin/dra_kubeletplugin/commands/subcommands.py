"""What the sub-commands of ``dra-kubelet-plugin`` do, apart from the command line, which has to show help at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from dra_api.command_line import path_word, shell
from dra_kube import KubeError

from dra_kubeletplugin import Driver, KubeletPlugin, PluginError, PluginSettings, Resources, SettingsError
from dra_kubeletplugin.drivers.config_file import Config, ProcessConfig, read_file
from dra_kubeletplugin.drivers.hostdev.config import read_config
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver
from dra_kubeletplugin.drivers.hostdev.hotplug import Hotplug, Looking, replugged
from dra_kubeletplugin.drivers.hostdev.interfaces import InPods
from dra_kubeletplugin.drivers.hostdev.scan import listing, scan
from dra_kubeletplugin.drivers.hostdev.tree import HostTree
from dra_kubeletplugin.drivers.simulated import SimulatedConfig, SimulatedDriver, resources_of
from dra_kubeletplugin.ending import run_to_the_end

from .command import failed, serve_monitored, set_up_logging
from .scaffold import create


def run(options: argparse.Namespace) -> int:
    """Carry out the sub-command; returns the exit code."""
    try:
        COMMANDS[options.command](options)
    except (PluginError, KubeError) as error:
        return failed("dra-kubelet-plugin", error, getattr(options, "log_format", "text"))
    return 0


def _simulated(options: argparse.Namespace) -> None:
    set_up_logging(options.log_level, options.log_format)
    config = read_file(Path(options.config), SimulatedConfig) if options.config else SimulatedConfig()
    config = _overridden(config, options)
    if options.num_devices is not None:
        config = msgspec.structs.replace(config, pools=None)
    run_to_the_end(_serve(SimulatedDriver(config.driver_name), config, options, partial(resources_of, config)))


def _hostdev(options: argparse.Namespace) -> None:
    set_up_logging(options.log_level, options.log_format)
    config = _overridden(read_config(Path(options.config)), options)
    tree = HostTree()
    if options.list:
        found = scan(config, tree)
        print(listing(config, tree, found), end="")
        if found.problems:
            raise SettingsError(f"{len(found.problems)} devices are left out, see leftOut")
        return
    looking, in_pods = Looking(config, tree), InPods(tree)
    hotplug = Hotplug(config, looking, in_pods=in_pods)
    driver = HostdevDriver(config.driver_name, looking.thoroughly, hotplug.health, in_pods)
    run_to_the_end(_serve(driver, config, options, hotplug.resources, partial(replugged, hotplug)))


def _new(options: argparse.Namespace) -> None:
    paths = create(options.name, options.folder, network_attached=options.network_attached)
    print(*paths, sep="\n")
    driver, tests = (path_word(path) for path in paths[:2])
    print(f"Now: {shell('pytest', tests)}, then {shell('python', driver, '--help')}")


async def _serve(
    driver: Driver,
    config: ProcessConfig,
    options: argparse.Namespace,
    resources: Callable[[], Resources | AsyncIterable[Resources]],
    beside: Callable[[KubeletPlugin], AbstractAsyncContextManager[object]] = nullcontext,
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
        scheduler=options.scheduler,
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
        beside=beside,
    )


def _overridden(config: Config, options: argparse.Namespace) -> Config:
    """The file, overridden by NODE_NAME (as a DaemonSet sets it), overridden by flags."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    if directory := given.get("kubelet_dir"):
        below = {"plugin_registration_path": f"{directory}/plugins_registry", "datadir": f"{directory}/plugins"}
        given = below | given
    given = {name: given[name] for name in given.keys() & set(config.__struct_fields__)}
    if node := os.environ.get("NODE_NAME"):
        given.setdefault("node_name", node)
    return msgspec.structs.replace(config, **given)


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], None]]] = {
    "simulated": _simulated,
    "hostdev": _hostdev,
    "new": _new,
}
