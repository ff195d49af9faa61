"""``kubectl dra``: what is free, who holds it, why a pod waits; for people, on a live cluster or a snapshot of one.

A command is a module of ``commands`` and a line in ``registry``. It reads the cluster into one value (``observed``) and
turns that into an ``Answer``; only ``reading``, ``repair`` and ``printing`` do I/O.
"""
