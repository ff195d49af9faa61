"""Reads the configuration file and checks what its types do not: names, patterns, facts, and what CDI refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dra_kubeletplugin import CdiError, ContainerEdits, DeviceNode, Mount, SettingsError
from dra_kubeletplugin.drivers.config_file import read_file

from . import template
from .config import CONTAINER_PATH, ContainerConfig, Entry, HostdevConfig, IntegerFact, hook_of

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?", re.ASCII)
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)


def read_config(path: Path) -> HostdevConfig:
    """The file's content. Raises SettingsError, which names the file, the entry, the field and the remedy."""
    config = read_file(path, HostdevConfig)
    for fault in _faults(config):
        raise SettingsError(f"the configuration {path} is invalid: {fault}")
    return config


def _faults(config: HostdevConfig) -> Iterator[str]:
    if not config.devices:
        yield "devices: there is no entry, so nothing would be published; add one, see docs/hostdev.md"
    if config.gone.withdraw_after_seconds < 0:
        yield "gone.withdrawAfterSeconds: must not be negative"
    seen: dict[str, int] = {}
    for index, entry in enumerate(config.devices):
        where = f"devices[{index}] ({entry.name!r})"
        if entry.name in seen:
            yield f"{where}.name: devices[{seen[entry.name]}] has it already; names of devices begin with it"
        seen.setdefault(entry.name, index)
        for field, fault in _faults_of(entry):
            yield f"{where}.{field}: {fault}"


def _faults_of(entry: Entry) -> Iterator[tuple[str, str]]:
    if not _NAME.fullmatch(entry.name):
        yield "name", "use lower-case letters, digits and '-', at most 31, beginning with a letter"
    if bool(entry.paths) == bool(entry.sysfs):
        yield "paths", "give either paths (of device nodes) or sysfs (folders of devices)"
    if entry.nodes and not entry.sysfs:
        yield "nodes", "only with sysfs: paths are device nodes themselves"
    for field, patterns, start in (("paths", entry.paths, "/dev/"), ("sysfs", entry.sysfs, "/sys/")):
        for pattern in patterns:
            if not pattern.startswith(start) or ".." in pattern.split("/"):
                yield field, f"{pattern!r} must begin with {start} and have no '..'"
    if isinstance(entry.shares, int) and not 1 <= entry.shares <= 10_000:
        yield "shares", f"{entry.shares} is not from 1 to 10000; write unlimited if it does not matter"
    for name in entry.attributes:
        if not _ATTRIBUTE.fullmatch(name):
            yield f"attributes.{name}", "use letters, digits and '_', at most 32, not beginning with a digit"
    yield from _wrong_templates(entry)
    yield from _wrong_edits(entry.container)


def _wrong_templates(entry: Entry) -> Iterator[tuple[str, str]]:
    for name in entry.match:
        if fault := _fault(partial(template.check_name, name)):
            yield f"match.{name}", fault
    texts = [("groupBy", entry.group_by), ("id", entry.id)]
    texts += [(f"attributes.{name}", text) for name, text in entry.attributes.items() if isinstance(text, str)]
    texts += [(f"attributes.{name}", it.int) for name, it in entry.attributes.items() if isinstance(it, IntegerFact)]
    texts += [(f"container.{field}", text) for field, text in entry.container.templates()]
    for field, text in texts:
        if field.startswith("container.") and field != "container.path":
            text = text.replace(CONTAINER_PATH, "")
        if fault := _fault(partial(template.check, text)):
            yield field, fault
    if (entry.group_by or entry.nodes) and not any(template.names(entry.container.path)):
        yield "container.path", "several nodes cannot have one path: write {node} into it, such as /dev/camera/{node}"


def _wrong_edits(container: ContainerConfig) -> Iterator[tuple[str, str]]:
    """What the CDI model refuses, whatever the facts are."""
    makers: list[tuple[str, Callable[[], object]]] = [
        ("permissions", partial(DeviceNode, path="/dev/x", permissions=container.permissions)),
        ("env", partial(ContainerEdits, env=tuple(f"{name}=x" for name in container.env))),
        ("additionalGids", partial(ContainerEdits, additional_gids=container.additional_gids)),
    ]
    for index, node in enumerate(container.device_nodes):
        makers.append((f"deviceNodes[{index}]", partial(DeviceNode, path=node.path, permissions=node.permissions)))
    for index, mount in enumerate(container.mounts):
        makers.append((f"mounts[{index}]", partial(Mount, host_path=mount.host_path, container_path="/x")))
    for index, hook in enumerate(container.hooks):
        makers.append((f"hooks[{index}]", partial(hook_of, hook, hook.args)))
    for field, make in makers:
        if fault := _fault(make):
            yield f"container.{field}", fault


def _fault(make: Callable[[], object]) -> str:
    try:
        make()
    except (ValueError, CdiError) as error:
        return str(error)
    return ""
