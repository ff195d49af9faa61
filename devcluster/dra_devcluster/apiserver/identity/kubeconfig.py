"""Kubeconfigs: the one of a server, with its address, CA and a token; and a file that has those of several clusters."""

from __future__ import annotations

import base64
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from dra_api import yaml_text

NAME = "dra-devcluster"
_PARTS = ("clusters", "users", "contexts")
_SERVER_ANSWER_SECONDS = 2.0  # seconds that a server may take to answer

Json = dict[str, Any]


def kubeconfig(url: str, ca: bytes, token: str, namespace: str = "default", name: str = NAME) -> Json:
    """A kubeconfig that needs no other file; ``name`` is that of its cluster, user and context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {"server": url, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }


def write_kubeconfig(path: Path, config: Json) -> None:
    """Write the file in one step, readable by its owner only: a process that waits for it never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch(mode=0o600)
        temporary.write_text(yaml.safe_dump(config, sort_keys=False))
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_kubeconfig(path: Path) -> Json:
    """The content of a file that may be missing or empty. Raises OSError, and ValueError for what is no kubeconfig."""
    try:
        found = yaml_text.load(path.read_text())
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error
    if found is None:
        return {}
    entries = [found.get(part) or [] for part in _PARTS] if isinstance(found, dict) else [""]
    if not all(isinstance(part, list) and all(isinstance(entry, dict) for entry in part) for part in entries):
        raise ValueError("it is not a kubeconfig")
    kept: Json = found
    return kept


def merged(before: Json, config: Json) -> Json:
    """``before`` with the cluster of ``config`` in it as the current one, in the place of one of the same name."""
    name = config["current-context"]
    parts = {
        part: [*(entry for entry in before.get(part) or () if entry.get("name") != name), *config[part]]
        for part in _PARTS
    }
    return {**before, **config, **parts}


def living(config: Json, name: str) -> str:
    """The address of the cluster of that name if its server answers, empty if there is none."""
    for entry in config.get("clusters") or ():
        cluster = entry.get("cluster") or {}
        if entry.get("name") == name and _answers(cluster):
            return str(cluster["server"])
    return ""


def _answers(cluster: Json) -> bool:
    """Whether a server with the certificate of this cluster is there; a later one on the same port has another."""
    try:
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=ca)
        urllib.request.urlopen(f"{cluster['server']}/version", timeout=_SERVER_ANSWER_SECONDS, context=context).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError, KeyError):
        return False
    return True
