"""Marks that several files of end-to-end tests share."""

import pytest

both = pytest.mark.parametrize("scene", ["kubelet", "control-plane"], indirect=True)
"""Run with nodes that run pods, and with the control plane alone."""

control_plane = pytest.mark.parametrize("scene", ["control-plane"], indirect=True)
"""Run with the control plane alone: nodes are objects, and slices have no plugin behind them."""
