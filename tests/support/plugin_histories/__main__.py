"""Seeded random histories of one node's plugin, in one process and without waiting.

::

    PYTHONPATH=tests/support python -m plugin_histories --seeds 0:100000 --workers 2
    PYTHONPATH=tests/support python -m plugin_histories --seeds 4711     # one; if it goes wrong, what happened

A history is a seed. The plugin is the real one, from ``serve`` down to its files; only its sockets are calls within the
process, and the API server is a dict (``apiserver``). ``script`` has the steps that people, hardware and machines take,
``stage`` carries them out. ``process`` is a process of the plugin, which may be killed at any file operation.
``kubelet`` calls it and starts containers, ``drivers`` has the adapters that are pulled and plugged in and what the
plugin does with them. ``judge`` knows what must never be, and what has to be when all is quiet. ``history`` lets one go
by. Clock, command and shrinker are those of ``history_kit``.
"""

from __future__ import annotations

import sys

from history_kit.game import main

from .history import GAME

if __name__ == "__main__":
    sys.exit(main(GAME))
