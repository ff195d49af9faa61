"""Marks that several files of end-to-end tests share."""

import pytest

both = pytest.mark.parametrize("scene", ["kubelet", "control-plane"], indirect=True)
"""Run with nodes that run pods, and with the control plane alone."""
