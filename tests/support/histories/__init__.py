"""Seeded random histories of a cluster whose requests, watches and operator fail, in one process and without waiting.

::

    PYTHONPATH=tests/support python -m histories --seeds 0:1000000 --workers 2
    PYTHONPATH=tests/support python -m histories --seeds 4711        # one history; if it goes wrong, what happened

A history is a seed. The operator's controllers and its view are the real ones; the API server is ``fake_api``, which
keeps its objects in a dict. ``script`` has the steps that people, nodes and machines take, ``actions`` what each does,
``weather`` what befalls requests and events. ``server`` lets requests suffer it, ``watches`` brings events to the
operator (``incarnation``), which may have several processes (``replica``), of which one may write (``sender``).
``neighbours`` stands for kubelets, garbage collector and provisioner, ``attacher`` for a driver that attaches devices,
``rival`` for another scheduler that gives away the same devices; ``stage`` has them all.
``history`` lets one go by. ``judge`` looks at every state of the server, ``rest`` at the last one, ``turns`` at the
order in which pods got devices; what pods ask of nodes, all three read by ``node_rules``. What claims consume of
devices is in ``amounts``, who ends for whom in ``preemptions``, and how long the most urgent pod may wait in
``urgency``, for which ``pressed`` has scripts of its own. Clock, command and shrinker are those of ``history_kit``.

Nothing depends on the machine: the same seed is the same history, if PYTHONHASHSEED is the same (the command sets it).
"""
