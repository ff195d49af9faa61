"""The mark of tests that need a control plane as a cluster has it."""

from __future__ import annotations

import envtest
import pytest

NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def missing() -> str:
    """What is missing for a stock control plane, with the remedy; empty if nothing is."""
    folder = envtest.assets()
    lacks = [name for name in NEEDED if folder is None or not (folder / name).exists()]
    return f"set KUBEBUILDER_ASSETS to a folder with {', '.join(lacks)}" if lacks else ""


needs_stock_control_plane = pytest.mark.skipif(bool(missing()), reason=missing())
