"""Marks that several files of end-to-end tests share."""

import os

import pytest

both = pytest.mark.parametrize("scene", ["kubelet", "control-plane"], indirect=True)
"""Run with nodes that run pods, and with the control plane alone."""

control_plane = pytest.mark.parametrize("scene", ["control-plane"], indirect=True)
"""Run with the control plane alone: nodes are objects, and slices have no plugin behind them."""

done_by_us = pytest.mark.skipif("KOPF_DRA_STOCK" in os.environ, reason="kube-controller-manager does this here")
"""Not beside a kube-controller-manager with all its controllers (``KOPF_DRA_STOCK=1``)."""
