"""``kubectl dra``: free devices, their holders, and why a pod waits, on a live cluster or a snapshot of one.

A command is a line in ``commands`` and an answer in a module with its name, or that of its subject. It gets the cluster
as one value (``observed``) and returns an ``Answer``. Only ``snapshot``, ``live`` and ``printer`` do I/O;
``doctor`` and ``defrag`` also repair and move.
"""
