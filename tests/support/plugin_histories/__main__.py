"""Plays random histories of a node's plugin: ``python -m plugin_histories --help``."""

from __future__ import annotations

import sys

from history_kit.game import main

from .history import GAME

if __name__ == "__main__":
    sys.exit(main(GAME))
