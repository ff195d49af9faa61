"""A driver as a command: its flags, and the sub-commands of dra-kubelet-plugin.

The flags stand here, those of every driver and of its controller: help needs no more than this file.
"""

from __future__ import annotations

from typing import Any, Final

KUBELET_DIR: Final = "/var/lib/kubelet"

FLAGS: Final[dict[str, dict[str, Any]]] = {
    "--kubeconfig": {"metavar": "FILE", "help": "path to the kubeconfig file (KUBECONFIG, in-cluster, ~/.kube/config)"},
    "--node-name": {"metavar": "NAME", "help": "name of this node (NODE_NAME)"},
    "--kubelet-dir": {"metavar": "DIR", "help": f"the kubelet's directory ({KUBELET_DIR})"},
    "--cdi-dir": {"metavar": "DIR", "help": "directory for CDI files; created if missing (/var/run/cdi)"},
    "--rolling-update-uid": {
        "metavar": "UID",
        "default": "",
        "help": "uid of the plugin's pod; set it if instances overlap during an update",
    },
    "--scheduler": {
        "metavar": "NAME",
        "default": "",
        "help": "give the devices to this scheduler alone, by a taint that dra-operator tolerates (all may take them)",
    },
    "--http-endpoint": {"metavar": "HOST:PORT", "help": "serve metrics, /healthz and /readyz here (off)"},
    "--log-level": {
        "default": "info",
        "choices": ["debug", "info", "warning", "error"],
        "help": "debug logs each call of the kubelet (info)",
    },
    "--log-format": {
        "default": "text",
        "choices": ["text", "json"],
        "help": "json: one object a line, with time, level, logger, request and message (text)",
    },
}

CONTROLLER_FLAGS: Final[dict[str, dict[str, Any]]] = {
    "--namespace": {"metavar": "NAME", "help": "namespace of the Lease (POD_NAMESPACE, default)"},
    **{flag: FLAGS[flag] for flag in ("--kubeconfig", "--log-level", "--log-format")},
}
