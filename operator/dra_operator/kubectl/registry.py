"""The commands of ``kubectl dra``: a new one is a line here, and a module with ``add_arguments`` and ``run``.

The module is loaded only when its command is named, so that help and completion stay quick.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast


class CommandModule(Protocol):
    """What a module of ``commands`` has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments; those that commands share are in ``arguments``."""

    def run(self, options: argparse.Namespace) -> int:
        """Carry it out, mostly by ``edge.answered``; returns the exit code."""


@dataclass(frozen=True, slots=True)
class Command:
    """``module`` is below ``dra_operator.kubectl.commands``."""

    module: str
    help: str

    def load(self) -> CommandModule:
        """Import the module."""
        return cast(CommandModule, importlib.import_module(f"{__package__}.commands.{self.module}"))


COMMANDS: Final[Mapping[str, Command]] = {
    "why": Command("why", "why a pod or claim is pending, or what it holds"),
    "top": Command("top", "devices in use, by node, driver, class or namespace"),
    "devices": Command("devices", "each device with its node, state and holder"),
    "claims": Command("claims", "each claim with its state, devices and pods"),
    "pools": Command("pools", "each resource pool, and how much of it is there"),
    "who": Command("who", "who has a device, or the devices of a node"),
    "free": Command("free", "devices that are free now, per class and node"),
    "lint": Command("lint", "what is wrong with manifests, before they are applied"),
    "doctor": Command("doctor", "what is broken in claims and slices, and how to repair it"),
    "taint": Command("taint", "a rule that taints devices, and the pods that it would evict"),
    "territory": Command("territory", "which scheduler devices belong to, and rules that give them to one"),
    "topology": Command("topology", "the devices of a node as a tree, or as a picture"),
    "fit": Command("fit", "whether pods would fit before they exist, where, and how many"),
    "drain": Command("drain", "what a drain of a node would do to the pods on it"),
    "ui": Command("ui", "a web page about all devices, served on this machine only"),
    "defrag": Command("defrag", "the fewest moves of pods after which another one fits"),
    "snapshot": Command("snapshot", "save what these commands see, for --from"),
}
