"""Seeded random histories of a cluster whose requests, watches and operator fail, in one process and without waiting.

::

    PYTHONPATH=tests/support python -m histories --seeds 0:1000000 --workers 2
    PYTHONPATH=tests/support python -m histories --seeds 4711        # one history; if it goes wrong, what happened

A history is a seed. The operator's controllers and its view are the real ones; the API server is ``fake_api``, which
keeps its objects in a dict. ``script`` has the steps that people, nodes and machines take, ``actions`` what each does.
``server`` has the weather that befalls requests and events, and lets requests suffer it. ``replica`` is a process of
the operator, of which there may be several; it has the watches that bring events. ``neighbours`` stands for kubelets,
garbage collector, provisioner, a driver that attaches devices, and another scheduler that gives away the same devices;
``stage`` has them all. ``history`` lets one go by. ``judge`` looks at every state of the server, ``rest`` at the last
one, ``turns`` at the order in which pods got devices; what pods ask of nodes, all three read by ``node_rules``.
``python -m histories pressed`` plays scripts with an urgent pod, ``gangs`` those with gangs whose devices are attached,
beside another scheduler. Clock, network, command and shrinker are those of
``history_kit``.

Nothing depends on the machine or the process: the same seed is the same history, whatever PYTHONHASHSEED is.
"""

from __future__ import annotations

import sys

from history_kit.game import main

from .history import GAME, GANGS, PRESSED

if __name__ == "__main__":
    sys.exit(main(GAME, pressed=PRESSED, gangs=GANGS))
