"""The work of the sub-commands of ``dra-kubelet-plugin``. The command line is apart, to show help at once.

``new`` writes the files of a driver to begin with, made from ``template/``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from string import Template
from typing import Final

import msgspec
from dra_api import VERSION
from dra_api.command_line import path_word, shell
from dra_kube import KubeError

from dra_kubeletplugin import Driver, KubeletPlugin, PluginError, PluginSettings, Resources, SettingsError
from dra_kubeletplugin.commands.command import failed, serve_monitored, set_up_logging
from dra_kubeletplugin.controller import lead
from dra_kubeletplugin.drivers import Config, ProcessConfig, read_file
from dra_kubeletplugin.drivers.hostdev.config import read_config
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver
from dra_kubeletplugin.drivers.hostdev.facts import HostTree
from dra_kubeletplugin.drivers.hostdev.hotplug import Hotplug, Looking, replugged
from dra_kubeletplugin.drivers.hostdev.interfaces import InPods
from dra_kubeletplugin.drivers.hostdev.scan import listing, scan
from dra_kubeletplugin.drivers.simulated import (
    SimulatedConfig,
    SimulatedController,
    SimulatedDriver,
    network_resources_of,
    resources_of,
)
from dra_kubeletplugin.process import run_to_the_end

_TEMPLATES = Path(__file__).parent / "template"
_LONGEST_LABEL_CHARACTERS = 40  # of the first label of a name; names of objects are made from it


def create(name: str, folder: Path | None = None, *, network_attached: bool = False) -> list[Path]:
    """Write a driver ``name``, its tests with a workflow for them, image and manifests; returns the files.

    With ``network_attached`` a controller publishes and attaches the devices, and they belong to no node. The folder is
    called like the first label of the name unless given. Raises SettingsError for a name that no driver can have, and
    for files that exist.
    """
    PluginSettings(driver_name=name)
    short = name.partition(".")[0][:_LONGEST_LABEL_CHARACTERS].rstrip("-")
    words = short.split("-")
    module = "_".join([*words, "driver"])
    values = {
        "name": name,
        "short": short,
        "module": module,
        "program": f"{short}-driver",
        "class_name": "".join(word.capitalize() for word in [*words, "driver"]),
        "variable": "_".join([*words, "device"]).upper(),
        "version": VERSION,
    }
    files = {
        f"{module}.py": "driver.py",
        f"test_{module}.py": "test_driver.py",
        "conftest.py": "conftest.py",
        "pyproject.toml": "pyproject.toml",
        ".github/workflows/test.yaml": "workflow.yaml",
        "Dockerfile": "Dockerfile",
        f"{module}.yaml": "driver.yaml",
        "pod.yaml": "pod.yaml",
    }
    if network_attached:
        files = {
            f"{module}.py": "node.py",
            f"test_{module}.py": "test_controller.py",
            f"{module}_controller.py": "controller.py",
            **{file: template for file, template in list(files.items())[2:] if template != "conftest.py"},
        }
    folder = folder or Path(short)
    paths = [folder / file for file in files]
    if existing := [str(path) for path in paths if path.exists()]:
        raise SettingsError(f"{', '.join(existing)} exists: choose another folder")
    try:
        for path, template in zip(paths, files.values(), strict=True):
            text = _template(template)
            path.parent.mkdir(parents=True, exist_ok=True)
            if network_attached and template in _OF_THE_NODE:
                text = _OF_THE_NODE[template](text)
            path.write_text(Template(text).substitute(values))
            if text.startswith("#!"):
                path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise SettingsError(f"cannot write the driver into {folder}: {error}") from error
    return paths


def _template(name: str) -> str:
    return (_TEMPLATES / f"{name}.txt").read_text()


def _with_controller_image(dockerfile: str) -> str:
    *lines, entry = dockerfile.splitlines()
    return "\n".join([*lines, "COPY ${module}_controller.py /usr/local/bin/$program-controller", entry, ""])


def _without_kit(workflow: str) -> str:
    """Return the workflow without the kit, which judges drivers that publish the devices of a node."""
    lines = workflow.replace(
        ": first its own tests, then dra-driver-test as kubelets and nodes treat it", ""
    ).splitlines()
    return "\n".join([*lines[: lines.index("      - run: >-")], ""])


def _with_controller(manifest: str) -> str:
    """Return the manifest with a controller. It writes slices and events; the node part has no rights to do so."""
    parts = manifest.split("---\n")
    events = [_of_the_controller(part) for part in parts if "$program-events" in part]
    gone = ("$program-resourceslices", "$program-events", "kind: Role\n", "kind: RoleBinding\n")
    kept = [part for part in parts if not any(each in part for each in gone)]
    node, _, rest = "---\n".join(kept).partition("  - apiGroups: [resource.k8s.io]\n    resources: [resourceslices]\n")
    controller, head, deployment = _template("controller.yaml").partition("apiVersion: apps/v1\n")
    node += rest[rest.index("---\n") :]  # without the rest of the rules
    return node + controller + "".join(f"{event}---\n" for event in events) + head + deployment


def _of_the_controller(policy: str) -> str:
    for old, new in (("$program-events", "$program-controller-events"), ("by-the-plugin", "by-the-controller"),
                     (':$program"', ':$program-controller"'), ("The driver", "The controller")):  # fmt: skip
        policy = policy.replace(old, new)
    return policy


_OF_THE_NODE: Final = {
    "Dockerfile": _with_controller_image,
    "driver.yaml": _with_controller,
    "workflow.yaml": _without_kit,
}


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


def _simulated_controller(options: argparse.Namespace) -> None:
    set_up_logging(options.log_level, options.log_format)
    config = _overridden(read_file(Path(options.config), SimulatedConfig), options)
    pools = network_resources_of(config)
    controller = SimulatedController(config.driver_name, pools)
    run_to_the_end(
        lead(controller, config.driver_name, pools, kubeconfig=config.kubeconfig, namespace=options.namespace)
    )


def _hostdev(options: argparse.Namespace) -> None:
    set_up_logging(options.log_level, options.log_format)
    config = _overridden(read_config(Path(options.config)), options)
    tree = HostTree(addresses=_addresses(os.environ.get("HOST_IPS", "")))
    if options.list:
        found = scan(config, tree)
        print(listing(config, tree, found), end="")
        if found.problems:
            left_out = len(found.problems)
            raise SettingsError(f"{left_out} device{'s are' if left_out > 1 else ' is'} left out, see leftOut")
        return
    in_pods = InPods(tree)
    looking = Looking(config, tree, held=in_pods.all_devices)
    hotplug = Hotplug(config, looking, in_pods=in_pods)
    driver = HostdevDriver(config.driver_name, looking.thoroughly, hotplug.health, in_pods)
    run_to_the_end(_serve(driver, config, options, hotplug.resources, partial(replugged, hotplug)))


def _addresses(text: str) -> tuple[str, ...]:
    """The node's addresses, as the field ``status.hostIPs`` of a pod gives them. Raises SettingsError."""
    addresses = tuple(text.split(",")) if text else ()
    for address in addresses:
        try:
            ip_address(address)
        except ValueError as error:
            raise SettingsError(f"HOST_IPS: {error}; take the pod's field status.hostIPs") from error
    return addresses


def _new(options: argparse.Namespace) -> None:
    paths = create(options.name, options.folder, network_attached=options.network_attached)
    print(*paths, sep="\n")
    driver, tests = (path_word(path) for path in paths[:2])
    print(f"Now: {shell('pytest', tests)}, then {shell('python', driver, '--help')}")


async def _serve(
    driver: Driver,
    config: ProcessConfig,
    options: argparse.Namespace,
    resources: Callable[[], Resources | AsyncIterable[Resources] | None],
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
    "simulated-controller": _simulated_controller,
    "hostdev": _hostdev,
    "new": _new,
}
