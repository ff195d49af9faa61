"""The drivers that come with the library, written against its public interface only.

Here stands what their configuration files have in common: how they are read, and where the process lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from dra_api import yaml_text

from dra_kubeletplugin import SettingsError

Config = TypeVar("Config", bound="ProcessConfig")
_LARGEST_CONFIG_BYTES = 16 * 2**20  # bytes
_UNKNOWN = re.compile(r"unknown field `[^`]*`(?: - at `\$([^`]*)`)?")
_STEP = re.compile(r"\w+|\[[^\]]*\]")
_ENTRY = re.compile(r"\$\.(\w+)\[(\d+)\]")


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The content of a file; flags of the same meaning override it."""

    driver_name: str
    node_name: str = ""
    kubeconfig: str | None = None
    plugin_registration_path: str = "/var/lib/kubelet/plugins_registry"
    datadir: str = "/var/lib/kubelet/plugins"
    cdi_dir: str = "/var/run/cdi"
    enable_device_metadata: bool = False
    http_endpoint: str = ""
    metrics_path: str = "/metrics"
    kube_api_qps: float = 50.0
    kube_api_burst: int = 100


def read_file(path: Path, kind: type[Config]) -> Config:
    """The file's content, YAML or JSON. Raises SettingsError, which names the file, the field and what is expected."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_CONFIG_BYTES + 1)
        if len(text) > _LARGEST_CONFIG_BYTES:
            raise SettingsError(
                f"the configuration {path} is larger than {_LARGEST_CONFIG_BYTES >> 20} MiB: is it the right file?"
            )
        content = yaml_text.load(text.decode())
        for _, line, key in yaml_text.repeated_keys(text):
            raise SettingsError(
                f"the configuration {path} has {key} twice in one place, again in line {line}: keep one"
            )
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the configuration {path}: {error}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"the configuration {path} is neither YAML nor JSON: {error}") from error
    try:
        return msgspec.convert({} if content is None else content, kind)
    except msgspec.ValidationError as error:
        told = f"{_with_entry(str(error), content)}{_valid_fields(str(error), kind)}"
        raise SettingsError(f"the configuration {path} is invalid: {told}") from error


def _valid_fields(text: str, kind: type[Any]) -> str:
    """For the error of an unknown field, the fields that there are."""
    match = _UNKNOWN.search(text)
    if match is None:
        return ""
    kinds: list[Any] = [kind]
    for step in _STEP.findall(match[1] or ""):
        kinds = [inner for outer in kinds for inner in _within(outer, step)]
    return f"; the fields there are {', '.join(field.encode_name for kind in kinds for field in _fields(kind))}"


def _within(kind: Any, step: str) -> Iterator[Any]:
    """The types of a field, or of the items of a collection (a step that begins with a bracket)."""
    if step.startswith("["):
        found = [item for item in get_args(kind) if item is not Ellipsis]
    else:
        found = [field.type for field in _fields(kind) if field.encode_name == step]
    for each in found:
        yield from get_args(each) if get_origin(each) in (Union, UnionType) else (each,)


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return msgspec.structs.fields(kind) if is_struct else ()


def _with_entry(text: str, content: Any) -> str:
    """The text of an error, with the name of the entry beside its index."""
    match = _ENTRY.search(text)
    entry = content[match[1]][int(match[2])] if match else None
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"{text} (the entry {name!r})" if name else text
