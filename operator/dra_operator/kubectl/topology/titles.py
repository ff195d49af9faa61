"""What a branch of the tree is called."""

from __future__ import annotations

from typing import Final

from dra_operator.kubectl.facts.topology import Branch

WORDS: Final = {
    "node": "node",
    "numa": "NUMA node",
    "pcie": "PCIe root",
    "counters": "shared counters",
    "device": "device",
}


def title(branch: Branch) -> str:
    """``PCIe root pci0000:00``."""
    if branch.device is not None:
        return f"{branch.device.driver}: {branch.name}"
    return f"{WORDS[branch.kind]} {branch.name}" + (f": {branch.detail}" if branch.detail else "")
