"""The kubeconfig of a server: its address, CA and a token in one file."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import yaml

NAME = "dra-devcluster"


def kubeconfig(url: str, ca: bytes, token: str, namespace: str = "default") -> dict[str, Any]:
    """A kubeconfig that needs no other file."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": NAME,
                "cluster": {"server": url, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": NAME, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": namespace}}],
        "current-context": NAME,
    }


def write_kubeconfig(path: Path, config: dict[str, Any]) -> None:
    """Write the file in one step, readable by its owner only: a process that waits for it never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(config, sort_keys=False))
    os.replace(temporary, path)
