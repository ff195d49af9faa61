"""A kubeconfig with one cluster and one user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def write_kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    """Write the file ``config`` in the folder; ``cluster`` and ``user`` are their entries."""
    file = folder / "config"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(yaml.safe_dump(content))
    return file
