"""Prints files that are made from the declarations of the settings. ``make settings`` writes them, and tests compare.

    python -m dra_operator.app.settings_page page      # docs/operator-settings.md
    python -m dra_operator.app.settings_page schema    # manifests/values.schema.json, of the Helm chart

The schema lets Helm refuse ``operator.settings`` that the operator would refuse.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from dra_operator.allocator import GATES
from dra_operator.app.settings import FORMER_NAMES, OperatorSettings, described
from dra_operator.controllers.scheduling.mix import LARGEST_WEIGHT, LISTED_ENTRIES
from dra_operator.controllers.settings import NAMES

_TEXT = {"type": "string"}
_SWITCH = {"type": "boolean"}
_ANY = {"type": "object"}
_FOLDER = {"type": "string", "pattern": "^/.*[^/]$"}
_LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
_COMMON = {"enabled": _SWITCH, "resources": _ANY, "nodeSelector": _ANY, "podAnnotations": _ANY}
_SIMULATED = {
    "driverName": _TEXT,
    "numDevices": {"type": "integer", "minimum": 0, "maximum": 10_000},
    "pools": {"type": "array", "items": _ANY},
    "enableDeviceMetadata": _SWITCH,
    "kubeApiQps": {"type": "number", "minimum": 0},
    "kubeApiBurst": {"type": "integer", "minimum": 0},
}
"""The driver's configuration, without what is the DaemonSet's own: names of the node, folders, the port."""
_BY_MANIFEST = ("kubeconfig", "metrics_host", "metrics_port", "placement_mix", "leader_elect_namespace")
"""The manifests' own: the probes depend on them, the chart makes and mounts the file, Lease and Role are there."""
_MIX = {
    "type": "array",
    "maxItems": LISTED_ENTRIES,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["weight", "exactly"],
        "properties": {
            "weight": {"type": "integer", "minimum": 1, "maximum": LARGEST_WEIGHT},
            "exactly": _ANY,
            "cpu": {"type": ["string", "number"]},
        },
    },
}


def schema() -> dict[str, Any]:
    """The JSON Schema of all values."""
    settings = {setting.name: _of(setting.path) for setting in described() if setting.field not in _BY_MANIFEST}
    settings["controllers"]["pattern"] = f"^ *(auto( *, *admission)?|{_list_of(NAMES)}) *$"
    former = {it: {**settings[name], "description": f"former name of {name}"} for it, name in FORMER_NAMES.items()}
    settings["feature-gates"]["pattern"] = f"^({_list_of(GATES, '=(true|false)')})?$"
    operator = {
        **_COMMON,
        "replicas": {"type": "integer", "minimum": 0, "maximum": 10},
        "settings": _object(settings | former),
        "placementMix": _MIX,
        "tolerations": {"type": "array", "items": _ANY},
        "affinity": _ANY,
    }
    plugin = {
        **_COMMON,
        "namespace": _LABEL,
        "config": _object(_SIMULATED),
        "reportsDevices": _SWITCH,
        "kubeletDir": _FOLDER,
    }
    image = {
        "repository": {"type": "string", "minLength": 1},
        "tag": _TEXT,
        "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
        "pullSecrets": {"type": "array", "items": _TEXT},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_object(
            {
                "image": _object(image),
                "operator": _object(operator),
                "plugin": _object(plugin),
                "monitoring": _object({"enabled": _SWITCH}),
                "networkPolicy": _object({"enabled": _SWITCH}),
                "global": _ANY,  # Helm adds it to subcharts
            }
        ),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _list_of(names: Iterable[str], ending: str = "") -> str:
    """Return a pattern for some of the names with commas between them."""
    name = f"({'|'.join(sorted(names))}){ending}"
    return f"{name}( *, *{name})*"


def _of(path: tuple[str, ...]) -> dict[str, Any]:
    """The schema of one setting, without references; for people its title says what is allowed."""
    (found,), components = msgspec.json.schema_components([OperatorSettings], ref_template="{name}")
    for name in path:
        found = components[found["$ref"]]["properties"][name] if "$ref" in found else found[name]
    return {key: value for key, value in found.items() if key not in ("title", "default")}


HEAD = """# Settings of the operator

Every setting of `dra-operator run` is a flag (`--metrics-port 8080`, `--no-leader-elect`), an environment variable
(`DRA_OPERATOR_METRICS_PORT=8080`), or a key in the YAML file that `--config FILE` or `DRA_OPERATOR_CONFIG` names
(`metrics-port: 8080`). A flag has precedence over a variable, a variable over the file. All times are in seconds.

An unknown setting or a wrong value ends the operator with exit code 2 and one line that says what is allowed. Set
`enableServiceLinks: false` in manifests of your own: a Service `dra-operator-metrics` brings a variable that looks like
a setting.

| Setting | Default | Allowed | Meaning |
|---|---|---|---|
"""

FORMER_HEAD = """
## Former names

These still count, in the chart's values too, with a warning at the start; both names together are an error.

| Former name | Setting |
|---|---|
"""


def page() -> str:
    """The whole page."""
    lines = (
        f"| `{setting.name}` | `{setting.default}` | {setting.allowed} | {setting.meaning} |\n"
        for setting in described()
    )
    former = (f"| `{name}` | `{now}` |\n" for name, now in FORMER_NAMES.items())
    return HEAD + "".join(lines) + FORMER_HEAD + "".join(former)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=("page", "schema"), help="Markdown, or the JSON schema of the chart's values")
    form = parser.parse_args().form
    print(page() if form == "page" else json.dumps(schema(), indent=1) + "\n", end="")
